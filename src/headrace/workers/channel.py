"""A pair of Unix sockets as messages in both directions: each has its length in front, and a largest one."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable

import msgspec

from headrace.workers.messages import LARGEST_MESSAGE_BYTES, Message, decoded, encoded

_log = logging.getLogger(__name__)

_LENGTH = struct.Struct("<I")
_MOST_UNREAD_BYTES = 2 * LARGEST_MESSAGE_BYTES


class Channel(asyncio.Protocol):
    """One end. What it gets is told in the order in which it was sent.

    Attributes:
        closed: Has a result once the other end is gone.
    """

    def __init__(self) -> None:
        """Prepare an end; ``open`` connects it."""
        self._told: Callable[[Message], object] = lambda _: None
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self, end: socket.socket, told: Callable[[Message], object]) -> None:
        """Connect one end of a socket pair.

        Args:
            end: The end; it belongs to the channel from now on.
            told: Gets each message, in the event loop's thread; what it raises is logged.
        """
        self._told = told
        end.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=end)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio's word that it is connected."""
        self._transport = transport  # type: ignore[assignment]  # a stream's

    def connection_lost(self, exc: Exception | None) -> None:
        """Asyncio's word that the other end is gone."""
        self._transport = None
        if not self.closed.done():
            self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Asyncio's word that bytes have come."""
        self._received += data
        start = 0
        while len(self._received) - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._received, start)
            if size > LARGEST_MESSAGE_BYTES:
                _log.error("a message between the processes of this server is too large: %d bytes", size)
                self.close()
                return
            end = start + _LENGTH.size + size
            if len(self._received) < end:
                break
            self._tell(bytes(self._received[start + _LENGTH.size : end]))
            start = end
        del self._received[:start]

    def _tell(self, content: bytes) -> None:
        try:
            self._told(decoded(content))
        except msgspec.MsgspecError as error:
            _log.error("a message between the processes of this server is none: %s", error)
            self.close()
        except Exception:  # noqa: BLE001 - the boundary between processes: one message fails, not the channel
            _log.exception("a message between the processes of this server failed")

    def send(self, message: Message) -> None:
        """Send a message; nobody gets it if the other end is gone. An end that reads nothing is given up."""
        if self._transport is None:
            return
        content = encoded(message)
        if len(content) > LARGEST_MESSAGE_BYTES:
            _log.error("a message between the processes of this server is too large: %d bytes", len(content))
            return
        self._transport.write(_LENGTH.pack(len(content)) + content)
        if self._transport.get_write_buffer_size() > _MOST_UNREAD_BYTES:
            self._transport.abort()

    def close(self) -> None:
        """Send what is to be sent, and close this end."""
        if self._transport is not None:
            self._transport.close()
