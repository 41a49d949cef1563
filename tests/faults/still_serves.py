"""The question that every fault ends with, and the calls that faults are made of."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import numpy as np

from headrace.frontends.wire import protos
from tests.running_server import RunningServer

MODEL = "good"
"""The model that goes on whatever happens to others: y = x + 1."""

_INFER = "/inference.GRPCInferenceService/ModelInfer"
Request = protos.message("inference.ModelInferRequest")
Response = protos.message("inference.ModelInferResponse")


def does_it_still_serve(server: RunningServer) -> None:
    """Ask the good model over REST and gRPC, on connections of their own."""
    assert server.process.poll() is None, "the process has ended"
    assert server.post(f"/v1/models/{MODEL}:predict", {"instances": [1.0]}) == (200, {"predictions": [2.0]})
    with grpc_calls(server) as call:
        assert infer(call, MODEL, 1.0) == [2.0]
    assert server.get("/v2/health/ready")[0] == 200


@contextmanager
def grpc_calls(server: RunningServer) -> Iterator[grpc.UnaryUnaryMultiCallable]:
    """Messages as bytes to ModelInfer and back, on one connection."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options) as channel:
        yield channel.unary_unary(_INFER)


def infer_message(model: str, *values: float, name: str = "x") -> bytes:
    """A request of one FP32 input."""
    request = Request(model_name=model, raw_input_contents=[np.array(values, np.float32).tobytes()])
    request.inputs.add(name=name, datatype="FP32", shape=[len(values)])
    written: bytes = request.SerializeToString()
    return written


def infer(
    call: grpc.UnaryUnaryMultiCallable, model: str, *values: float, wait_for_ready: bool = True
) -> list[float]:
    """Ask for one FP32 output."""
    message = infer_message(model, *values)
    response = Response.FromString(call(message, timeout=30, wait_for_ready=wait_for_ready))
    return np.frombuffer(response.raw_output_contents[0], np.float32).tolist()


# ---- Bytes on a socket: what no well-behaved client would send ----


def connect(port: int) -> socket.socket:
    """A plain connection; reading and writing give up after a while."""
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def http_request(path: str, body: bytes, *headers: str, method: str = "POST") -> bytes:
    """One HTTP/1.1 request as it goes over the wire."""
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def predict_request(model: str, value: object, *headers: str) -> bytes:
    """One TensorFlow Serving request as it goes over the wire."""
    return http_request(f"/v1/models/{model}:predict", json.dumps({"instances": value}).encode(), *headers)


def hang_up(connection: socket.socket) -> None:
    """Close with a reset, as a client that crashes."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
