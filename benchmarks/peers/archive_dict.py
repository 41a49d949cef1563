"""A plain dict behind grpcio: the archive's Lookup as anybody would write it, in threads or in coroutines."""

from __future__ import annotations

import argparse
import asyncio
import signal
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np

from benchmarks.archive_wire import DIMENSION, METHOD, key, some_vectors
from headrace.frontends.wire import protos

Request = protos.message("headrace.archive.v1.LookupRequest")
Response = protos.message("headrace.archive.v1.LookupResponse")
NONE = bytes(2 * DIMENSION)
_, SERVICE, CALL = METHOD.split("/")


def main() -> None:
    """Serve until a signal comes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, default=10, help="0: grpc.aio")
    options = parser.parse_args()
    table = {key(number): vector.tobytes() for number, vector in enumerate(some_vectors())}

    def lookup(request, context):
        found = [table.get(one) for one in request.keys]
        return Response(
            vectors=b"".join([one or NONE for one in found]),
            found=np.array([one is not None for one in found]).tobytes(),
            version=1,
            dtype="float16",
            dimension=DIMENSION,
        )

    address = f"127.0.0.1:{options.port}"
    if options.threads:
        server = grpc.server(ThreadPoolExecutor(max_workers=options.threads))
        server.add_generic_rpc_handlers((handlers(lookup),))
        server.add_insecure_port(address)
        server.start()
        signal.sigwait([signal.SIGTERM, signal.SIGINT])
        server.stop(grace=None).wait()
    else:
        asyncio.run(in_coroutines(lookup, address))


def handlers(lookup):
    """What answers the call with a function, or a coroutine function."""
    handler = grpc.unary_unary_rpc_method_handler(
        lookup, request_deserializer=Request.FromString, response_serializer=Response.SerializeToString
    )
    return grpc.method_handlers_generic_handler(SERVICE, {CALL: handler})


async def in_coroutines(lookup, address):
    """Serve by grpc.aio until a signal comes."""

    async def answered(request, context):
        return lookup(request, context)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handlers(answered),))
    server.add_insecure_port(address)
    await server.start()
    await asyncio.to_thread(signal.sigwait, [signal.SIGTERM, signal.SIGINT])
    await server.stop(None)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
    main()
