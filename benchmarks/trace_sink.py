"""A collector that takes spans over gRPC and forgets them; run as a program, it prints its port."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc

from benchmarks.models import ROOT
from benchmarks.processes import on_core

_METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_LONGEST_SECONDS = 3600.0


@contextmanager
def receiving(core: int) -> Iterator[str]:
    """A collector in a process of its own, as long as this is entered.

    Args:
        core: Where it runs.

    Yields:
        Its address.
    """
    command = on_core(core, [sys.executable, "-m", "benchmarks.trace_sink"])
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout is None:
            raise RuntimeError("the collector has no output")
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.wait()


class _Takes(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio has no types
    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if details.method != _METHOD:
            return None
        return grpc.unary_unary_rpc_method_handler(lambda request, context: b"")


def main() -> None:
    """Take spans until terminated."""
    server = grpc.server(ThreadPoolExecutor(2), handlers=[_Takes()])
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    time.sleep(_LONGEST_SECONDS)


if __name__ == "__main__":
    main()
