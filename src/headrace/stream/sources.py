"""Where bytes come from: a file, a pipe or a socket, read as far as there is something to read."""

from __future__ import annotations

import contextlib
import os
import select
import stat
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, cast

from headrace.errors import StreamError

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.stream.parser import Position, StreamParser

_PIPE_BYTES = 2**20
"""What a pipe is asked to hold: the writer and the reader wait for each other less often."""


class Readable(Protocol):
    """A binary file. One that also has ``fileno`` is read by its descriptor, past any buffer of its own."""

    def readinto(self, room: Any, /) -> int | None:
        """Fill some room, and say how much of it; 0 at the end."""


class Woken(Exception):
    """Reading was ended from outside."""


class Source(Protocol):
    """Bytes. ``wakes`` says whether a read that waits can be ended by ``wake``."""

    wakes: bool

    def read(self, room: memoryview, timeout: float | None) -> int | None:
        """Fill some room; 0 at the end, None when the timeout in seconds has passed."""

    def wake(self) -> None:
        """End the read that waits now, if any, and all later ones, with ``Woken``."""

    def close(self) -> None:
        """Let go of what was made for reading."""


class FileSource:
    """A file without a descriptor, such as one in memory."""

    wakes = False

    def __init__(self, file: Readable) -> None:
        """Read nothing yet."""
        self._file = file
        self._woken = False

    def read(self, room: memoryview, timeout: float | None) -> int | None:
        """See ``Source``; it waits as long as the file does."""
        del timeout
        if self._woken:
            raise Woken
        try:
            return self._file.readinto(room)
        except OSError as error:
            raise _unreadable(error) from error

    def wake(self) -> None:
        """See ``Source``."""
        self._woken = True

    def close(self) -> None:
        """See ``Source``."""
        self._woken = True


class DescriptorSource:
    """A descriptor, waited for together with a pipe that wakes it up."""

    wakes = True

    def __init__(self, descriptor: int) -> None:
        """Listen, and read nothing yet."""
        self._descriptor = descriptor
        self._listen, self._ring = os.pipe()
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self._poll.register(self._listen, select.POLLIN)
        self._open = True
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            _widen(descriptor)

    def read(self, room: memoryview, timeout: float | None) -> int | None:
        """See ``Source``."""
        ready = self._poll.poll(None if timeout is None else timeout * 1000)
        if any(descriptor == self._listen for descriptor, _ in ready):
            raise Woken
        if not ready:
            return None
        try:
            return os.readv(self._descriptor, [room])
        except BlockingIOError:
            return None
        except OSError as error:
            raise _unreadable(error) from error

    def wake(self) -> None:
        """See ``Source``."""
        if self._open:
            os.write(self._ring, b"x")

    def close(self) -> None:
        """See ``Source``."""
        if self._open:
            self._open = False
            os.close(self._listen)
            os.close(self._ring)


class Streams(Protocol):
    """What reads streams that follow one another, such as a ``StreamParser``."""

    @property
    def position(self) -> Position:
        """How far it has come."""

    def next_stream(self) -> None:
        """Say that a stream is over; ``StreamError`` if it is not whole."""


class Pieces(Source, Protocol):
    """A Source whose bytes come in pieces, each of them a whole stream. No read goes beyond a piece."""

    def attach(self, streams: Streams) -> None:
        """Say who reads, and is told where a stream is over."""

    def located(self, error: StreamError) -> StreamError:
        """Say in which piece a row is that cannot be learnt from."""


def is_pieces(file: object) -> TypeGuard[Pieces]:
    """Whether something gives bytes in pieces, and is no file."""
    return hasattr(file, "attach")


def source_of(file: Readable | Pieces) -> Source:
    """What reads a file: by its descriptor, if it has one."""
    if is_pieces(file):
        return file
    readable = cast("Readable", file)
    try:
        descriptor = readable.fileno()  # type: ignore[attr-defined]  # Not every file has one.
    except (AttributeError, OSError):
        return FileSource(readable)
    return DescriptorSource(descriptor)


def read_schema(source: Source, parser: StreamParser) -> pa.Schema:
    """Read as far as the Arrow schema.

    Raises:
        StreamError: It is no stream.
    """
    while parser.arrow_schema is None:
        if count := source.read(parser.room(), None):
            parser.filled(count)
        else:
            parser.finish()
    return parser.arrow_schema


def _unreadable(error: OSError) -> StreamError:
    return StreamError(f"it cannot be read: {error.strerror or error}")


def _widen(descriptor: int) -> None:
    with contextlib.suppress(ImportError, AttributeError, OSError):
        # Only Linux has it, and it may be forbidden: then the pipe stays as it is.
        import fcntl  # noqa: PLC0415

        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
