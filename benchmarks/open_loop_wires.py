"""HTTP/1.1 and HTTP/2 for the load of ``open_loop``: prepared bytes out, how it ended back."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable

from hpack import Decoder, Encoder

from benchmarks.open_loop import Ended, Load

_READ_BYTES = 1 << 18
_MOST_CONNECTIONS = 4000
_HTTP2_CONNECTIONS = 16
_CONNECT_SECONDS = 5.0

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_CANCEL, _REFUSED_STREAM = 8, 7
_FRAME_BYTES = 16384
_FIRST_WINDOW = 65535
_LARGE = (1 << 31) - 1

_BY_HTTP = {b"200": Ended.ANSWERED, b"503": Ended.REFUSED, b"429": Ended.REFUSED, b"504": Ended.TOLD_LATE}
_BY_GRPC = {"0": Ended.ANSWERED, "14": Ended.REFUSED, "8": Ended.REFUSED, "4": Ended.TOLD_LATE}

Report = Callable[[int, Ended], None]


class Connection:
    """A socket that neither reading nor writing waits for."""

    def __init__(self, port: int, epoll: select.epoll) -> None:
        """Connect."""
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=_CONNECT_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.descriptor = self.socket.fileno()
        self.received = bytearray()
        self.number = -1  # of the request that it carries, over HTTP/1.1
        self._unsent = bytearray()
        self._epoll = epoll
        epoll.register(self.descriptor, select.EPOLLIN)

    def write(self, data: bytes) -> None:
        """Send now, or as soon as there is room."""
        if self._unsent:
            self._unsent += data
            return
        sent = self._try(data)
        if sent < len(data):
            self._unsent += data[sent:]
            self._epoll.modify(self.descriptor, select.EPOLLIN | select.EPOLLOUT)

    def happened(self, events: int) -> bool | None:
        """Write and read what can be; None where there was nothing to read, False at the end."""
        if events & select.EPOLLOUT:
            self.write_rest()
        return self.read() if events & ~select.EPOLLOUT else None

    def write_rest(self) -> None:
        """There is room again."""
        del self._unsent[: self._try(self._unsent)]
        if not self._unsent:
            self._epoll.modify(self.descriptor, select.EPOLLIN)

    def _try(self, data: bytes | bytearray) -> int:
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)  # it is closed: reading tells

    def read(self) -> bool:
        """Read what has come; False at the end."""
        try:
            data = self.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.received += data
        return bool(data)

    def close(self) -> None:
        """End it."""
        self._epoll.unregister(self.descriptor)
        self.socket.close()


class Http1:
    """HTTP/1.1: a connection for each request that is open, kept for the next."""

    def __init__(self, load: Load, epoll: select.epoll, report: Report) -> None:
        """Write the requests beforehand."""
        deadline = (
            f"x-request-timeout-ms: {load.deadline_seconds * 1000:g}\r\n" if load.deadline_seconds else ""
        )
        head = f"POST {load.path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n{deadline}"
        self._requests = [
            f"{head}content-length: {len(body)}\r\n\r\n".encode() + body for body in load.bodies
        ]
        self._port, self._epoll, self._report = load.port, epoll, report
        self._idle: list[Connection] = []
        self._all: dict[int, Connection] = {}
        self._by_number: dict[int, Connection] = {}

    def send(self, number: int) -> None:
        """Send a request."""
        if self._idle:
            connection = self._idle.pop()
        elif len(self._all) < _MOST_CONNECTIONS:
            try:
                connection = Connection(self._port, self._epoll)
            except OSError:
                self._report(number, Ended.FAILED)
                return
            self._all[connection.descriptor] = connection
        else:
            self._report(number, Ended.FAILED)
            return
        connection.number = number
        self._by_number[number] = connection
        connection.write(self._requests[number % len(self._requests)])

    def give_up(self, number: int) -> None:
        """Leave: there is no other way to say so than to end the connection."""
        self._close(self._by_number.pop(number))

    def _close(self, connection: Connection) -> None:
        del self._all[connection.descriptor]
        connection.close()

    def handle(self, descriptor: int, events: int) -> None:
        """Something has happened on a connection."""
        connection = self._all.get(descriptor)
        goes_on = None if connection is None else connection.happened(events)
        if connection is None or goes_on is None:
            return
        number = connection.number
        if number >= 0:
            how = self._answer(connection)
            if how is None and not goes_on:
                how = Ended.FAILED
            if how is not None:
                connection.number = -1
                del self._by_number[number]
                self._report(number, how)
        if not goes_on:
            if connection in self._idle:
                self._idle.remove(connection)
            self._close(connection)
        elif connection.number < 0 and number >= 0:
            self._idle.append(connection)

    def _answer(self, connection: Connection) -> Ended | None:
        """How the request ended; None while its answer is not whole."""
        received = connection.received
        end = received.find(b"\r\n\r\n")
        if end < 0:
            return None
        head = bytes(received[:end]).lower()
        at = head.find(b"\r\ncontent-length:")
        if at >= 0:
            length = int(head[at + 17 :].split(b"\r\n", 1)[0])
            whole = len(received) >= end + 4 + length
        else:
            whole = received.endswith(b"0\r\n\r\n")
        if not whole:
            return None
        received.clear()
        return _BY_HTTP.get(head[9:12], Ended.FAILED)


class _Http2Connection(Connection):
    """One connection of HTTP/2: its streams, and what waits for room in its window."""

    def __init__(self, port: int, epoll: select.epoll) -> None:
        super().__init__(port, epoll)
        self.streams: dict[int, int] = {}
        self.with_message: set[int] = set()
        self.waiting: deque[int] = deque()
        self.window = _FIRST_WINDOW
        self.most_streams = _LARGE
        self.next_stream = 1
        self.ready = self.ends = False
        # No table of headers: each block can be read by itself, and most need not be read at all.
        settings = struct.pack(">HIHIHI", 1, 0, 2, 0, 4, _LARGE)
        self.write(
            _PREFACE + _frame(_SETTINGS, 0, 0, settings) + _frame(_WINDOW, 0, 0, _number(_LARGE - 65535))
        )


class Http2:
    """gRPC over some connections, each call a stream."""

    def __init__(self, load: Load, epoll: select.epoll, report: Report) -> None:
        """Write the requests beforehand, and open the connections.

        Raises:
            RuntimeError: The server does not answer.
        """
        headers = [
            (":method", "POST"), (":scheme", "http"), (":path", load.path), (":authority", "127.0.0.1"),
            ("te", "trailers"), ("content-type", "application/grpc"),
        ]  # fmt: skip
        if load.deadline_seconds:
            headers.append(("grpc-timeout", f"{load.deadline_seconds * 1e6:.0f}u"))
        encoder = Encoder()
        encoder.header_table_size = 0
        self._block = encoder.encode(headers)
        self._bodies = load.bodies
        self._port, self._epoll, self._report = load.port, epoll, report
        self._at: dict[int, _Http2Connection] = {}
        self._all: dict[int, _Http2Connection] = {}
        self._connections = [self._connect() for _ in range(_HTTP2_CONNECTIONS)]
        until = time.perf_counter() + _CONNECT_SECONDS
        while not all(connection.ready for connection in self._connections):
            for descriptor, events in epoll.poll(0.1):
                self.handle(descriptor, events)
            if time.perf_counter() > until:
                raise RuntimeError("the server acknowledges no settings of HTTP/2")

    def _connect(self) -> _Http2Connection:
        connection = _Http2Connection(self._port, self._epoll)
        self._all[connection.descriptor] = connection
        return connection

    def send(self, number: int) -> None:
        """Send a request, or keep it until there is room."""
        place = number % len(self._connections)
        connection = self._connections[place]
        if connection.ends:
            connection = self._connections[place] = self._connect()
        self._at[number] = connection
        connection.waiting.append(number)
        self._flush(connection)

    def _flush(self, connection: _Http2Connection) -> None:
        while connection.waiting and len(connection.streams) < connection.most_streams:
            number = connection.waiting[0]
            if number in self._at:
                body = self._bodies[number % len(self._bodies)]
                if len(body) > connection.window:
                    return
                connection.window -= len(body)
                stream = connection.next_stream
                connection.next_stream += 2
                connection.streams[stream] = number
                connection.write(self._request(stream, body))
            connection.waiting.popleft()

    def _request(self, stream: int, body: bytes) -> bytes:
        parts = [_frame(_HEADERS, _END_HEADERS, stream, self._block)]
        for start in range(0, len(body), _FRAME_BYTES):
            part = body[start : start + _FRAME_BYTES]
            is_last = start + _FRAME_BYTES >= len(body)
            parts.append(_frame(_DATA, _END_STREAM if is_last else 0, stream, part))
        return b"".join(parts)

    def give_up(self, number: int) -> None:
        """Cancel a call."""
        connection = self._at.pop(number)
        for stream, open_number in connection.streams.items():
            if open_number == number:
                del connection.streams[stream]
                connection.with_message.discard(stream)
                connection.write(_frame(_RESET, 0, stream, _number(_CANCEL)))
                break
        self._flush(connection)

    def handle(self, descriptor: int, events: int) -> None:
        """Something has happened on a connection."""
        connection = self._all.get(descriptor)
        goes_on = None if connection is None else connection.happened(events)
        if connection is None or goes_on is None:
            return
        received, start = connection.received, 0
        while len(received) >= start + 9:
            length = int.from_bytes(received[start : start + 3])
            if len(received) < start + 9 + length:
                break
            kind, flags = received[start + 3], received[start + 4]
            stream = int.from_bytes(received[start + 5 : start + 9]) & _LARGE
            self._frame(connection, (kind, flags, stream), received[start + 9 : start + 9 + length])
            start += 9 + length
        del received[:start]
        if not goes_on:
            connection.ends = True
            for number in [*connection.streams.values(), *connection.waiting]:
                self._end(number, Ended.FAILED)
            del self._all[descriptor]
            connection.close()

    def _frame(self, connection: _Http2Connection, head: tuple[int, int, int], payload: bytearray) -> None:
        kind, flags, stream = head
        if kind == _DATA:
            if payload:
                connection.with_message.add(stream)
            if flags & _END_STREAM:
                self._end_stream(connection, stream, b"")
        elif kind == _HEADERS and flags & _END_STREAM:
            self._end_stream(connection, stream, bytes(payload))
        elif kind == _RESET:
            refused = int.from_bytes(payload) == _REFUSED_STREAM
            self._end_at(connection, stream, Ended.REFUSED if refused else Ended.FAILED)
        elif kind == _WINDOW and stream == 0:
            connection.window += int.from_bytes(payload)
            self._flush(connection)
        elif kind == _SETTINGS:
            self._settings(connection, flags, payload)
        elif kind == _PING and not flags & _ACK:
            connection.write(_frame(_PING, _ACK, 0, bytes(payload)))
        elif kind == _GOAWAY:
            connection.ends = True

    def _settings(self, connection: _Http2Connection, flags: int, payload: bytearray) -> None:
        if flags & _ACK:
            connection.ready = True
            return
        said = dict(struct.iter_unpack(">HI", bytes(payload)))
        connection.most_streams = said.get(3, _LARGE)
        if said.get(4, _FIRST_WINDOW) < max(len(body) for body in self._bodies):
            raise RuntimeError(f"a stream's window of {said[4]} bytes is too small for a body")
        connection.write(_frame(_SETTINGS, _ACK, 0, b""))

    def _end_stream(self, connection: _Http2Connection, stream: int, block: bytes) -> None:
        """A call that failed brings no message, so only then its headers are read."""
        if stream in connection.with_message:
            connection.with_message.discard(stream)
            how = Ended.ANSWERED
        elif stream in connection.streams:
            headers = {str(name): str(value) for name, value in _decoded(block)}
            how = _BY_GRPC.get(headers.get("grpc-status", ""), Ended.FAILED)
        else:
            return
        self._end_at(connection, stream, how)

    def _end_at(self, connection: _Http2Connection, stream: int, how: Ended) -> None:
        number = connection.streams.pop(stream, -1)
        if number >= 0:
            self._end(number, how)
            self._flush(connection)

    def _end(self, number: int, how: Ended) -> None:
        if self._at.pop(number, None) is not None:
            self._report(number, how)


def _decoded(block: bytes) -> list[tuple[str, str]]:
    return [(str(name), str(value)) for name, value in Decoder().decode(block)]


def _frame(kind: int, flags: int, stream: int, payload: bytes | bytearray) -> bytes:
    return struct.pack(">BHBBI", len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


def _number(value: int) -> bytes:
    return struct.pack(">I", value)
