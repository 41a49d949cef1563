"""Callers who behave badly, on connections of their own: what they do get must be right all the same."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping

from benchmarks.soak import wire
from benchmarks.soak.asking import Asking, Prepared
from benchmarks.soak.judging import Answered, Failed, Refused, Reply
from benchmarks.soak.plan import ISOLATED, Draw, Step
from benchmarks.soak.servers import SoakServer
from benchmarks.soak.transports import CODES, SILENT_SECONDS, error_of

PROTOCOL = "rude REST"
_READ_BYTES = 1024
_SMALL_BUFFER_BYTES = 4096
_HEAD_BYTES = 65536
_BYTES_AT_ONCE = 8
"""So many bytes, each sent by itself, follow one another without a pause."""
_FIRST_BYTES = 48
"""And the first so many: a connection that has not said within 15 seconds what it speaks is closed."""


class Abuse:
    """Opens connections to the servers and misuses them."""

    def __init__(self, servers: Mapping[str, SoakServer], asking: Asking) -> None:
        """Keep whom to misuse.

        Args:
            servers: By name.
            asking: Makes the questions and judges the answers.
        """
        self._servers = servers
        self._asking = asking

    async def do(self, step: Step) -> None:
        """Do one of them, on some connections at the same time."""
        act: Callable[[_Connection, float, int], Awaitable[None]]
        act, many, rows = {
            "slow readers": (_read_slowly, 4, 1000),
            "half requests": (_send_half, 10, 7),
            "cut connections": (_hang_up, 20, 100),
            "single bytes": (_send_bytes, 3, 2),
        }[step.kind]
        model = ISOLATED if step.kind == "slow readers" else ("counter", "linear", "clicks")[step.choice % 3]
        draw = Draw(model, rows, numbered=False, flaw="", pause_seconds=0, form=step.choice)
        await asyncio.gather(*(self._one(step, draw, act, number) for number in range(many)))

    async def _one(
        self, step: Step, draw: Draw, act: Callable[[_Connection, float, int], Awaitable[None]], number: int
    ) -> None:
        prepared = self._asking.prepare((step.target, PROTOCOL), draw)
        connection = _Connection(prepared, self._asking)
        try:
            async with asyncio.timeout(SILENT_SECONDS):
                await connection.open(self._servers[step.target].http_port)
                await act(connection, step.seconds, step.choice + number)
        except TimeoutError:
            connection.end(Failed("silent", f"{step.kind}: nothing for {SILENT_SECONDS:g} s"))
        except (OSError, asyncio.IncompleteReadError) as error:
            connection.end(Failed("lost" if connection.is_open else "unsent", f"{step.kind}: {error!r}"))
        finally:
            connection.close()


class _Connection:
    """One connection, for one question."""

    def __init__(self, prepared: Prepared, asking: Asking) -> None:
        self._prepared = prepared
        self._asking = asking
        self._writer: asyncio.StreamWriter | None = None
        asked = prepared.asked
        body = wire.tfs_json(asked.tensors, by_row=bool(asked.form % 2))
        head = f"POST {wire.tfs_path(asked.model, asked.version)} HTTP/1.1\r\nhost: localhost\r\n"
        self.request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body

    @property
    def is_open(self) -> bool:
        return self._writer is not None

    async def open(self, port: int) -> None:
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER_BYTES)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets
        made.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
        except OSError:
            made.close()
            raise
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader, self._writer = await asyncio.open_connection(sock=made, limit=_HEAD_BYTES)

    async def send(self, content: bytes) -> None:
        assert self._writer is not None
        if self._writer.is_closing():
            raise ConnectionResetError("the server has closed it")
        self._writer.write(content)
        await self._writer.drain()

    async def answer(self, pause_seconds: float = 0.0) -> None:
        """Read the answer, in small pieces with pauses between them if that is wanted."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        status = int(head[0].split()[1])
        length = next(int(line.partition(b":")[2]) for line in head if line.startswith(b"content-length:"))
        body = b""
        while len(body) < length:
            if not (piece := await self._reader.read(_READ_BYTES if pause_seconds else _HEAD_BYTES)):
                raise asyncio.IncompleteReadError(body, length)
            body += piece
            await asyncio.sleep(pause_seconds)
        if status == 200:  # OK
            self.end(Answered(wire.of_tfs_json(body, self._prepared.asked.outputs)))
        else:
            self.end(Refused(CODES.get(status, str(status)), error_of(body)))

    def end(self, reply: Reply) -> None:
        self._asking.close(self._prepared, reply)

    def cut(self) -> None:
        """Close it with a reset, as a caller that crashes."""
        assert self._writer is not None
        self._writer.transport.abort()
        self._asking.cut(self._prepared)

    def close(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.transport.abort()


async def _read_slowly(connection: _Connection, seconds: float, _: int) -> None:
    await connection.send(connection.request)
    await asyncio.sleep(seconds)
    await connection.answer(pause_seconds=seconds / 100)


async def _send_half(connection: _Connection, seconds: float, number: int) -> None:
    """Half of a request, and later the rest; or never."""
    middle = len(connection.request) * (1 + number % 7) // 8
    await connection.send(connection.request[:middle])
    await asyncio.sleep(seconds)
    if number % 2:
        connection.cut()
        return
    await connection.send(connection.request[middle:])
    await connection.answer()


async def _hang_up(connection: _Connection, _: float, number: int) -> None:
    await connection.send(connection.request)
    await asyncio.sleep(number % 5 / 1000)
    connection.cut()


async def _send_bytes(connection: _Connection, seconds: float, _: int) -> None:
    for at, byte in enumerate(connection.request):
        await connection.send(bytes([byte]))
        if at % _BYTES_AT_ONCE == 0 and at >= _FIRST_BYTES:
            await asyncio.sleep(seconds * _BYTES_AT_ONCE / len(connection.request))
    await connection.answer()
