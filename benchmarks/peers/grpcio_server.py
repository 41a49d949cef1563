"""A plain grpcio server: a thread pool, ModelInfer with raw contents, one ONNX Runtime call per request."""

from __future__ import annotations

import argparse
import signal
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np

from benchmarks.peers.session import load

messages, services = grpc.protos_and_services("benchmarks/infer.proto")
DTYPES = {"INT32": np.int32, "FP32": np.float32}


class Inference(services.GRPCInferenceServiceServicer):
    """The service: parse, compute, answer."""

    def __init__(self, model: str) -> None:
        """Load the model.

        Args:
            model: The ONNX file.
        """
        self._session = load(model)

    def ModelInfer(self, request, context):  # noqa: N802  # The protocol's name.
        """Answer one request."""
        feed = {
            tensor.name: np.frombuffer(raw, DTYPES[tensor.datatype]).reshape(tensor.shape)
            for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
        }
        (answer,) = self._session.run(None, feed)
        response = messages.ModelInferResponse(
            model_name=request.model_name, model_version="1", id=request.id
        )
        response.outputs.add(name="p", datatype="FP32", shape=answer.shape)
        response.raw_output_contents.append(answer.tobytes())
        return response


def main() -> None:
    """Serve until a signal comes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, default=10)
    parser.add_argument("--limit", type=int, help="calls at a time; more are refused")
    options = parser.parse_args()
    server = grpc.server(
        ThreadPoolExecutor(max_workers=options.threads), maximum_concurrent_rpcs=options.limit
    )
    services.add_GRPCInferenceServiceServicer_to_server(Inference(options.model), server)
    server.add_insecure_port(f"127.0.0.1:{options.port}")
    server.start()
    signal.sigwait([signal.SIGTERM, signal.SIGINT])
    server.stop(grace=None).wait()


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
    main()
