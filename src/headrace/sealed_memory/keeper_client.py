"""Ask a keeper for sealed copies and checksums: the messages, and the client.

Each message is one packet of a Unix socket, in MessagePack. A request is an array whose first element is the
version. It carries descriptors: the socket for its answers, the file, and the patch if there is one. The copy
lives while that socket is open: a holder releases it by closing the socket, or by being killed. After a
timeout, a keeper that hangs is not asked for a while.
"""

from __future__ import annotations

import array
import errno
import logging
import os
import select
import socket
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from headrace.sealed_memory.copies import SealedCopy
from headrace.sealed_memory.file_copying import Content, NotCopied, Refusal

_log = logging.getLogger(__name__)

LARGEST_BYTES = 4096
"""Size limit of a message."""

FORMAT = 1
"""The version of these messages; a keeper answers only this one."""


class Question(msgspec.Struct, frozen=True, array_like=True):
    """A request to a keeper.

    Attributes:
        format: The version of these messages.
        wanted: A sealed copy of the file, or only its checksum.
        content: The expected content of the file.
    """

    format: int
    wanted: Literal["copy", "checksum"]
    content: Content


class Working(msgspec.Struct, frozen=True, tag="working"):
    """The keeper is working: sent about once a second while it makes progress."""


class Copied(msgspec.Struct, frozen=True, tag="copied"):
    """The copy is made; its descriptor is attached to this message."""


class Digested(msgspec.Struct, frozen=True, tag="digested"):
    """The file's checksum.

    Attributes:
        checksum: Its SHA-256, in hexadecimal digits.
    """

    checksum: str


Reply = Working | Copied | Digested | Refusal
"""A keeper's reply; any but ``Working`` is the last one."""

_encoder = msgspec.msgpack.Encoder()
_questions = msgspec.msgpack.Decoder(Question)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def send(to: socket.socket, message: Question | Reply, *descriptors: int) -> None:
    """Send a message, with descriptors to be duplicated for the receiver, without blocking.

    Raises:
        BlockingIOError: The receiver has not read earlier messages.
        OSError: There is no receiver any more.
    """
    passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    to.sendmsg([_encoder.encode(message)], passed, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def receive(sender: socket.socket, most_descriptors: int) -> tuple[bytes, list[int]] | None:
    """Return the next message and its descriptors, which the caller must close, without blocking.

    Returns:
        The bytes and the descriptors; None when all senders have closed.

    Raises:
        BlockingIOError: No message is available.
        OSError: The connection is broken.
    """
    space = socket.CMSG_SPACE(most_descriptors * 4)
    content, passed, _, _ = sender.recvmsg(
        LARGEST_BYTES, space, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
    )
    descriptors = array.array("i")
    for level, kind, data in passed:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    if not content and not descriptors:
        return None
    return content, list(descriptors)


def question(content: bytes) -> Question | None:
    """Decode a request; return None if it is malformed or of another version."""
    try:
        asked = _questions.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return asked if asked.format == FORMAT else None


def reply(content: bytes) -> Reply | None:
    """Decode a reply; return None if it is malformed."""
    try:
        said: Reply = _replies.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return said


def close(descriptors: list[int]) -> None:
    """Close received descriptors that are not needed."""
    for descriptor in descriptors:
        os.close(descriptor)


SILENT_SECONDS = 10.0
"""A keeper that is silent for this long is considered hung: a working one reports every second."""

_RETRY_SECONDS = 60.0
# After a timeout, the keeper is not asked for this long. One that has ended is asked for the next file, as it
# is restarted soon.


class KeeperClient:
    """The client end of a keeper's socket; may be shared by many threads and processes."""

    def __init__(self, descriptor: int) -> None:
        """Duplicate a descriptor; the given one remains the caller's.

        Args:
            descriptor: The socket's descriptor.

        Raises:
            OSError: No descriptor is left.
        """
        self._descriptor = os.dup(descriptor)
        weakref.finalize(self, os.close, self._descriptor)
        self._retry_at = -float("inf")

    def copy(self, file: int, content: Content, patch: int | None = None) -> SealedCopy | None:
        """Ask for a sealed copy of a file.

        Args:
            file: The file's descriptor.
            content: Its expected content.
            patch: Descriptor of the row numbers and values that ``content.patch`` describes.

        Returns:
            The copy; None if the keeper is unavailable.

        Raises:
            NotCopied: The file has other content, or changed meanwhile.
            OSError: The keeper could not read it, or lacks memory for it.
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
                _log_unavailable(f"its copy is not sealed ({error.strerror})")
                return None
        close(descriptors)
        lifeline.close()
        if isinstance(reply, Refusal):
            raise _error(reply)
        _log_unavailable("it sent an unknown answer")
        return None

    def checksum(
        self, file: int, size_bytes: int, between: Callable[[], object] = lambda: None
    ) -> str | None:
        """Ask for the SHA-256 of a file, in hexadecimal digits; return None if the keeper is unavailable.

        Args:
            file: The file's descriptor.
            size_bytes: Its size.
            between: Called at each progress report of the keeper; an exception from it ends the wait.

        Raises:
            NotCopied: The file changed meanwhile.
            OSError: The keeper could not read it.
        """
        asked = self._ask((file,), Question(FORMAT, "checksum", Content(size_bytes)), between)
        if asked is None:
            return None
        reply, descriptors, lifeline = asked
        close(descriptors)
        lifeline.close()
        if isinstance(reply, Refusal):
            raise _error(reply)
        if isinstance(reply, Digested):
            return reply.checksum
        _log_unavailable("it sent an unknown answer")
        return None

    def _ask(
        self, given: Sequence[int], question: Question, between: Callable[[], object] = lambda: None
    ) -> tuple[Reply, list[int], socket.socket] | None:
        if time.monotonic() < self._retry_at:
            return None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs, socket.socket(fileno=os.dup(self._descriptor)) as client:
                _send(client, question, theirs.fileno(), *given)
            reply, descriptors = _answer(ours, between)
        except TimeoutError:
            ours.close()
            self._retry_at = time.monotonic() + _RETRY_SECONDS
            _log_unavailable(f"it has not answered for {SILENT_SECONDS:.0f} s")
            return None
        except OSError as error:
            ours.close()
            without_room = error.errno in (errno.EMFILE, errno.ENFILE)
            said = "no descriptor is left to ask it with" if without_room else "it has ended"
            _log_unavailable(f"{said} ({error.strerror or error})")
            return None
        except BaseException:
            ours.close()
            raise
        return reply, descriptors, ours


def _send(client: socket.socket, question: Question, *descriptors: int) -> None:
    """Send a request, waiting until the socket has room for it.

    Raises:
        TimeoutError: The keeper has not read earlier requests in time.
        OSError: The keeper has ended.
    """
    ends = time.monotonic() + SILENT_SECONDS
    while True:
        try:
            return send(client, question, *descriptors)
        except BlockingIOError:
            left = ends - time.monotonic()
            if left <= 0:
                raise TimeoutError from None
            _wait(client, select.POLLOUT, left)


def _log_unavailable(why: str) -> None:
    _log.warning("the keeper of shared memory is unavailable; this process makes its own copy: %s", why)


def _answer(ours: socket.socket, between: Callable[[], object]) -> tuple[Reply, list[int]]:
    """Wait for the last reply to a request.

    Raises:
        TimeoutError: No reply came in time.
        OSError: The keeper has ended.
    """
    while True:
        if not _wait(ours, select.POLLIN, SILENT_SECONDS):
            raise TimeoutError
        received = receive(ours, 1)
        decoded = None if received is None else reply(received[0])
        if received is None or decoded is None:
            close([] if received is None else received[1])
            raise OSError(errno.ECONNRESET, "the connection is closed")
        if not isinstance(decoded, Working):
            return decoded, received[1]
        between()


def _wait(end: socket.socket, event: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(end, event)
    return bool(poll.poll(seconds * 1000))


def _error(refusal: Refusal) -> Exception:
    if refusal.reason == "system":
        return OSError(refusal.errno, refusal.said)
    return NotCopied(refusal)
