"""A plain dict behind grpcio: the archive's Lookup as anybody would write it, in a thread pool."""

from __future__ import annotations

import argparse
import signal
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np

from benchmarks.archive_wire import DIMENSION, key, some_vectors
from headrace.frontends.wire import protos

Request = protos.message("headrace.archive.v1.LookupRequest")
Response = protos.message("headrace.archive.v1.LookupResponse")
NONE = bytes(2 * DIMENSION)


def main() -> None:
    """Serve until a signal comes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, default=10)
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

    handler = grpc.unary_unary_rpc_method_handler(
        lookup, request_deserializer=Request.FromString, response_serializer=Response.SerializeToString
    )
    handlers = grpc.method_handlers_generic_handler("headrace.archive.v1.Archive", {"Lookup": handler})
    server = grpc.server(ThreadPoolExecutor(max_workers=options.threads))
    server.add_generic_rpc_handlers((handlers,))
    server.add_insecure_port(f"127.0.0.1:{options.port}")
    server.start()
    signal.sigwait([signal.SIGTERM, signal.SIGINT])
    server.stop(grace=None).wait()


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
    main()
