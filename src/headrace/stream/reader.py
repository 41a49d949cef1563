"""From a file, a pipe or a socket to Blocks of one size, in line or by a thread that reads ahead.

What is wrong with a stream is raised where it belongs: all good rows before it are delivered first. A row has
one number, from the stream's first one, however its record batches and Blocks are cut.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa

from headrace.errors import ConfigError, StreamError
from headrace.stream.block import Block
from headrace.stream.features import Features
from headrace.stream.joining import Joiner
from headrace.stream.parser import StreamParser
from headrace.stream.schema import Schema

_PIPE_BYTES = 2**20
"""What a pipe is asked to hold: the writer and the reader wait for each other less often."""

_CLOSE_SECONDS = 1.0
"""How long closing waits for a file that cannot be woken up."""


class Readable(Protocol):
    """A binary file. One that also has ``fileno`` is read by its descriptor, past any buffer of its own."""

    def readinto(self, room: memoryview, /) -> int | None:
        """Fill some room, and say how much of it; 0 at the end."""


@dataclass(frozen=True)
class ReadSettings:
    """How a stream is read.

    Attributes:
        batch_rows: Rows of a Block.
        skip_rows: How many rows to pass over, to resume behind them.
        linger_seconds: How long a row waits for its Block to fill up when the stream is slow; then a smaller
            one is delivered. None to wait as long as it takes, so that Blocks are the same in each run.
        blocks_ahead: How many Blocks are made ahead of who takes them.
        slices: Columns by which metrics are split.
        schema: What the columns are; what the stream itself says if None.
    """

    batch_rows: int = 2048
    skip_rows: int = 0
    linger_seconds: float | None = 1.0
    blocks_ahead: int = 4
    slices: tuple[str, ...] = ()
    schema: Schema | None = None

    def __post_init__(self) -> None:
        """Check each setting."""
        if self.batch_rows < 1 or self.blocks_ahead < 1 or self.skip_rows < 0:
            raise ConfigError("batch_rows and blocks_ahead are 1 or more, skip_rows is 0 or more")


class Reader:
    """Blocks of a stream, read by whoever asks for the next one.

    A context manager: entering reads the stream's schema, leaving stops. It never closes the file.

    Attributes:
        rows: The number of the row after the last Block that was given, from the stream's start.
        idle_seconds: How long whoever takes the Blocks has waited for them.
        stream_bytes: How many bytes were read; some of them may be of rows that are still to come.
    """

    def __init__(self, file: Readable, settings: ReadSettings | None = None) -> None:
        """Read nothing yet.

        Args:
            file: Where the stream comes from.
            settings: How to read it.
        """
        self._settings = settings or ReadSettings()
        self._file = file
        self._source: _Source = _FileSource(file)
        self._parser = StreamParser(self._settings.schema)
        self._joiner: Joiner | None = None
        self._blocks: Iterator[Block] | None = None
        self.rows = self._settings.skip_rows
        self.idle_seconds = 0.0
        self.stream_bytes = 0

    @property
    def features(self) -> Features:
        """The layout of the Blocks, and with it the schema; known once entered."""
        if self._joiner is None:
            raise _not_entered()
        return self._joiner.features

    def __enter__(self) -> Self:
        """Read as far as the schema.

        Raises:
            StreamError: It is no stream, or its columns do not fit the schema.
        """
        self._source = _source(self._file)
        try:
            while self._parser.arrow_schema is None:
                count = self._source.read(self._parser.room(), None)
                if count:
                    self._parser.filled(count)
                else:
                    self._parser.finish()
            self._joiner = Joiner(self._laid_out(), self._settings.slices)
            self._joiner.check(self._parser.arrow_schema)
            self._blocks = _Cutter(self._source, self._parser, self._joiner, self._settings).blocks()
        except BaseException:
            self.close()
            raise
        return self

    def _laid_out(self) -> Features:
        if self._parser.schema is None:
            raise StreamError("it has no schema; give one")
        try:
            return Features.of(self._parser.schema)
        except ConfigError as error:
            if self._settings.schema is None:  # The stream's own is wrong, not a setting.
                raise StreamError(error.message) from error
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop reading."""
        self.close()

    def __iter__(self) -> Iterator[Block]:
        """Give the Blocks, each once.

        Raises:
            StreamError: After the last good row.
        """
        while True:
            began = time.perf_counter()
            block = self._next()
            self.idle_seconds += time.perf_counter() - began
            self.stream_bytes = self._parser.position.bytes
            if block is None:
                return
            self.rows = block.first_row + len(block)
            yield block

    def close(self) -> None:
        """Stop reading; the file stays open, and what was read ahead of it is lost."""
        self._source.close()

    def _next(self) -> Block | None:
        if self._blocks is None:
            raise _not_entered()
        return next(self._blocks, None)


def _not_entered() -> ConfigError:
    return ConfigError("a Reader is entered (`with reader:`) before it is used")


class BackgroundReader(Reader):
    """The same, read ahead by a thread: parsing and joining overlap with learning.

    Closing it early never hangs, wherever the thread is: waiting for bytes it is woken up through a pipe,
    waiting for someone to take a Block through a semaphore.
    """

    def __init__(self, file: Readable, settings: ReadSettings | None = None) -> None:
        """Read nothing yet; see ``Reader``."""
        super().__init__(file, settings)
        self._made: SimpleQueue[Block | Exception | None] = SimpleQueue()
        self._places = threading.Semaphore(self._settings.blocks_ahead)
        self._closed = False
        self._ended = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Read as far as the schema, then begin to read ahead; see ``Reader``."""
        super().__enter__()
        self._thread = threading.Thread(target=self._run, name="headrace-reader", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop the thread; see ``Reader``."""
        self._closed = True
        self._source.wake()
        self._places.release()
        if self._thread is not None:
            self._thread.join(None if self._source.wakes else _CLOSE_SECONDS)
        super().close()

    def _next(self) -> Block | None:
        if self._ended:
            return None
        if self._thread is None:
            raise _not_entered()
        made = self._made.get()
        self._places.release()
        if isinstance(made, Block):
            return made
        self._ended = True
        if made is not None:
            raise made
        return None

    def _run(self) -> None:
        try:
            for block in self._blocks or ():
                self._places.acquire()
                if self._closed:
                    return
                self._made.put(block)
        except _Woken:
            pass
        except Exception as error:  # noqa: BLE001  # The thread's end: raised again where Blocks are taken.
            self._made.put(error)
        finally:
            self._made.put(None)


class _Cutter:
    """Cuts record batches, of whatever sizes they come in, into Blocks of one size."""

    def __init__(self, source: _Source, parser: StreamParser, joiner: Joiner, settings: ReadSettings) -> None:
        self._source, self._parser, self._joiner, self._settings = source, parser, joiner, settings
        self._waiting: deque[pa.RecordBatch] = deque()
        self._rows = 0
        self._first_row = 0
        self._due: float | None = None
        self._dry = False

    def blocks(self) -> Iterator[Block]:
        """Read to the end."""
        try:
            while self._read():
                while self._rows >= self._settings.batch_rows:
                    yield from self._block(self._settings.batch_rows)
                # Only when no bytes wait: a slow learner is no slow stream, and its Blocks stay whole.
                if self._dry and self._due is not None and time.monotonic() >= self._due:
                    yield from self._block(self._rows)
        except StreamError:
            yield from self._block(self._rows)
            raise
        yield from self._block(self._rows)
        if self._first_row < self._settings.skip_rows:
            raise StreamError(
                f"it has {self._first_row} rows, fewer than the {self._settings.skip_rows} that were to be "
                "skipped; is it the stream that the checkpoint was learnt from?",
                row=self._first_row,
            )

    def _read(self) -> bool:
        """Wait for bytes, and take them; False at the end of the stream."""
        timeout = None if self._due is None else max(0.0, self._due - time.monotonic())
        count = self._source.read(self._parser.room(), timeout)
        self._dry = count is None
        if count is None:
            return True
        if count == 0:
            self._parser.finish()
            return False
        if (batch := self._parser.filled(count)) is not None:
            self._add(batch)
        return True

    def _add(self, batch: pa.RecordBatch) -> None:
        skipped = min(batch.num_rows, max(0, self._settings.skip_rows - self._first_row))
        self._first_row += skipped
        if skipped == batch.num_rows:
            return
        if not self._rows and self._settings.linger_seconds is not None:
            self._due = time.monotonic() + self._settings.linger_seconds
        self._waiting.append(batch.slice(skipped))
        self._rows += batch.num_rows - skipped

    def _block(self, rows: int) -> Iterator[Block]:
        """Join the next rows; where one is wrong, those before it, then raise."""
        if not rows:
            return
        batches, first_row = self._take(rows), self._first_row
        self._first_row += rows
        try:
            block = self._joiner.join_all(batches, first_row)
        except StreamError as error:
            self._waiting, self._rows = deque(batches), rows
            good = self._take(error.row - first_row)
            self._waiting.clear()
            self._rows = 0
            if good:
                yield self._joiner.join_all(good, first_row)
            raise
        yield block

    def _take(self, rows: int) -> list[pa.RecordBatch]:
        taken = []
        self._rows -= rows
        while rows:
            batch = self._waiting.popleft()
            if batch.num_rows > rows:
                self._waiting.appendleft(batch.slice(rows))
                batch = batch.slice(0, rows)
            taken.append(batch)
            rows -= batch.num_rows
        lingers = self._settings.linger_seconds is not None and self._rows
        self._due = time.monotonic() + (self._settings.linger_seconds or 0.0) if lingers else None
        return taken


# ---- Where bytes come from -----------------------------------------------------------------------


class _Woken(Exception):
    """Reading was ended from outside."""


class _Source(Protocol):
    """Bytes. ``wakes`` says whether a read that waits can be ended by ``wake``."""

    wakes: bool

    def read(self, room: memoryview, timeout: float | None) -> int | None:
        """Fill some room; 0 at the end, None when the timeout in seconds has passed."""

    def wake(self) -> None:
        """End the read that waits now, if any, and all later ones, with ``_Woken``."""

    def close(self) -> None:
        """Let go of what was made for reading."""


class _FileSource:
    """A file without a descriptor, such as one in memory."""

    wakes = False

    def __init__(self, file: Readable) -> None:
        self._file = file
        self._woken = False

    def read(self, room: memoryview, timeout: float | None) -> int | None:
        del timeout
        if self._woken:
            raise _Woken
        return self._file.readinto(room)

    def wake(self) -> None:
        self._woken = True

    def close(self) -> None:
        self._woken = True


class _DescriptorSource:
    """A descriptor, waited for together with a pipe that wakes it up."""

    wakes = True

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._listen, self._ring = os.pipe()
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self._poll.register(self._listen, select.POLLIN)
        self._open = True
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            _widen(descriptor)

    def read(self, room: memoryview, timeout: float | None) -> int | None:
        ready = self._poll.poll(None if timeout is None else timeout * 1000)
        if any(descriptor == self._listen for descriptor, _ in ready):
            raise _Woken
        if not ready:
            return None
        try:
            return os.readv(self._descriptor, [room])
        except BlockingIOError:
            return None
        except OSError as error:
            raise StreamError(f"it cannot be read: {error.strerror}") from error

    def wake(self) -> None:
        if self._open:
            os.write(self._ring, b"x")

    def close(self) -> None:
        if self._open:
            self._open = False
            os.close(self._listen)
            os.close(self._ring)


def _source(file: Readable) -> _Source:
    try:
        descriptor = file.fileno()  # type: ignore[attr-defined]  # Not every file has one.
    except (AttributeError, OSError):
        return _FileSource(file)
    return _DescriptorSource(descriptor)


def _widen(descriptor: int) -> None:
    with contextlib.suppress(ImportError, AttributeError, OSError):
        # Only Linux has it, and it may be forbidden: then the pipe stays as it is.
        import fcntl  # noqa: PLC0415

        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
