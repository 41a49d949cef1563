"""Good and bad requests, as bytes for a socket or for a gRPC call, each with the statuses that it may get."""

from __future__ import annotations

import gzip
import json
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.faults.heavy import (
    INFER,
    MANY,
    METADATA,
    PREDICT,
    REGRESS,
    TASKS,
    WORDS,
    context_of_many,
    many_inputs,
    predict_message,
    regress_of,
    repeated,
    texts_infer,
)
from tests.faults.still_serves import (
    MODEL,
    Request,
    connect,
    hang_up,
    http_request,
    infer_message,
    predict_request,
)
from tests.model_directories import write

Status = int | str | None
"""An HTTP status, the name of a gRPC one, or None where nothing need be answered."""


@dataclass(frozen=True)
class Attack:
    """One kind of request.

    Attributes:
        name: What it is called in a failing test.
        expected: What may be answered.
        content: The bytes of an HTTP request, or of the message of a gRPC call.
        method: What a gRPC call calls.
        every: It is sent once where others are sent so often: not because it is rare in life, but because it
            is slow to send.
    """

    name: str
    expected: tuple[Status, ...]
    content: bytes
    method: str = INFER
    every: int = 1


def write_models(directory: Path) -> None:
    """Models with texts, Examples and contexts, and with many inputs; both are code.

    Args:
        directory: Where they are written.
    """
    write(directory, "words", 1, WORDS, '[signature]\nkind = "regress"\n')
    write(directory, "many", 1, MANY)


BOMB_BYTES = 256 * 1024 * 1024
"""What the gzip bomb opens to: four times what the server takes."""


def http_attacks() -> list[Attack]:
    """Requests over HTTP/1.1 that are answered, good and bad."""
    deep = b"[" * 50_000 + b"]" * 50_000
    infer = f"/v2/models/{MODEL}/infer"
    predict = f"/v1/models/{MODEL}:predict"
    x = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}

    def v2(**changes: object) -> bytes:
        return http_request(infer, json.dumps({"inputs": [x | changes]}).encode())

    binary = json.dumps(
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}]}
    ).encode()

    def cut(length: int, tail: bytes) -> bytes:
        return http_request(infer, binary + tail, f"inference-header-content-length: {length}")

    good, bad, large = (200,), (400,), (400, 413)
    zipped = gzip.compress(b'{"instances": [1.0]}')
    return [
        Attack("good rows", good, predict_request(MODEL, [1.0, 2.0])),
        Attack("good infer", good, v2()),
        Attack("good binary", good, cut(len(binary), np.ones(2, np.float32).tobytes())),
        Attack("good gzip", good, http_request(predict, zipped, "content-encoding: gzip")),
        Attack("many rows", good, predict_request(MODEL, [1.0] * 2000)),
        Attack("bad JSON", bad, http_request(predict, b'{"instances": [1.0')),
        Attack("no JSON", bad, http_request(predict, b"\x00\xff\xfe")),
        Attack("JSON of another kind", bad, http_request(predict, b"7")),
        Attack("wrong dtype", bad, predict_request(MODEL, ["one"])),
        Attack("wrong shape", bad, predict_request(MODEL, [[1.0, 2.0]])),
        Attack("wrong name", bad, http_request(predict, b'{"inputs": {"z": [1]}}')),
        Attack("too deep", bad, http_request(predict, b'{"instances": ' + deep + b"}"), every=20),
        Attack(
            "too deep for the other one", bad, http_request(infer, b'{"inputs": ' + deep + b"}"), every=20
        ),
        Attack("shape that overflows", bad, v2(shape=[2**62, 2**62])),
        Attack("negative dimension", bad, v2(shape=[-1])),
        Attack("more rows than data", bad, v2(shape=[5])),
        Attack("unknown datatype", bad, v2(datatype="FP128")),
        Attack("truncated binary part", bad, cut(len(binary), b"\x00\x00\x80")),
        Attack("header length beyond the body", bad, cut(len(binary) + 999, bytes(8))),
        Attack("header length below zero", bad, cut(-1, bytes(8))),
        Attack("gzip that is none", bad, http_request(predict, b"plain", "content-encoding: gzip")),
        Attack("gzip cut short", bad, http_request(predict, zipped[:-5], "content-encoding: gzip")),
        Attack("announced too large", large, _announced(predict, 100 * 1024 * 1024)),
        Attack("unknown model", (404,), predict_request("missing", [1.0])),
        Attack(
            "path that climbs", (400, 404), http_request("/v1/models/../../etc/passwd", b"", method="GET")
        ),
        Attack("path that climbs, encoded", (400, 404), predict_request("%2e%2e%2fetc", [1.0])),
        Attack("unknown path", (404,), http_request("/nothing", b"", method="GET")),
        Attack("no HTTP", (400, None), b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 not HTTP\r\n\r\n"),
        Attack(
            "header that is too long",
            (200, 400, 431, None),
            predict_request(MODEL, [1.0], "x: " + "y" * 100_000),
        ),
    ]


def http_attacks_of_many_kinds() -> list[Attack]:
    """Requests over HTTP/1.1 for the models of texts, Examples and contexts, and many inputs."""

    def asked(path: str, value: object) -> bytes:
        return http_request(path, json.dumps(value).encode())

    words, regress = "/v1/models/words:predict", "/v1/models/words:regress"
    rome, example = {"city": "rome", "age": 1.0}, {"age": 1.0}
    inputs = [{"name": f"x{number}", "datatype": "FP32", "shape": [1], "data": [1]} for number in range(300)]
    many = "/v2/models/many/infer"
    large = json.dumps({"context": {"city": "x" * 1_000_000}, "examples": [example] * 500}).encode()
    good, bad, refused = (200,), (400,), (413,)
    return [
        Attack("good texts", good, asked(words, {"instances": [rome, rome]})),
        Attack("text in base64", good, asked(words, {"instances": [rome | {"city": {"b64": "cm9tZQ=="}}]})),
        Attack("base64 that is none", bad, asked(words, {"instances": [rome | {"city": {"b64": "!"}}]})),
        Attack("a number for a text", bad, asked(words, {"instances": [rome | {"city": 1}]})),
        Attack("a text for a number", bad, asked(words, {"instances": [rome | {"age": "old"}]})),
        Attack("a text of escapes", good, http_request(words, _text(b"\\u0000" * 5000))),
        Attack("half a surrogate", bad, http_request(words, _text(b"\\ud83d"))),
        Attack("empty rows", bad, asked(words, {"instances": [{}] * 5000})),
        Attack("empty lists", bad, asked(words, {"inputs": {"city": [[]] * 5000, "age": [1.0]}})),
        Attack("good Examples", good, asked(regress, {"context": {"city": "a"}, "examples": [example] * 3})),
        Attack("Examples without features", bad, asked(regress, {"examples": [{}] * 5000})),
        Attack("Examples that are none", bad, asked(regress, {"examples": [1, "two", None]})),
        Attack("a context that is none", bad, asked(regress, {"context": [1], "examples": [example]})),
        Attack("a long context of many", refused, http_request(regress, large), every=20),
        Attack("good inputs, 300", good, asked(many, {"inputs": inputs})),
        Attack("an input twice", bad, asked(many, {"inputs": [*inputs[:-1], inputs[0]]})),
        Attack("an input too few", bad, asked(many, {"inputs": inputs[:-1]})),
        Attack("inputs nobody knows", bad, asked(many, {"inputs": [one | {"name": "z"} for one in inputs]})),
        Attack("inputs without data", bad, asked(many, {"inputs": [{}] * 300})),
    ]


def _text(written: bytes) -> bytes:
    return b'{"instances":[{"age":1.0,"city":"' + written + b'"}]}'


def gzip_bomb() -> Attack:
    """Small on the wire, and far too large once opened; built once, because that takes a second."""
    body = gzip.compress(bytes(BOMB_BYTES), 1)
    return Attack(
        "gzip bomb", (413,), http_request(f"/v1/models/{MODEL}:predict", body, "content-encoding: gzip")
    )


def grpc_attacks() -> list[Attack]:
    """Messages to ModelInfer, good and bad."""

    def changed(
        name: str = "x", datatype: str = "FP32", shape: tuple[int, ...] = (1,), **more: object
    ) -> bytes:
        request = Request(model_name=MODEL, **more)
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        written: bytes = request.SerializeToString()
        return written

    one = np.ones(1, np.float32).tobytes()
    bad = ("INVALID_ARGUMENT",)
    return [
        Attack("good", ("OK",), infer_message(MODEL, 1.0)),
        Attack("good, many rows", ("OK",), infer_message(MODEL, *([1.0] * 2000))),
        Attack("bad protobuf", bad, b"\xff\xff\xff\xff"),
        Attack("cut protobuf", bad, infer_message(MODEL, 1.0, 2.0)[:-3]),
        Attack("empty message", ("INVALID_ARGUMENT", "NOT_FOUND"), b""),
        Attack("wrong dtype", bad, changed(datatype="INT64", raw_input_contents=[bytes(8)])),
        Attack("wrong shape", bad, changed(shape=(1, 2), raw_input_contents=[one * 2])),
        Attack("wrong name", bad, changed(name="z", raw_input_contents=[one])),
        Attack("negative dimension", bad, changed(shape=(-1,), raw_input_contents=[one])),
        Attack(
            "shape that overflows",
            ("RESOURCE_EXHAUSTED",),  # more rows than may wait, before its bytes are looked at
            changed(shape=(2**62, 2**62), raw_input_contents=[one]),
        ),
        Attack("truncated raw contents", bad, changed(shape=(2,), raw_input_contents=[one])),
        Attack("no contents", bad, changed()),
        Attack("contents of no input", bad, changed(raw_input_contents=[one, one])),
        Attack("unknown model", ("NOT_FOUND",), infer_message("missing", 1.0)),
        Attack("too large", ("RESOURCE_EXHAUSTED",), bytes(65 * 1024 * 1024), every=400),
    ]


def grpc_attacks_of_many_kinds() -> list[Attack]:
    """Messages for the models of texts, Examples and contexts, and many inputs."""
    good, bad, large = ("OK",), ("INVALID_ARGUMENT",), ("RESOURCE_EXHAUSTED",)
    either, empty, any_of = bad + large, b"\x0a\x00" * 10_000, bad + large + good
    return [
        Attack("good Predict", good, predict_message(), PREDICT),
        Attack("good texts", good, texts_infer(1, b"rome")),
        Attack("one age for many texts", bad, texts_infer(5000)),
        Attack("good Examples", good, context_of_many(10, 3), REGRESS),
        Attack("a long context of many", large, context_of_many(1_000_000, 500), REGRESS, 20),
        Attack("empty Examples", bad, regress_of(empty), REGRESS),
        Attack("Examples cut short", bad, regress_of(b"\x0a\x7f\x0a"), REGRESS),
        Attack("no Examples", either, regress_of(b""), REGRESS),
        Attack("good inputs, 300", good, many_inputs(300, 1)),
        Attack("inputs of one name", bad, many_inputs(300)),
        Attack("inputs nobody knows", either, many_inputs(3000, 1)),
        Attack("an empty id again and again", any_of, infer_message(MODEL, 1.0) + b"\x1a\x00" * 10_000),
        Attack("a field that is not known", any_of, predict_message() + b"\x7a\x00" * 10_000, PREDICT),
        Attack("empty entries", either, predict_message() + b"\x12\x00" * 10_000, PREDICT),
        Attack("unknown inputs of a repeated text", bad, repeated("u", 30, 8 << 20), PREDICT),
        Attack("one text for very many rows", large, repeated("city", 1, 1 << 40), PREDICT),
        Attack("empty tasks", either, empty, TASKS),
        Attack("empty questions", either, b"\x12\x00" * 10_000, METADATA),
    ]


# ---- Connections that are cut ----


def cut_http(port: int) -> None:
    """Announce a body, send half of it, and reset the connection."""
    connection = connect(port)
    request = predict_request(MODEL, [1.0] * 100)
    connection.sendall(request[: len(request) // 2])
    hang_up(connection)


def leave_before_the_answer(port: int) -> None:
    """Send a whole request and reset the connection."""
    connection = connect(port)
    connection.sendall(predict_request(MODEL, [1.0]))
    hang_up(connection)


def cut_grpc_message(port: int) -> None:
    """Begin a gRPC call, announce a message of 1,000 bytes, send ten of them, and reset the connection."""
    connection = connect(port)
    connection.sendall(grpc_opening() + _frame(0, 0, 1, struct.pack(">BI", 0, 1000) + bytes(10)))
    hang_up(connection)


def cut_frame(port: int) -> None:
    """Send half an HTTP/2 frame, and close."""
    connection = connect(port)
    connection.sendall(grpc_opening() + _frame(0, 1, 1, bytes(100))[:50])
    connection.close()


def garbage_frames(port: int) -> None:
    """Send frames on streams that do not exist, of types that do not exist, until the server hangs up."""
    connection = connect(port)
    try:
        connection.sendall(grpc_opening() + _frame(0xFE, 0xFF, 7, bytes(64)) + _frame(0, 0, 99, bytes(64)))
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass
    except OSError:
        pass  # that is one way of hanging up
    finally:
        connection.close()


CUTS_OF_HTTP: tuple[Callable[[int], None], ...] = (cut_http, leave_before_the_answer)
CUTS_OF_GRPC: tuple[Callable[[int], None], ...] = (cut_grpc_message, cut_frame, garbage_frames)


def _announced(path: str, length: int) -> bytes:
    """The head of a request with a large body that never comes: it need not come to be refused."""
    return f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n".encode() + bytes(
        1000
    )


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """An HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def grpc_opening(method: str = "/inference.GRPCInferenceService/ModelInfer", streams: int = 1) -> bytes:
    """The preface, settings, and the headers of calls.

    Args:
        method: What they call.
        streams: How many; the first is on stream 1.
    """
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    block = b"".join(  # literal header fields, not indexed, without Huffman coding
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in headers.items()
    )
    calls = b"".join(_frame(1, 4, 2 * number + 1, block) for number in range(streams))
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b"") + calls
