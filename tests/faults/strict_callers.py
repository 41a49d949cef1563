"""Callers that keep their connections and count strictly: answered, told that it was not processed, or lost.

A request is lost when its caller has sent it, all or in part, into a connection that nobody had told it is
closing, and gets no answer. It is refused when the caller knows that nothing was computed and may ask
elsewhere: no connection could be made, or HTTP/2 said which streams were not processed.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import grpc

from tests.faults.still_serves import MODEL, grpc_calls, infer, predict_request
from tests.running_server import RunningServer
from tests.waiting import seconds_left

_SECONDS = 30.0
_EXPECTED = b'"predictions":[2.0]'


class Tally:
    """What became of the requests of many callers.

    Attributes:
        answered: How many were answered well.
        told: How many callers' connections ended with a word: ``Connection: close``, or GOAWAY.
        refused: How many were not processed, and their callers know it.
        lost: What happened to the others.
        ended: Set when callers shall send no more.
    """

    def __init__(self) -> None:
        self.answered = self.told = self.refused = 0
        self.lost: list[str] = []
        self.ended = threading.Event()
        self._lock = threading.Lock()

    def count(self, *, answered: int = 0, told: int = 0, refused: int = 0, lost: str = "") -> None:
        with self._lock:
            self.answered += answered
            self.told += told
            self.refused += refused
            if lost:
                self.lost.append(lost)

    def __repr__(self) -> str:
        return (
            f"{self.answered} answered, {self.told} connections ended with a word, {self.refused} refused, "
            f"{len(self.lost)} lost"
        )


class Callers:
    """Threads of one kind of caller, which go on until the server is gone."""

    def __init__(
        self,
        kind: Callable[[RunningServer, Tally, float], None],
        server: RunningServer,
        many: int,
        pause_seconds: float = 0.0,
    ) -> None:
        self.tally = Tally()
        self._threads = [
            threading.Thread(target=kind, args=(server, self.tally, pause_seconds)) for _ in range(many)
        ]

    def __enter__(self) -> Tally:
        for thread in self._threads:
            thread.start()
        return self.tally

    def end(self) -> None:
        """Have them send no more; returns when none does, so that what ends then takes nothing from them."""
        self.tally.ended.set()
        for thread in self._threads:
            thread.join(_SECONDS)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.tally.ended.set()
        for thread in self._threads:
            thread.join(_SECONDS)
        assert not any(thread.is_alive() for thread in self._threads), "a caller waits for ever"


def _connected(port: int) -> socket.socket | None:
    """A connection; None once nobody listens any more."""
    try:
        connection = socket.create_connection(("127.0.0.1", port), timeout=_SECONDS)
    except (ConnectionRefusedError, TimeoutError):
        return None
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


# ---- REST over HTTP/1.1 ----


def http1(server: RunningServer, tally: Tally, pause_seconds: float) -> None:
    """One request after the other on a connection that is kept until an answer says that it ends."""
    request = predict_request(MODEL, [1.0])
    while not tally.ended.is_set() and (connection := _connected(server.http_port)) is not None:
        with connection, connection.makefile("rb") as reader:
            while not tally.ended.is_set():
                try:
                    connection.sendall(request)
                    closes = _answer(reader)
                except (OSError, ValueError) as error:
                    tally.count(lost=f"HTTP/1.1: {error!r}")
                    break
                tally.count(answered=1, told=closes)
                if closes:
                    break
                time.sleep(pause_seconds)
    tally.count(refused=not tally.ended.is_set())


def _answer(reader: socket.SocketIO) -> bool:  # type: ignore[type-arg]
    """Read an answer; whether it says that the connection ends."""
    status = reader.readline()
    if not status:
        raise ValueError("the connection was closed without an answer")
    length, closes = 0, False
    while line := reader.readline().strip().lower():
        name, _, value = line.partition(b":")
        if name == b"content-length":
            length = int(value)
        closes = closes or (name == b"connection" and value.strip() == b"close")
    body = reader.read(length)
    if status.split()[1] != b"200" or _EXPECTED not in body.replace(b" ", b""):
        raise ValueError(status, body)
    return closes


# ---- REST over HTTP/2 ----

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_REFUSED_STREAM = 7
_STATUS_200 = 0x88
_STREAMS_AT_ONCE = 3


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _text(name: bytes, value: str) -> bytes:
    return name + bytes([len(value)]) + value.encode()


class _Http2:
    """One connection with some streams open at any time; HPACK without tables or Huffman."""

    def __init__(self, connection: socket.socket, tally: Tally, pause_seconds: float) -> None:
        self._connection = connection
        self._reader = connection.makefile("rb")
        self._tally = tally
        self._pause_seconds = pause_seconds
        self._next = 1
        self._open: set[int] = set()
        self._last: int | None = None
        body = json.dumps({"instances": [1.0]})
        self._head = b"\x83\x86" + _text(b"\x04", f"/v1/models/{MODEL}:predict") + _text(b"\x01", "localhost")
        self._body = body.encode()

    def run(self) -> None:
        """Ask until the server says that it goes, and read the answers to what it has taken."""
        try:
            self._connection.sendall(_PREFACE + _frame(_SETTINGS, 0, 0))
            deadline = time.monotonic() + seconds_left()
            while True:
                if time.monotonic() > deadline:
                    raise TimeoutError("the server neither answers nor closes the connection")
                while (
                    self._last is None
                    and not self._tally.ended.is_set()
                    and len(self._open) < _STREAMS_AT_ONCE
                ):
                    self._ask()
                if not self._open:
                    return
                self._read()
        except (OSError, ValueError) as error:
            self._read_the_rest()
            for stream in self._open:
                self._tally.count(lost=f"HTTP/2 stream {stream}, last {self._last}: {error!r}")

    def _ask(self) -> None:
        stream, self._next = self._next, self._next + 2
        self._open.add(stream)
        self._connection.sendall(
            _frame(_HEADERS, _END_HEADERS, stream, self._head)
            + _frame(_DATA, _END_STREAM, stream, self._body)
        )

    def _read(self) -> None:
        head = self._reader.read(9)
        if len(head) < 9:
            raise ValueError("the connection was closed")
        kind, flags, stream = struct.unpack(">BBI", head[3:])
        payload = self._reader.read(int.from_bytes(head[:3], "big"))
        if kind == _GOAWAY:
            self._last = int.from_bytes(payload[:4], "big")
            refused = {one for one in self._open if one > self._last}
            self._open -= refused
            self._tally.count(told=1, refused=len(refused))
        elif kind == _RESET and stream in self._open:
            if int.from_bytes(payload, "big") != _REFUSED_STREAM:
                raise ValueError("reset", payload)
            self._open.discard(stream)
            self._tally.count(refused=1)
        elif kind == _SETTINGS and not flags & _ACK:
            self._connection.sendall(_frame(_SETTINGS, _ACK, 0))
        elif kind == _PING and not flags & _ACK:
            self._connection.sendall(_frame(_PING, _ACK, 0, payload))
        elif kind == _HEADERS and payload[0] != _STATUS_200:
            raise ValueError("not 200", payload)
        elif kind == _DATA:
            with suppress(OSError):  # what counts is what can be read
                self._connection.sendall(_frame(_WINDOW, 0, 0, struct.pack(">I", max(1, len(payload)))))
            if flags & _END_STREAM:
                if _EXPECTED not in payload.replace(b" ", b""):
                    raise ValueError(payload)
                self._open.discard(stream)
                self._tally.count(answered=1)
                time.sleep(self._pause_seconds)

    def _read_the_rest(self) -> None:
        """What had arrived before writing failed."""
        deadline = time.monotonic() + seconds_left()
        with suppress(OSError, ValueError):
            while self._open and time.monotonic() < deadline:
                self._read()


def http2(server: RunningServer, tally: Tally, pause_seconds: float) -> None:
    """Three requests at any time on a connection that is kept until GOAWAY."""
    while not tally.ended.is_set() and (connection := _connected(server.http_port)) is not None:
        with connection:
            _Http2(connection, tally, pause_seconds).run()


# ---- gRPC ----


def grpc_unary(server: RunningServer, tally: Tally, pause_seconds: float) -> None:
    """One call after the other, by a client that makes connections as it needs them."""
    with grpc_calls(server) as call:
        while not tally.ended.is_set():
            try:
                assert infer(call, MODEL, 1.0, wait_for_ready=False) == [2.0]
            except grpc.RpcError as error:
                if "failed to connect" in error.details():
                    tally.count(refused=1)
                    return
                tally.count(lost=f"gRPC: {error.code().name}: {error.details()}")
            else:
                tally.count(answered=1)
                time.sleep(pause_seconds)
