"""What is sent to the door: one small request of each kind that once stopped a server, without any right."""

from __future__ import annotations

import gzip
import json
import socket
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc
import numpy as np

from tests.faults.heavy import (
    INFER,
    PREDICT,
    REGRESS,
    context_of_many,
    predict_message,
    regress_of,
    repeated,
)
from tests.faults.hostile import grpc_opening
from tests.faults.neighbours import Connection, sending
from tests.faults.still_serves import MODEL, connect, http_request, infer_message, predict_request
from tests.faults.worst_bodies import SIZE, WORST, Worst
from tests.running_server import RunningServer

MEGABYTE = 1 << 20
MOST_SECONDS = 60.0
"""Where a server has not answered after so long, it is ended."""

_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
_OPEN_SECONDS = 3.0
_CLICK_SECONDS = 2.0
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

Call = Callable[[RunningServer], str]
"""Sends it, and says what was answered."""


@dataclass(frozen=True)
class Line:
    """One line of the table.

    Attributes:
        wire_bytes: How much is sent.
        call: Sends it.
        times: How often it is sent.
    """

    wire_bytes: int
    call: Call
    times: int = 3


def hostile_lines() -> Iterator[tuple[str, Callable[[], Line]]]:
    """All kinds by their names; each is made when it is its turn, for some are large."""
    for name, method, message in (
        ("ModelInfer, empty ids", INFER, infer_message(MODEL, 1.0) + b"\x1a\x00" * MEGABYTE),
        ("Predict, unknown fields", PREDICT, predict_message() + b"\x7a\x00" * MEGABYTE),
    ):
        yield from _message(
            f"{name}, 4 MiB", method, lambda message=message: message + message[-2:] * MEGABYTE
        )
        for how, compress in (("", False), (", gzip", True)):
            yield from _message(
                f"{name}, 60 MiB{how}",
                method,
                lambda message=message: message + message[-2:] * (29 * MEGABYTE),
                compress,
            )
    quotes = {one.name: one for one in WORST}["escaped quotes in deep lists"]
    yield from _http("65 lists, then escaped quotes, 64 KB", quotes.request)
    yield from _http("65 lists, then escaped quotes, 128 KB", lambda: quotes.request(2 * SIZE))
    yield from _http("20,000 inputs, the last two of one name", lambda: _many_inputs(20_000))
    yield from _message(
        "Predict, 30 unknown inputs of a repeated text", PREDICT, lambda: repeated("u", 30, 8 << 20)
    )
    yield from _http(":regress, 50 MB of context for 500", lambda: _context(50_000_000, 500))
    yield from _message(
        "Regress, 50 MB of context for 500", REGRESS, lambda: context_of_many(50_000_000, 500, "ages")
    )
    yield from _message(
        "62 MiB of empty Examples", REGRESS, lambda: regress_of(b"\x0a\x00" * (31 * MEGABYTE), "ages")
    )
    lists = Worst("", "/v1/models/pair:predict", b'{"inputs":{"a":[', b"[],", b'],"b":[1]}}')
    yield from _http("60 MiB of empty lists", lambda: lists.request(60 * MEGABYTE))
    yield from _http("60 MiB of empty lists, gzip", lambda: lists.packed(60 * MEGABYTE))
    yield from _message("15M rows in one request", INFER, lambda: infer_message(MODEL, *np.zeros(15_000_000)))
    yield "NaN for a click model, 4 connections", lambda: Line(len(_clicks("NaN")), _nan, 1)
    for connections, streams, method in ((50, 256, INFER), (50, 1000, INFER), (180, 256, _STREAM)):
        yield (
            f"{connections} × {streams:,} open {method.rsplit('/', 1)[1]}",
            lambda connections=connections, streams=streams, method=method: _streams(
                connections, grpc_opening(method, streams)
            ),
        )
    yield from _http("a name of 20 MiB", lambda: _name(20 * MEGABYTE))
    yield from _http("a timeout of 400 digits", lambda: _timeout(400))
    yield "1,024 invented paths", lambda: Line(1024 * len(_invented(0)), _paths, 1)
    zeros = f"/v1/models/{MODEL}:predict"
    yield from _http(
        "60 MiB of zeros, gzip",
        lambda: http_request(zeros, gzip.compress(bytes(60 * MEGABYTE)), "content-encoding: gzip"),
    )


def http_call(request: bytes) -> Call:
    """Send an HTTP request; say its status, and the answer's size where that is large."""

    def call(server: RunningServer) -> str:
        connection = Connection(server.http_port, MOST_SECONDS)
        status = connection.send(request)
        connection.close()
        size = connection.answered_bytes
        large = status >= 400 and size > MEGABYTE
        return f"{status or 'none'}" + (f", a body of {size / MEGABYTE:.0f} MiB" if large else "")

    return call


def grpc_call(method: str, message: bytes, compress: bool = False) -> Call:
    """Send a message; say the name of its status."""
    how = grpc.Compression.Gzip if compress else grpc.Compression.NoCompression

    def call(server: RunningServer) -> str:
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", _OPTIONS) as channel:
            try:
                channel.unary_unary(method)(message, timeout=MOST_SECONDS, compression=how)
            except grpc.RpcError as error:
                return str(error.code().name)
        return "OK"

    return call


Kind = Iterator[tuple[str, Callable[[], Line]]]


def _http(name: str, request: Callable[[], bytes]) -> Kind:
    def made() -> Line:
        content = request()
        return Line(len(content), http_call(content))

    yield name, made


def _message(name: str, method: str, message: Callable[[], bytes], compress: bool = False) -> Kind:
    def made() -> Line:
        content = message()
        size = len(gzip.compress(content, 6)) if compress else len(content)
        return Line(size, grpc_call(method, content, compress))

    yield name, made


# ---- JSON ----


def _many_inputs(count: int) -> bytes:
    names = [*(f"x{index}" for index in range(count - 2)), "same", "same"]
    inputs = [{"name": name, "datatype": "FP32", "shape": [1], "data": [1]} for name in names]
    return http_request(f"/v2/models/{MODEL}/infer", json.dumps({"inputs": inputs}).encode())


def _context(length: int, examples: int) -> bytes:
    body = {"context": {"city": "x" * length, "age": 1.0}, "examples": [{}] * examples}
    return http_request("/v1/models/ages:regress", json.dumps(body).encode())


def _name(length: int) -> bytes:
    body = {"signature_name": "a" * length, "instances": [1.0]}
    return http_request(f"/v1/models/{MODEL}:predict", json.dumps(body).encode())


def _timeout(digits: int) -> bytes:
    one = b'{"name":"x","datatype":"FP32","shape":[1],"data":[1]}'
    body = b'{"inputs":[' + one + b'],"parameters":{"timeout":' + b"9" * digits + b"}}"
    return http_request(f"/v2/models/{MODEL}/infer", body)


# ---- Paths: is a known one as quick after 1,024 that nobody knows? ----


def _invented(number: int) -> bytes:
    return http_request(f"/v1/models/invented{number}:predict", b"{}")


def _paths(server: RunningServer) -> str:
    connection = Connection(server.http_port, MOST_SECONDS)
    before = _middle_seconds(connection, "half_plus_two")
    statuses = Counter(connection.send(_invented(number)) for number in range(1024))
    after = _middle_seconds(connection, "half_plus_two/versions/1")
    connection.close()
    said = "/".join(str(status) for status in sorted(statuses))
    return f"{said}; a known path {before * 1e6:.0f} µs, first asked afterwards {after * 1e6:.0f} µs"


def _middle_seconds(connection: Connection, model: str) -> float:
    request, took = predict_request(model, [1.0]), []
    for _ in range(1000):
        started = time.perf_counter()
        connection.send(request)
        took.append(time.perf_counter() - started)
    return statistics.median(took)


# ---- Click models: what is wrong with one row, and its neighbours in the batch ----


def _clicks(price: str) -> bytes:
    body = '{"instances":[{"ad":3,"price":' + price + "}]}"
    return http_request("/v1/models/clicks:predict", body.encode())


def _nan(server: RunningServer) -> str:
    beside_good = _throughput(server, _clicks("1.0"))
    beside_bad = _throughput(server, _clicks("NaN"))
    status = Connection(server.http_port).send(_clicks("NaN"))
    return f"{status}; neighbours get {beside_bad / beside_good:.2f} of what they get beside good rows"


def _throughput(server: RunningServer, others: bytes) -> float:
    """How many good rows are answered a second on eight connections, beside others on four."""
    answered: Counter[int] = Counter()

    def ask() -> None:
        connection, request = Connection(server.http_port), _clicks("1.0")
        while time.monotonic() < until:
            answered[connection.send(request)] += 1
        connection.close()

    with sending(server.http_port, [others]):
        time.sleep(1.0)  # until the other process has begun
        until = time.monotonic() + _CLICK_SECONDS
        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return answered[200] / _CLICK_SECONDS


# ---- Streams that are opened and never used ----


def _streams(connections: int, opening: bytes) -> Line:
    def call(server: RunningServer) -> str:
        opened = []
        for _ in range(connections):
            one = connect(server.grpc_port)
            opened.append(one)
            one.sendall(opening)
        time.sleep(_OPEN_SECONDS)
        ended = sum(_resets(one) for one in opened)
        for one in opened:
            one.close()
        return f"open; {ended:,} streams ended"

    return Line(connections * len(opening), call, 1)


def _resets(connection: socket.socket) -> int:
    """How many of a connection's streams the server has ended so far."""
    received, at = b"", 0
    ended = set[bytes]()  # by their numbers: an answer that ends a stream may be followed by a reset
    connection.setblocking(False)
    try:
        while chunk := connection.recv(1 << 18):
            received += chunk
    except OSError:
        pass  # nothing more, or closed
    while at + 9 <= len(received):
        size, kind, flags = int.from_bytes(received[at : at + 3]), received[at + 3], received[at + 4]
        if kind == 3 or (kind in (0, 1) and flags & 1):
            ended.add(received[at + 5 : at + 9])
        at += 9 + size
    return len(ended)
