"""An answer of a lookup's size without a lookup: what headrace's front end costs alone, or grpcio's."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor

import grpc
import uvloop

from benchmarks.archive_wire import METHOD, answer_bytes
from headrace.config import ServerConfig
from headrace.frontends.calls import GrpcCall, GrpcMethod
from headrace.frontends.transport.asgi import Application
from headrace.frontends.transport.grpc_framing import PREFIX_BYTES
from headrace.frontends.transport.h2corn import H2cornTransport
from headrace.frontends.transport.listening_sockets import Listeners


def main() -> None:
    """Serve until a signal comes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stack", choices=("headrace", "grpcio"))
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--keys", type=int, default=100)
    options = parser.parse_args()
    answer = bytes(answer_bytes(options.keys) - PREFIX_BYTES)
    if options.stack == "grpcio":
        by_grpcio(options.port, answer)
    else:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # as headrace serve does
        uvloop.run(by_headrace(options.port, answer))


def by_grpcio(port: int, answer: bytes) -> None:
    """The same server as the dict's, with nothing to parse or to write."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
    _, service, method = METHOD.split("/")
    handler = grpc.unary_unary_rpc_method_handler(lambda request, context: answer)
    server = grpc.server(ThreadPoolExecutor(max_workers=10))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    signal.sigwait([signal.SIGTERM, signal.SIGINT])
    server.stop(grace=None).wait()


async def by_headrace(port: int, answer: bytes) -> None:
    """The transport and the application that the archive is behind."""

    async def handle(message: bytes, call: GrpcCall) -> bytes:
        return answer

    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.setblocking(False)
        application = Application([], [GrpcMethod(METHOD, unary=handle)])
        transport = H2cornTransport(application, Listeners([[listener]], may_join=False), ServerConfig())
        await transport.start()
        gc.freeze()  # this and the thresholds as headrace.server.server has them
        gc.set_threshold(10_000, 1, 500)
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()
