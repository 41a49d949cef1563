"""A Unix socket between two servers as messages, each with its length in front, and descriptors."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from headrace.errors import HeadraceError, Unavailable
from headrace.handover.messages import LARGEST_MESSAGE_BYTES, Message, decoded, encoded

ANSWER_SECONDS = 10.0
"""How long an answer may take of a server that is not stuck."""

_LENGTH = struct.Struct("<I")
_PEER = struct.Struct("3i")
_DESCRIPTORS_AT_ONCE = 64  # Linux takes at most 253
_ONE = b"d"


class Conversation:
    """One end. Whatever goes wrong is ``Unavailable``."""

    def __init__(self, end: socket.socket) -> None:
        """Begin to talk.

        Args:
            end: Connected; it belongs to the conversation from now on.
        """
        end.setblocking(False)
        self._end = end
        self._loop = asyncio.get_running_loop()

    @property
    def user(self) -> int:
        """The number of the other end's user, as the kernel tells it."""
        told = self._end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        user: int = _PEER.unpack(told)[1]
        return user

    async def say(self, message: Message) -> None:
        """Send a message.

        Raises:
            Unavailable: The other end is gone, or reads nothing.
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
            seconds: How long.

        Returns:
            The message; None if the other end has closed.

        Raises:
            Unavailable: Nothing came in time, or something that is no message.
        """
        try:
            async with asyncio.timeout(seconds):
                head = await self._read(_LENGTH.size)
                if not head:
                    return None
                (size,) = _LENGTH.unpack(head)
                if size > LARGEST_MESSAGE_BYTES:
                    raise Unavailable(f"the other server sent a message of {size} bytes")
                return decoded(await self._read(size))
        except TimeoutError as error:
            raise Unavailable(f"the other server has said nothing for {seconds:g} s: is it stuck?") from error
        except (OSError, msgspec.MsgspecError) as error:
            raise _gone(error) from error

    async def _read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            piece = await self._loop.sock_recv(self._end, size - len(found))
            if not piece:
                if found:
                    raise ConnectionError("it broke off in a message")
                break
            found += piece
        return bytes(found)

    async def give(self, descriptors: Sequence[int]) -> None:
        """Send copies of descriptors.

        Raises:
            Unavailable: The other end is gone, or reads nothing.
        """
        try:
            for start in range(0, len(descriptors), _DESCRIPTORS_AT_ONCE):
                socket.send_fds(self._end, [_ONE], descriptors[start : start + _DESCRIPTORS_AT_ONCE])
        except OSError as error:
            raise _gone(error) from error

    async def take(self, many: int) -> list[int]:
        """Receive descriptors, which belong to the caller.

        Args:
            many: How many.

        Raises:
            Unavailable: They did not come.
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
                        raise ConnectionError("it broke off in its sockets; raise the limit of open files")
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
        """Wait until the other end is closed, whatever it says."""
        with suppress(OSError):
            while await self._loop.sock_recv(self._end, 4096):
                pass

    def close(self) -> None:
        """Close this end."""
        self._end.close()


def _done(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _gone(error: Exception) -> HeadraceError:
    return Unavailable(f"the other server does not answer: {error!r}")
