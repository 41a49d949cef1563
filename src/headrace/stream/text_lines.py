"""Read whole lines of a text in large pieces; from a live source, the lines that have arrived."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from headrace.base.errors import StreamError
from headrace.base.tensors import Array
from headrace.stream.byte_sources import Readable, source_of

PIECE_BYTES = 2**20
"""Size of a piece when more lines are available."""

MOST_LINE_BYTES = 2**24
"""Maximum size of a line; line ends within quoted cells do not end it."""

LINGER_SECONDS = 0.1
"""Time that a line of a live source waits for others: ten small batches a second cost next to nothing."""

FIRST_LINGER_SECONDS = 0.5
"""Time that the first line waits for others: columns are inferred from the lines that arrive meanwhile."""

_QUOTE = ord('"')

Whole = Callable[[bytearray], int]
"""Return the size in bytes of the whole lines at the start of a text.

The text must start where a line starts. The function is called repeatedly while the text grows, and examines
each byte once: the caller must remove the whole lines that it found before the next call.
"""


class WholeLines:
    """Finds whole lines in a growing text."""

    def __init__(self) -> None:
        """Begin with an empty text."""
        self._seen = 0

    def __call__(self, text: bytearray) -> int:
        """Return the size of the whole lines, in bytes."""
        count = text.rfind(b"\n", self._seen) + 1
        self._seen = len(text) - count
        return count


class WholeRows:
    """Finds whole rows in a growing CSV text, whose quoted cells may contain line ends.

    Cells are split as by Arrow, which reads the rows: a quote that does not start a cell is text.
    """

    def __init__(self, delimiter: str) -> None:
        """Begin with an empty text.

        Args:
            delimiter: The separator of cells.
        """
        self._delimiter = delimiter
        self._seen = 0
        self._quoted = False
        self._has_line_end = False

    def __call__(self, text: bytearray) -> int:
        """Return the size of the whole rows, in bytes."""
        start = self._start(text)
        tail = start + bytes(text[self._seen :])
        last, mark = tail.rfind(b"\n"), b"\n"
        if last < 0 and not self._has_line_end:
            # Lines may end with a carriage return; one at the very end may be half of a line end.
            last, mark = tail.rfind(b"\r", 0, -1), b"\r"
        quotes = _quotes(tail, self._delimiter) if b'"' in tail else np.empty(0, np.int64)
        offset = self._seen - len(start)
        end = _line_end(tail, last, mark, quotes)
        count = offset + end + 1 if end >= 0 else 0
        is_in_cell = mark == b"\n" and last > end
        self._has_line_end = is_in_cell or (self._has_line_end and not count)
        # A closing quote at the end may prove to be the first of a doubled one.
        self._quoted = len(quotes) % 2 == 1
        self._seen = len(text) - count
        if not self._quoted and len(quotes) and quotes[-1] == len(tail) - 1:
            self._quoted = True
            self._seen -= 1
        return count

    def _start(self, text: bytearray) -> bytes:
        """Return at most one byte that stands for the state after the bytes examined so far."""
        if self._quoted:
            return b'"'
        before = bytes(text[max(0, self._seen - 1) : self._seen])
        return b"x" if before == b'"' else before


def _line_end(text: bytes, last: int, mark: bytes, quotes: Array) -> int:
    """Return the position of the last ``mark`` outside quoted cells, at most ``last``; -1 for none."""
    end = last
    while end >= 0:
        before = int(np.searchsorted(quotes, end))
        if before % 2 == 0:
            return end
        end = text.rfind(mark, 0, int(quotes[before - 1]))
    return -1


def _quotes(text: bytes, delimiter: str) -> Array:
    """Return the positions of quotes that open and close cells, in turn; a doubled one counts as both."""
    values = np.frombuffer(text, np.uint8)
    quotes = np.flatnonzero(values == _QUOTE)
    opening = quotes[::2]
    before = values[np.maximum(opening, 1) - 1]
    starts = (opening == 0) | np.isin(before, np.frombuffer(f"{delimiter}\n\r".encode(), np.uint8))
    starts[1:] |= opening[1:] == quotes[1 : 2 * len(opening) - 1 : 2] + 1
    if starts.all():
        return quotes
    # Some are text. Leaving them out is slower, and they are rare.
    cells = re.compile(rb'(?:(?<=[\n\r%s])|\A)"(?:[^"]++|"")*+("?)' % re.escape(delimiter.encode()))
    found: list[int] = []
    for cell in cells.finditer(text):
        found += (cell.start(), cell.end() - 1) if cell[1] else (cell.start(),)
    return np.array(found, np.int64)


class File(Readable, Protocol):
    """A file that can be closed."""

    def close(self) -> None:
        """Close the file."""


class Lines:
    """The lines of a file, in pieces.

    Attributes:
        source: The source that reads the file.
        live: Whether a piece was returned because no more bytes had arrived, which means that lines are
            written as events happen; always False for a regular file.
    """

    def __init__(self, file: File, whole: Whole) -> None:
        """Prepare; nothing is read yet.

        Args:
            file: The file.
            whole: Finds whole lines in its text.
        """
        self.live = False
        self.source = source_of(file)
        self._file = file
        self._whole = whole
        self._text = bytearray()
        self._room = memoryview(bytearray(PIECE_BYTES))
        self._over = False

    def close(self) -> None:
        """Close the file."""
        self.source.close()
        self._file.close()

    def first(self) -> bytes:
        """Return the first line as soon as it is complete; the whole text if it ends before.

        Raises:
            StreamError: The line is too long.
        """
        seen = 0
        while (end := self._first_end(seen)) < 0 and not self._over:
            seen = max(0, len(self._text) - 1)
            self._read(None)
            self._check_line()
        return self._cut(end + 1 if end >= 0 else len(self._text))

    def _first_end(self, start: int) -> int:
        """Return the end of the first line, which may be a lone carriage return; -1 while there is none."""
        end = self._text.find(b"\n", start)
        alone = self._text.find(b"\r", start, end if end >= 0 else len(self._text))
        is_alone = 0 <= alone < len(self._text) - 1 and alone + 1 != end
        return alone if is_alone else end

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces; the last one may end within a line.

        Raises:
            StreamError: A line is too long, or the source cannot be read.
        """
        while piece := self._piece():
            yield piece

    def _piece(self) -> bytes:
        due: float | None = time.monotonic() + self._linger() if self._text else None
        while not self._over:
            if len(self._text) >= PIECE_BYTES:
                if count := self._whole(self._text):
                    return self._cut(count)
                self._check_line()
            came = self._read(None if due is None else max(0.0, due - time.monotonic()))
            if came and due is None:
                due = time.monotonic() + self._linger()
            elif came is None:
                if count := self._whole(self._text):
                    self.live = True
                    return self._cut(count)
                due = None  # A partial line: wait for the rest without a deadline.
        return self._cut(len(self._text))

    def _linger(self) -> float:
        return LINGER_SECONDS if self.live else FIRST_LINGER_SECONDS

    def _read(self, timeout: float | None) -> bool | None:
        """Wait for bytes, and append them; return False at the end, None after the timeout."""
        rest = PIECE_BYTES - len(self._text)
        count = self.source.read(self._room[:rest] if rest > 0 else self._room, timeout)
        if count is None:
            return None
        self._text += self._room[:count]
        self._over = not count
        return not self._over

    def _cut(self, count: int) -> bytes:
        piece = bytes(memoryview(self._text)[:count])
        del self._text[:count]
        return piece

    def _check_line(self) -> None:
        if len(self._text) > MOST_LINE_BYTES:
            raise StreamError(
                f"a line is longer than the maximum of {MOST_LINE_BYTES} bytes; is a quote never closed, or "
                "is the file not text?"
            )
