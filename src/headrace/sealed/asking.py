"""Asks a keeper for sealed copies and checksums, and does not wait for one that says nothing."""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import time
import weakref
from collections.abc import Callable, Sequence

from headrace.sealed import messages
from headrace.sealed.copies import SealedCopy
from headrace.sealed.copying import Content, NotCopied, Refusal
from headrace.sealed.messages import FORMAT, Copied, Digested, Question, Reply, Working

_log = logging.getLogger(__name__)

SILENT_SECONDS = 10.0
"""A keeper that says nothing for so long is taken for one that hangs: it tells each second that it works."""

_LEFT_ALONE_SECONDS = 60.0
# Keepers are restarted within a moment, so one that has ended is asked for the next file again.


class Door:
    """The end of a keeper's socket at which questions are asked; many threads and processes may share it."""

    def __init__(self, descriptor: int) -> None:
        """Take a descriptor of one's own; the one that is given stays the caller's.

        Args:
            descriptor: Of the socket.

        Raises:
            OSError: There is no descriptor left.
        """
        self._descriptor = os.dup(descriptor)
        weakref.finalize(self, os.close, self._descriptor)
        self._asked_again = -float("inf")

    def copy(self, file: int, content: Content, patch: int | None = None) -> SealedCopy | None:
        """Ask for a sealed copy of a file.

        Args:
            file: The file's descriptor.
            content: What it must hold.
            patch: The descriptor of what ``content.patch`` tells of.

        Returns:
            The copy; None where the keeper is away: that is logged.

        Raises:
            NotCopied: The file holds something else, or was changed meanwhile.
            OSError: The keeper could not read it, or there is no memory for it.
        """
        given = (file,) if patch is None else (file, patch)
        asked = self._ask(given, Question(FORMAT, "copy", content))
        if asked is None:
            return None
        reply, descriptors, lifeline = asked
        if isinstance(reply, Copied) and len(descriptors) == 1:
            try:
                return SealedCopy.received(descriptors[0], content.size_bytes, lifeline.detach())
            except OSError as error:
                _say_away(f"what it gave is not sealed ({error.strerror})")
                return None
        messages.close(descriptors)
        lifeline.close()
        if isinstance(reply, Refusal):
            raise _error(reply)
        _say_away("what it answered is not known here")
        return None

    def checksum(
        self, file: int, size_bytes: int, between: Callable[[], object] = lambda: None
    ) -> str | None:
        """Ask for the SHA-256 of a file, in hexadecimal digits; None where the keeper is away.

        Args:
            file: The file's descriptor.
            size_bytes: Its size.
            between: Called each time the keeper says that it works; what it raises ends the waiting.

        Raises:
            NotCopied: It was changed meanwhile.
            OSError: The keeper could not read it.
        """
        asked = self._ask((file,), Question(FORMAT, "checksum", Content(size_bytes)), between)
        if asked is None:
            return None
        reply, descriptors, lifeline = asked
        messages.close(descriptors)
        lifeline.close()
        if isinstance(reply, Refusal):
            raise _error(reply)
        if isinstance(reply, Digested):
            return reply.checksum
        _say_away("what it answered is not known here")
        return None

    def _ask(
        self, given: Sequence[int], question: Question, between: Callable[[], object] = lambda: None
    ) -> tuple[Reply, list[int], socket.socket] | None:
        if time.monotonic() < self._asked_again:
            return None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs, socket.socket(fileno=os.dup(self._descriptor)) as door:
                _send(door, question, theirs.fileno(), *given)
            reply, descriptors = _answer(ours, between)
        except TimeoutError:
            ours.close()
            self._asked_again = time.monotonic() + _LEFT_ALONE_SECONDS
            _say_away(f"it has said nothing for {SILENT_SECONDS:.0f} s")
            return None
        except OSError as error:
            ours.close()
            _say_away(f"it has ended ({error.strerror or error})")
            return None
        except BaseException:
            ours.close()
            raise
        return reply, descriptors, ours


def _send(door: socket.socket, question: Question, *descriptors: int) -> None:
    """Send a question, and wait while those before it have not been taken.

    Raises:
        TimeoutError: They have not been for too long.
        OSError: The keeper has ended.
    """
    ends = time.monotonic() + SILENT_SECONDS
    while True:
        try:
            return messages.send(door, question, *descriptors)
        except BlockingIOError:
            left = ends - time.monotonic()
            if left <= 0:
                raise TimeoutError from None
            _wait(door, select.POLLOUT, left)


def _say_away(why: str) -> None:
    _log.warning("the keeper of shared memory is away, this process makes its own copy: %s", why)


def _answer(ours: socket.socket, between: Callable[[], object]) -> tuple[Reply, list[int]]:
    """Wait for the last reply to a question.

    Raises:
        TimeoutError: Nothing has come for too long.
        OSError: The keeper has ended.
    """
    while True:
        if not _wait(ours, select.POLLIN, SILENT_SECONDS):
            raise TimeoutError
        received = messages.receive(ours, 1)
        reply = None if received is None else messages.reply(received[0])
        if received is None or reply is None:
            messages.close([] if received is None else received[1])
            raise OSError(errno.ECONNRESET, "the connection is closed")
        if not isinstance(reply, Working):
            return reply, received[1]
        between()


def _wait(end: socket.socket, event: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(end, event)
    return bool(poll.poll(seconds * 1000))


def _error(refusal: Refusal) -> Exception:
    if refusal.reason == "system":
        return OSError(refusal.errno, refusal.said)
    return NotCopied(refusal)
