"""Whole lines of a text as they come: large pieces of a file, and of a live source what is there by now."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from headrace.errors import StreamError
from headrace.stream.sources import Readable, source_of
from headrace.tensors import Array

PIECE_BYTES = 2**20
"""How large a piece is where more lines are there than are taken at once."""

MOST_LINE_BYTES = 2**24
"""The longest line, with all lines of its quoted cells."""

LINGER_SECONDS = 0.1
"""How long a line of a live source waits for others: ten small batches a second cost next to nothing."""

FIRST_LINGER_SECONDS = 0.5
"""How long the first line waits: what the columns are is guessed from those that come meanwhile."""

_QUOTE = ord('"')

Whole = Callable[[bytearray], int]
"""How many bytes at the start of a text, which starts with a line, are whole lines.

It is asked again and again while the text grows, and looks at each byte once: whole lines that it has found
are taken away before it is asked again.
"""


class WholeLines:
    """Tells how much of a text is whole lines."""

    def __init__(self) -> None:
        """Begin with an empty text."""
        self._seen = 0

    def __call__(self, text: bytearray) -> int:
        """How many bytes are whole lines."""
        count = text.rfind(b"\n", self._seen) + 1
        self._seen = len(text) - count
        return count


class WholeRows:
    """Tells how much of a CSV is whole rows: a quoted cell may hold line ends.

    Cells are told apart as Arrow does, which reads the rows: a quote that does not start a cell is text.
    """

    def __init__(self, delimiter: str) -> None:
        """Begin with an empty text.

        Args:
            delimiter: What separates cells.
        """
        self._delimiter = delimiter
        self._seen = 0
        self._quoted = False
        self._has_line_end = False

    def __call__(self, text: bytearray) -> int:
        """How many bytes are whole rows."""
        start = self._start(text)
        tail = start + bytes(text[self._seen :])
        last = tail.rfind(b"\n")
        if last < 0 and not self._has_line_end:
            # Lines may end so; the last may be half of an end.
            count = text.rfind(b"\r", max(0, self._seen - 1), len(text) - 1) + 1
            if count:
                self._seen, self._quoted = 0, False
                return count
        quotes = _quotes(tail, self._delimiter) if b'"' in tail else np.empty(0, np.int64)
        offset = self._seen - len(start)
        end = _line_end(tail, last, quotes)
        count = offset + end + 1 if end >= 0 else 0
        self._has_line_end = last > end or (self._has_line_end and not count)
        # A quote at the end that closes a cell may be doubled by what comes next.
        self._quoted = len(quotes) % 2 == 1
        self._seen = len(text) - count
        if not self._quoted and len(quotes) and quotes[-1] == len(tail) - 1:
            self._quoted = True
            self._seen -= 1
        return count

    def _start(self, text: bytearray) -> bytes:
        """One byte that stands for all that was seen."""
        if self._quoted:
            return b'"'
        before = bytes(text[max(0, self._seen - 1) : self._seen])
        return b"x" if before == b'"' else before


def _line_end(text: bytes, last: int, quotes: Array) -> int:
    """Where the last line end is that is in no cell; the last of all is given; -1 for none."""
    end = last
    while end >= 0:
        before = int(np.searchsorted(quotes, end))
        if before % 2 == 0:
            return end
        end = text.rfind(b"\n", 0, int(quotes[before - 1]))
    return -1


def _quotes(text: bytes, delimiter: str) -> Array:
    """Where quotes open and close cells, by turns; one that is doubled within a cell closes and opens it."""
    values = np.frombuffer(text, np.uint8)
    quotes = np.flatnonzero(values == _QUOTE)
    opening = quotes[::2]
    before = values[np.maximum(opening, 1) - 1]
    starts = (opening == 0) | np.isin(before, np.frombuffer(f"{delimiter}\n\r".encode(), np.uint8))
    starts[1:] |= opening[1:] == quotes[1 : 2 * len(opening) - 1 : 2] + 1
    if starts.all():
        return quotes
    # Some are text. It takes longer to leave them out, and they are rare.
    cells = re.compile(rb'(?:(?<=[\n\r%s])|\A)"(?:[^"]++|"")*+("?)' % re.escape(delimiter.encode()))
    found: list[int] = []
    for cell in cells.finditer(text):
        found += (cell.start(), cell.end() - 1) if cell[1] else (cell.start(),)
    return np.array(found, np.int64)


class File(Readable, Protocol):
    """A file that can be closed."""

    def close(self) -> None:
        """Let go of it."""


class Lines:
    """The lines of a file, in pieces.

    Attributes:
        source: What reads the file.
        live: Whether a piece was given because nothing more had come, so that somebody writes lines as they
            happen; never so of a file.
    """

    def __init__(self, file: File, whole: Whole) -> None:
        """Read nothing yet.

        Args:
            file: Where the bytes come from.
            whole: Tells how much of them is whole lines.
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
        """The first line, as soon as it is there; what there is if the text ends before it does.

        Raises:
            StreamError: It is too long.
        """
        seen = 0
        while (end := self._first_end(seen)) < 0 and not self._over:
            seen = max(0, len(self._text) - 1)
            self._read(None)
            self._check_line()
        return self._cut(end + 1 if end >= 0 else len(self._text))

    def _first_end(self, start: int) -> int:
        """Where the first line ends; -1 while it has not. Lines may end with a carriage return alone."""
        end = self._text.find(b"\n", start)
        alone = self._text.find(b"\r", start, end if end >= 0 else len(self._text))
        is_alone = 0 <= alone < len(self._text) - 1 and alone + 1 != end
        return alone if is_alone else end

    def __iter__(self) -> Iterator[bytes]:
        """Give the pieces; the last one may end within a line.

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
                due = None  # Half a line: the rest will come when it comes.
        return self._cut(len(self._text))

    def _linger(self) -> float:
        return LINGER_SECONDS if self.live else FIRST_LINGER_SECONDS

    def _read(self, timeout: float | None) -> bool | None:
        """Wait for bytes, and take them; False at the end, None if the time is over."""
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
                f"a line has more than {MOST_LINE_BYTES} bytes, which is the most that is taken; is a quote "
                "never closed, or is it no text?"
            )
