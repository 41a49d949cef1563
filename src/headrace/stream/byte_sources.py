"""Sources of bytes: a file, a pipe or a socket, read as far as data is available.

``ReadAhead`` computes the items of an iterator over such a source in a thread, ahead of their consumer.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import threading
import time
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeGuard, TypeVar, cast

from headrace.base.errors import StreamError

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.stream.arrow_ipc_parser import Position, StreamParser

_PIPE_BYTES = 2**20
"""Requested capacity of a pipe, so that the writer and the reader block less often."""


class Readable(Protocol):
    """A binary file. If it has ``fileno``, its descriptor is read directly, bypassing its buffer."""

    def readinto(self, room: Any, /) -> int | None:
        """Read into a buffer; return the number of bytes, 0 at the end."""


class Woken(Exception):
    """Reading was interrupted by ``wake``."""


class Source(Protocol):
    """A source of bytes. ``wakes`` tells whether ``wake`` can interrupt a read that waits."""

    wakes: bool

    def read(self, room: memoryview, timeout: float | None) -> int | None:
        """Read into a buffer; return 0 at the end, None after the timeout in seconds."""

    def wake(self) -> None:
        """Make later reads and, if ``wakes``, the current one raise ``Woken``."""

    def close(self) -> None:
        """Release the resources that reading needed."""


class FileSource:
    """A file without a descriptor, such as one in memory."""

    wakes = False

    def __init__(self, file: Readable) -> None:
        """Wrap a file; nothing is read yet."""
        self._file = file
        self._woken = False

    def read(self, room: memoryview, timeout: float | None) -> int | None:
        """See ``Source``; it blocks as long as the file does."""
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
    """A descriptor, polled together with a pipe for ``wake``."""

    wakes = True

    def __init__(self, descriptor: int) -> None:
        """Register for polling; nothing is read yet."""
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
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if until is None else max(0.0, until - time.monotonic()) * 1000
            ready = self._poll.poll(left)
            if any(descriptor == self._listen for descriptor, _ in ready):
                raise Woken
            if not ready:
                return None
            try:
                return os.readv(self._descriptor, [room])
            except BlockingIOError:
                continue  # Another process has read the bytes.
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
    """A reader of consecutive streams, such as a ``StreamParser``."""

    @property
    def position(self) -> Position:
        """The current position."""

    def next_stream(self) -> None:
        """End a stream; raise ``StreamError`` if it is incomplete."""


class Pieces(Source, Protocol):
    """A Source whose bytes come in pieces, each a whole stream. No read crosses the end of a piece."""

    def attach(self, streams: Streams) -> None:
        """Set the reader that is notified at the end of each piece."""

    def located(self, error: StreamError) -> StreamError:
        """Return the error with a description of the piece that contains its row."""


def is_pieces(file: object) -> TypeGuard[Pieces]:
    """Whether an object is a source of pieces, and not a file."""
    return hasattr(file, "attach")


def source_of(file: Readable | Pieces) -> Source:
    """Return a Source that reads a file, by its descriptor if it has one."""
    if is_pieces(file):
        return file
    readable = cast("Readable", file)
    try:
        descriptor = readable.fileno()  # type: ignore[attr-defined]  # Not every file has one.
    except (AttributeError, OSError):
        return FileSource(readable)
    return DescriptorSource(descriptor)


def read_schema(source: Source, parser: StreamParser) -> pa.Schema:
    """Read as far as the Arrow schema, and return it.

    Raises:
        StreamError: The data is not a stream.
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
        # Only Linux can resize a pipe, and it may refuse.
        import fcntl  # noqa: PLC0415

        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


Item = TypeVar("Item")

_CLOSE_SECONDS = 1.0
"""Longest wait for the thread when closing, if its source cannot be woken."""


class ReadAhead(Generic[Item]):
    """An iterator whose items are computed in the background, a few ahead.

    Closing it early never hangs: the thread is woken by its source if it waits for bytes, and by a semaphore
    if it waits for room.
    """

    def __init__(self, items: Iterator[Item], source: Source, places: int) -> None:
        """Start the thread.

        Args:
            items: The iterator, used by the thread only.
            source: The source that it reads.
            places: Number of items to queue; one more may be computed.
        """
        self._items = items
        self._source = source
        self._made: SimpleQueue[Item | BaseException | None] = SimpleQueue()
        self._next: list[Item | BaseException | None] = []  # the item that ``wait`` has found, if any
        self._places = threading.Semaphore(places)
        self._closed = False
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="headrace-reader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Self:
        """Return self."""
        return self

    def __next__(self) -> Item:
        """Return the next item; raise the iterator's exception, once."""
        if self._ended:
            raise StopIteration
        made = self._next.pop() if self._next else self._made.get()
        self._places.release()
        if made is None or isinstance(made, BaseException):
            self._ended = True
            raise made or StopIteration
        return made

    def wait(self, seconds: float) -> bool:
        """Wait for the next item, or the end; return False after the timeout."""
        if not (self._next or self._ended):
            try:
                self._next.append(self._made.get(timeout=seconds))
            except Empty:
                return False
        return True

    def close(self) -> None:
        """Stop the thread; items computed ahead are lost."""
        self._closed = self._ended = True
        self._source.wake()
        self._places.release()
        self._thread.join(None if self._source.wakes else _CLOSE_SECONDS)

    def _run(self) -> None:
        try:
            for item in self._items:
                self._places.acquire()
                if self._closed:
                    return
                self._made.put(item)
        except Woken:
            pass
        except BaseException as error:  # noqa: BLE001  # The end of the thread: `__next__` raises it again.
            self._made.put(error)
        finally:
            self._made.put(None)
