"""Exchange length-prefixed messages and descriptors with another server over a Unix socket."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from headrace.base.errors import HeadraceError, Unavailable
from headrace.server.handover.messages import LARGEST_MESSAGE_BYTES, Message, decoded, encoded

ANSWER_SECONDS = 10.0
"""Timeout for one answer of the other server."""

_LENGTH = struct.Struct("<I")
_PEER = struct.Struct("3i")
_DESCRIPTORS_AT_ONCE = 64  # Linux takes at most 253
_ONE = b"d"


class Conversation:
    """One end of the connection. Every failure is raised as ``Unavailable``."""

    def __init__(self, end: socket.socket) -> None:
        """Take over a connected socket.

        Args:
            end: The socket; owned by the conversation from now on.
        """
        end.setblocking(False)
        self._end = end
        self._loop = asyncio.get_running_loop()

    @property
    def user(self) -> int:
        """The user id of the other end, as reported by the kernel."""
        return self._peer[1]

    @property
    def process(self) -> int:
        """The process id of the other end, as reported by the kernel; 0 outside its PID namespace."""
        return self._peer[0]

    @property
    def _peer(self) -> tuple[int, int, int]:
        told = self._end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        process, user, group = _PEER.unpack(told)
        return process, user, group

    async def say(self, message: Message) -> None:
        """Send a message.

        Raises:
            Unavailable: The other end has closed, or does not read.
        """
        content = encoded(message)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._loop.sock_sendall(self._end, _LENGTH.pack(len(content)) + content)
        except (OSError, TimeoutError) as error:
            raise _gone(error) from error

    async def hear(self, seconds: float = ANSWER_SECONDS) -> Message | None:
        """Wait for a message.

        Args:
            seconds: Timeout.

        Returns:
            The message; None if the other end has closed.

        Raises:
            Unavailable: The timeout expired, or the bytes are not a message.
        """
        try:
            async with asyncio.timeout(seconds):
                head = await self._read(_LENGTH.size)
                if not head:
                    return None
                (size,) = _LENGTH.unpack(head)
                if size > LARGEST_MESSAGE_BYTES:
                    raise Unavailable(f"the other server sent too large a message: {size} bytes")
                return decoded(await self._read(size))
        except TimeoutError as error:
            raise Unavailable(
                f"the other server has not answered for {seconds:g} s; it may be suspended"
            ) from error
        except msgspec.MsgspecError as error:
            raise Unavailable(f"the other server sent an invalid message: {error}") from error
        except OSError as error:
            raise _gone(error) from error

    async def _read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            piece = await self._loop.sock_recv(self._end, size - len(found))
            if not piece:
                if found:
                    raise ConnectionError("it closed the connection within a message")
                break
            found += piece
        return bytes(found)

    async def give(self, descriptors: Sequence[int]) -> None:
        """Send copies of descriptors.

        Raises:
            Unavailable: The other end has closed, or does not read.
        """
        try:
            for start in range(0, len(descriptors), _DESCRIPTORS_AT_ONCE):
                socket.send_fds(self._end, [_ONE], descriptors[start : start + _DESCRIPTORS_AT_ONCE])
        except OSError as error:
            raise _gone(error) from error

    async def take(self, many: int) -> list[int]:
        """Receive descriptors, which the caller must close.

        Args:
            many: Number of descriptors.

        Raises:
            Unavailable: They did not arrive.
        """
        found: list[int] = []
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                while len(found) < many:
                    await self._readable()
                    said, got, _, _ = socket.recv_fds(
                        self._end, len(_ONE), _DESCRIPTORS_AT_ONCE, socket.MSG_CMSG_CLOEXEC
                    )
                    found += got
                    if not said or not got:
                        raise ConnectionError("it did not send all sockets; raise the limit of open files")
        except (OSError, TimeoutError) as error:
            for one in found:
                os.close(one)
            raise _gone(error) from error
        return found

    async def _readable(self) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._end, _done, ready)
        try:
            await ready
        finally:
            self._loop.remove_reader(self._end)

    async def until_closed(self) -> None:
        """Wait until the other end has closed; discard what it sends."""
        with suppress(OSError):
            while await self._loop.sock_recv(self._end, 4096):
                pass

    def close(self) -> None:
        """Close this end."""
        self._end.close()


def _done(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _gone(error: OSError) -> HeadraceError:
    return Unavailable(f"the connection to the other server failed: {error.strerror or error}")
