"""gRPC load from one process that writes HTTP/2's frames itself: thousands of bodies in turns.

h2load sends one body a process, and its timers are late by up to a millisecond. This one sleeps until a
tenth of a millisecond before a call is due, and looks at the clock from then on. It says when each call was
due, and when it was sent.
"""

from __future__ import annotations

import argparse
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.models import ROOT
from benchmarks.processes import cores, on_core

CONNECTIONS = 4
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_HEAD_BYTES, _FRAME_BYTES = 9, 16384
_WINDOW_BYTES = 2**30 - 1
_FIRST_WINDOW_BYTES = 65535
_CONCURRENT, _STREAM_WINDOW, _LARGEST_FRAME = 3, 4, 5
_BUFFER_BYTES = 2**20
_LOOKING_SECONDS = 1e-4
_LIMIT_SECONDS = 120


@dataclass(frozen=True)
class Seen:
    """What became of the calls; times in seconds.

    Attributes:
        late: How long after it was due each call was sent; 0 in a closed loop.
        spent: How long it took from when it was due to the end of its answer.
        good: How many answers were as long as a good one.
        seconds: From the first call to the last answer.
        busy: The part of its core that the load used meanwhile.
    """

    late: npt.NDArray[np.float64]
    spent: npt.NDArray[np.float64]
    good: int
    seconds: float
    busy: float


def calls(
    folder: Path, port: int, method: str, answer_bytes: int, seconds: float, how: Sequence[str]
) -> Seen:
    """Load a server from the load's core.

    Args:
        folder: Where framed bodies lie one after the other in the file ``bodies``; gets what was seen.
        port: The server's gRPC port.
        method: What is called.
        answer_bytes: The size of a good answer with its frame.
        seconds: How long calls are made.
        how: The other options of this program.

    Raises:
        RuntimeError: It failed.
    """
    program = [sys.executable, "-m", "benchmarks.frames", str(folder), method, "--port", str(port)]
    command = on_core(cores()[1], [*program, "--seconds", str(seconds), *how])
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=_LIMIT_SECONDS + seconds, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the load ended with {done.returncode}:\n{done.stderr[-1000:]}")
    due, sent, ended, received = np.load(folder / "seen.npy")
    good = int((received == answer_bytes).sum())
    seconds = float(ended.max() - sent.min())
    return Seen(sent - due, ended - due, good, seconds, float(done.stdout) / seconds)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header_block(method: str, port: int) -> bytes:
    """The headers of a call, each written out: no table, no Huffman code."""
    block = b"\x83\x86"  # POST and http, of the static table
    for name, value in (
        (":path", method),
        (":authority", f"127.0.0.1:{port}"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ):
        one, other = name.encode(), value.encode()
        block += b"\x00" + bytes([len(one)]) + one + bytes([len(other)]) + other
    return block


@dataclass(slots=True)
class _Call:
    due: float
    sent: float
    ended: float = 0.0
    received: int = 0


@dataclass
class Connection:
    """A connection, which sends what the server has room for and counts what comes.

    Attributes:
        frame_bytes: The largest frame to send, if the server takes such frames.
    """

    socket: socket.socket
    block: bytes
    frame_bytes: int = _FRAME_BYTES
    ended: int = 0
    calls: dict[int, _Call] = field(default_factory=dict)
    _all: list[_Call] = field(default_factory=list)
    _stream: int = -1
    _waiting: deque[tuple[int, memoryview]] = field(default_factory=deque)
    _room: int = _FIRST_WINDOW_BYTES
    _rooms: dict[int, int] = field(default_factory=dict)
    _first_room: int = _FIRST_WINDOW_BYTES
    _largest: int = _FRAME_BYTES
    _buffer: bytearray = field(default_factory=lambda: bytearray(_BUFFER_BYTES))
    _kept: int = 0
    _skipped: int = 0
    _taken: int = 0

    def open(self) -> None:
        """Say hello, and give the server all the room there is."""
        windows = struct.pack(">HI", _STREAM_WINDOW, _WINDOW_BYTES)
        more = struct.pack(">I", _WINDOW_BYTES - _FIRST_WINDOW_BYTES)
        self.socket.sendall(_PREFACE + frame(_SETTINGS, 0, 0, windows) + frame(_WINDOW, 0, 0, more))

    def call(self, body: bytes, due: float) -> None:
        """Send a call, or as much of it as there is room for."""
        self._stream += 2
        stream = self._stream
        self._rooms[stream] = self._first_room
        one = _Call(due, time.perf_counter())
        self.calls[stream] = one
        self._all.append(one)
        head = frame(_HEADERS, _END_HEADERS, stream, self.block)
        if not self._waiting and len(body) <= min(self._largest, self._room, self._first_room):
            self._room -= len(body)
            self.socket.sendall(head + frame(_DATA, _END_STREAM, stream, body))
            return
        self.socket.sendall(head)
        self._waiting.append((stream, memoryview(body)))
        self._send_waiting()

    def _send_waiting(self) -> None:
        while self._waiting:
            stream, rest = self._waiting[0]
            size = min(len(rest), self._largest, self._room, self._rooms.get(stream, 0))
            if size <= 0 and stream in self._rooms:
                return
            self._room -= size
            self._rooms[stream] = self._rooms.get(stream, 0) - size
            last = size == len(rest)
            self.socket.sendall(frame(_DATA, _END_STREAM * last, stream, bytes(rest[:size])))
            self._waiting[0] = (stream, rest[size:])
            if last:
                self._waiting.popleft()

    def receive(self) -> int:
        """Take what has come.

        Returns:
            How many calls have ended with it.

        Raises:
            ConnectionError: The server has closed it.
        """
        before, buffer = self.ended, self._buffer
        count = self.socket.recv_into(memoryview(buffer)[self._kept :])
        if not count:
            raise ConnectionError("the server closed the connection")
        at, end = 0, self._kept + count
        while True:
            step = min(self._skipped, end - at)
            at, self._skipped = at + step, self._skipped - step
            if self._skipped or end - at < _HEAD_BYTES:
                break
            word, kind, flags, stream = struct.unpack_from(">IBBI", b"\0" + buffer[at : at + _HEAD_BYTES])
            if kind > _HEADERS and end - at < _HEAD_BYTES + word:
                break
            payload = bytes(buffer[at + _HEAD_BYTES : at + _HEAD_BYTES + word]) if kind > _HEADERS else b""
            at += _HEAD_BYTES
            self._skipped = word
            self._frame((kind, flags, stream), word, payload)
        buffer[: end - at] = buffer[at:end]
        self._kept = end - at
        return self.ended - before

    def _frame(self, head: tuple[int, int, int], size: int, payload: bytes) -> None:
        kind, flags, stream = head
        if kind == _DATA:
            self.calls[stream].received += size
            self._taken += size
            if self._taken > _WINDOW_BYTES // 2:
                self.socket.sendall(frame(_WINDOW, 0, 0, struct.pack(">I", self._taken)))
                self._taken = 0
        elif kind == _PING and not flags & _ACK:
            self.socket.sendall(frame(_PING, _ACK, 0, payload))
        elif kind == _SETTINGS and not flags & _ACK:
            self._settings(payload)
        elif kind == _WINDOW:
            more = int.from_bytes(payload, "big")
            if stream == 0:
                self._room += more
            elif stream in self._rooms:
                self._rooms[stream] += more
            self._send_waiting()
        elif kind == _GOAWAY:
            raise ConnectionError(f"the server says goodbye: {payload[8:]!r}")
        if kind == _RESET or (kind <= _HEADERS and flags & _END_STREAM):
            self.calls.pop(stream).ended = time.perf_counter()
            del self._rooms[stream]
            self.ended += 1

    def _settings(self, payload: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", payload):
            if name == _STREAM_WINDOW:
                for stream in self._rooms:
                    self._rooms[stream] += value - self._first_room
                self._first_room = value
            elif name == _LARGEST_FRAME:
                self._largest = min(value, self.frame_bytes)
        self.socket.sendall(frame(_SETTINGS, _ACK, 0))
        self._send_waiting()

    def seen(self) -> list[tuple[float, float, float, int]]:
        """All calls, in the order of their sending."""
        return [(one.due, one.sent, one.ended, one.received) for one in self._all]


class Load:
    """Connections to a server, and bodies that go over them in turns."""

    def __init__(self, port: int, method: str, bodies: Sequence[bytes], frame_bytes: int) -> None:
        """Connect."""
        self.connections = []
        self._bodies: Iterator[bytes] = cycle(bodies)
        self._selector = selectors.SelectSelector()  # of microseconds; epoll's are milliseconds
        for _ in range(CONNECTIONS):
            one = socket.create_connection(("127.0.0.1", port), timeout=_LIMIT_SECONDS)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(one, header_block(method, port), frame_bytes)
            connection.open()
            self._selector.register(one, selectors.EVENT_READ, connection)
            self.connections.append(connection)

    def _wait(self, seconds: float | None) -> Iterator[tuple[Connection, int]]:
        for key, _ in self._selector.select(seconds):
            yield key.data, key.data.receive()

    @property
    def _under_way(self) -> int:
        return sum(len(one.calls) for one in self.connections)

    def closed_loop(self, in_flight: int, seconds: float) -> None:
        """Each answer is followed by the next call over its connection."""
        end = time.perf_counter() + seconds
        for number in range(in_flight):
            self.connections[number % CONNECTIONS].call(next(self._bodies), time.perf_counter())
        while self._under_way:
            for connection, ended in self._wait(_LIMIT_SECONDS):
                if (now := time.perf_counter()) < end:
                    for _ in range(ended):
                        connection.call(next(self._bodies), now)

    def open_loop(self, per_second: float, seconds: float, seed: int) -> None:
        """Calls come at random moments, whatever the answers do."""
        random = np.random.default_rng(seed)
        gaps = random.exponential(1 / per_second, int(per_second * seconds))
        moments = (time.perf_counter() + 0.05 + np.cumsum(gaps)).tolist()
        connections = cycle(self.connections)
        for due in moments:
            left = 1.0
            while left > 0:  # once even where it is due, so that answers are taken
                left = due - time.perf_counter()
                for _ in self._wait(max(0.0, left - _LOOKING_SECONDS)):
                    pass
            next(connections).call(next(self._bodies), due)
        while self._under_way:
            for _ in self._wait(_LIMIT_SECONDS):
                pass


def framed(joined: bytes) -> list[bytes]:
    """The bodies of a file: each says its size."""
    found, at = [], 0
    while at < len(joined):
        stop = at + 5 + int.from_bytes(joined[at + 1 : at + 5], "big")
        found.append(joined[at:stop])
        at = stop
    return found


def main() -> None:
    """Make the calls, write down what was seen, and print the processor time of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("method")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--in-flight", type=int, help="a closed loop")
    parser.add_argument("--per-second", type=float, help="an open loop")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--frame-bytes", type=int, default=_FRAME_BYTES, help="the largest frame to send")
    options = parser.parse_args()
    bodies = framed((options.folder / "bodies").read_bytes())
    load = Load(options.port, options.method, bodies, options.frame_bytes)
    began = time.process_time()
    if options.in_flight:
        load.closed_loop(options.in_flight, options.seconds)
    else:
        load.open_loop(options.per_second, options.seconds, options.seed)
    print(time.process_time() - began)
    seen = [one for connection in load.connections for one in connection.seen()]
    np.save(options.folder / "seen.npy", np.array(seen).T)


if __name__ == "__main__":
    main()
