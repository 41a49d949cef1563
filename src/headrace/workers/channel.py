"""Length-prefixed messages in both directions over a Unix socket pair."""

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
    """One end of a channel. Messages arrive in the order in which they were sent.

    Attributes:
        closed: Future that is done once either end has closed the connection.
    """

    def __init__(self) -> None:
        """Create an end; ``open`` connects it."""
        self._told: Callable[[Message], object] = lambda _: None
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self, end: socket.socket, told: Callable[[Message], object]) -> None:
        """Connect one end of a socket pair.

        Args:
            end: The socket; owned by the channel from now on.
            told: Called with each message in the event loop's thread; its exceptions are logged.
        """
        self._told = told
        end.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=end)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport; called by asyncio."""
        self._transport = transport  # type: ignore[assignment]  # a stream transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Record that the other end is gone; called by asyncio."""
        self._transport = None
        if not self.closed.done():
            self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Decode and deliver complete messages; called by asyncio."""
        self._received += data
        start = 0
        while len(self._received) - start >= _LENGTH.size and not self._is_closing:
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

    @property
    def _is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def _tell(self, content: bytes) -> None:
        try:
            self._told(decoded(content))
        except msgspec.MsgspecError as error:
            _log.error("a message between the processes of this server is malformed: %s", error)
            self.close()
        except Exception:  # noqa: BLE001 - a failed message must not end the channel
            _log.exception("handling a message between the processes of this server failed")

    def send(self, message: Message) -> None:
        """Send a message; drop it if the connection is closed or the message is too large.

        Abort the connection if the other end has stopped reading.
        """
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
        """Close this end after all queued messages have been sent."""
        if self._transport is not None:
            self._transport.close()
