"""The running server's side of a handover: wait for a successor, and send it the listening sockets."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from headrace.base.errors import ConfigError, HeadraceError, Unavailable
from headrace.frontends.transport.listening_sockets import Listeners
from headrace.server.handover.conversation import Conversation
from headrace.server.handover.messages import (
    PROTOCOLS,
    Ask,
    Given,
    Go,
    HandoverRefused,
    Hello,
    Message,
    Ready,
    Take,
    Taken,
    protocol,
)

_log = logging.getLogger(__name__)

_SILENCE_SECONDS = 60.0
"""Longest silence of a successor; it asks several times a second while it loads."""

_LONGEST_SECONDS = 3660.0
"""Longest duration of a handover; exceeds the maximum of ``handover_seconds``.

During a handover, transports are not replaced for new certificates or for the age of connections.
"""

_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_SHORTAGE_SECONDS = 1.0
"""Time between two attempts to accept a successor while the process is out of descriptors or memory."""

_MODE = 0o600
_BACKLOG = 8


class Side(Protocol):
    """The part of a running server that is handed over.

    Attributes:
        listeners: Its listening sockets.
    """

    listeners: Listeners

    @property
    def admin(self) -> list[socket.socket]:
        """The administration sockets."""

    def ready(self) -> Mapping[str, tuple[int, ...]]:
        """Return the ready versions of each model."""

    async def hold(self) -> None:
        """Leave the listening sockets unchanged until ``release``."""

    def release(self) -> None:
        """End ``hold``."""

    def leave(self) -> None:
        """Begin to shut down; the successor accepts new connections from now on."""


class Giving:
    """Waits at a path for a successor.

    Attributes:
        taken: Future whose result is the process id of the server that has taken over.
    """

    def __init__(self, socket_at_path: PathSocket, side: Side, release: str) -> None:
        """Begin to wait.

        Args:
            socket_at_path: The socket to listen on, moved to its path; owned by this object from now on.
            side: The part of this server to hand over.
            release: The release of this server.
        """
        self._at_path = socket_at_path
        self._listener = socket_at_path.listener
        self._side = side
        self._release = release
        self._loop = asyncio.get_running_loop()
        self.taken: asyncio.Future[int] = self._loop.create_future()
        self._busy: asyncio.Task[None] | None = None
        self._others: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None
        self._is_short = False
        self._wait()

    def _wait(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            end, _ = self._listener.accept()
        except OSError as error:  # with any other number, the peer has closed
            if error.errno in _SHORTAGES:
                self._accept_later(error)
            return
        self._is_short = False
        conversation = Conversation(end)
        if len(self._others) >= _BACKLOG:
            conversation.close()
        elif self._busy is not None and not self._busy.done():
            refusing = self._loop.create_task(_refuse(conversation, "another server is about to take over"))
            self._others.add(refusing)
            refusing.add_done_callback(self._others.discard)
        else:
            self._busy = self._loop.create_task(self._talk(conversation))

    def _accept_later(self, error: OSError) -> None:
        """Stop watching the socket for a second, as the waiting connection would call ``_accept`` at once."""
        self._loop.remove_reader(self._listener)
        self._again = self._loop.call_later(_SHORTAGE_SECONDS, self._wait)
        if not self._is_short:
            _log.error("a successor cannot be accepted: %s; trying again every second", error)
        self._is_short = True

    async def _talk(self, conversation: Conversation) -> None:
        listeners = self._side.listeners
        try:
            if conversation.user != os.geteuid():
                await _refuse(conversation, "expected a server of the same user")
                return
            try:
                await self._side.hold()
                async with asyncio.timeout(_LONGEST_SECONDS):
                    await self._give(conversation)
            except TimeoutError as error:
                if not self.taken.done():
                    raise Unavailable(
                        f"the successor has not taken over within {_LONGEST_SECONDS:g} s"
                    ) from error
            finally:
                if not self.taken.done():
                    listeners.resume()
                self._side.release()
            if self.taken.done():
                await conversation.until_closed()
        except HeadraceError as error:
            _log.warning("the handover to a new server was aborted: %s", error.message)
        finally:
            conversation.close()

    async def _give(self, conversation: Conversation) -> None:
        hello = await conversation.hear()
        if not isinstance(hello, Hello):
            raise Unavailable("the caller did not start a handover")
        spoken = protocol(hello.protocols)
        if spoken is None:
            theirs = ", ".join(map(str, hello.protocols))
            why = f"headrace {self._release} speaks handover protocol {PROTOCOLS[0]}, not {theirs}"
            await conversation.say(HandoverRefused(f"{why}: stop the running server, and start the new one"))
            raise Unavailable(f"headrace {hello.headrace} speaks another handover protocol: {theirs}")
        _log.info("another server is about to take over", extra={"release": hello.headrace})
        await self._give_sockets(conversation, spoken)
        while (message := await conversation.hear(_SILENCE_SECONDS)) is not None:
            await self._answer(conversation, message)
            if self.taken.done():
                return
        raise Unavailable("the successor has ended or given up")

    async def _give_sockets(self, conversation: Conversation, spoken: int) -> None:
        listeners, admin = self._side.listeners, self._side.admin
        given = Given(
            protocol=spoken,
            headrace=self._release,
            sets=len(listeners.sets),
            free=tuple(listeners.free),
            leading=tuple(listeners.leading),
            has_many=listeners.has_many,
            admin=len(admin),
        )
        await conversation.say(given)
        sockets = [one for several in listeners.sets for one in several]
        await conversation.give([one.fileno() for one in (*sockets, *admin)])

    async def _answer(self, conversation: Conversation, message: Message) -> None:
        if isinstance(message, Ask):
            await conversation.say(Ready(dict(self._side.ready())))
        elif isinstance(message, Take):
            self._side.listeners.pause()
            await conversation.say(Go())
        elif isinstance(message, Taken):
            _log.info("another server has taken over")
            self.taken.set_result(conversation.process)
            self._close_path()
            self._side.leave()
        else:
            raise Unavailable(f"the successor sent an unexpected message: {type(message).__name__}")

    def _close_path(self) -> None:
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._listener)
        self._at_path.close()

    async def close(self) -> None:
        """Stop waiting. A handover in progress is aborted by closing its conversation."""
        if not self.taken.done():
            self._close_path()
        going = [one for one in (self._busy, *self._others) if one is not None]
        for one in going:
            one.cancel()
        await asyncio.gather(*going, return_exceptions=True)


async def _refuse(conversation: Conversation, why: str) -> None:
    """Refuse a peer after reading its first message: closing with unread data would discard the reason."""
    try:
        await conversation.hear()
        await conversation.say(HandoverRefused(why))
    except HeadraceError as error:
        _log.warning(
            "refused a server that wanted to take over (%s), but could not tell it why: %s", why, error
        )
    finally:
        conversation.close()


def expect_own_directory(path: Path) -> None:
    """Check that no other user can replace the file at a path.

    Raises:
        ConfigError: The directory belongs to another user, or others may write to it.
    """
    directory = path.absolute().parent
    try:
        found = directory.stat()
    except OSError as error:
        raise ConfigError(f"handover: cannot access {directory}: {error.strerror or error}") from error
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise ConfigError(
            f"handover: expected a directory that only this user can write, but {directory} belongs to "
            "another user or is writable by others: create one (mkdir -m 700), and use a path in it"
        )


class PathSocket:
    """Listens beside a path, and is then renamed to it, so that the path is never without a socket.

    Attributes:
        listener: The socket.
    """

    def __init__(self, path: Path) -> None:
        """Listen beside a path, so that most failures occur now.

        Args:
            path: A path in a directory that only this user can write.

        Raises:
            ConfigError: The socket cannot be created.
        """
        expect_own_directory(path)
        self._path, self._beside = path, path.with_name(f".{path.name}.{os.getpid()}")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with suppress(FileNotFoundError):
                self._beside.unlink()
            self.listener.bind(str(self._beside))
            os.chmod(self._beside, _MODE)
            self.listener.listen(_BACKLOG)
            self.listener.setblocking(False)
            self._identity = _identity(self._beside)
        except OSError as error:
            self.listener.close()
            with suppress(OSError):
                self._beside.unlink()
            raise ConfigError(f"handover: cannot listen at {path}: {error.strerror or error}") from error

    def move(self) -> None:
        """Rename the socket to the path, replacing what is there.

        Raises:
            ConfigError: The rename failed; the socket is closed.
        """
        try:
            os.replace(self._beside, self._path)
        except OSError as error:
            self.close()
            expected = f"cannot listen at {self._path}: {error.strerror or error}"
            raise ConfigError(f"handover: {expected}") from error

    def close(self) -> None:
        """Stop listening, and remove the path unless another process has replaced it."""
        self.listener.close()
        for one in (self._beside, self._path):
            with suppress(OSError):
                if _identity(one) == self._identity:
                    one.unlink()


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino
