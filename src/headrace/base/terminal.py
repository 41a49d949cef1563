"""Terminal output: tables, and a progress line that is redrawn in place."""

from __future__ import annotations

import contextlib
import math
import time
import unicodedata
from collections.abc import Callable, Collection, Sequence
from typing import TextIO

_REFRESH_SECONDS = 0.1
_SPACE = "  "


def table(rows: Sequence[Sequence[str]], right: Collection[int] = (), *, indent: str = "") -> str:
    """Return rows as text with aligned columns.

    Args:
        rows: The cells, all rows of one length. Control characters are shown as `�`.
        right: Indices of the columns to align on the right, such as numbers.
        indent: Prefix of each line.

    Returns:
        The lines, without trailing blanks.
    """
    shown = [[_printable(cell) for cell in row] for row in rows]
    widths = [max(map(_width, column)) for column in zip(*shown, strict=True)]
    lines = []
    for row in shown:
        cells = []
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            blank = " " * (width - _width(cell))
            cells.append(blank + cell if column in right else cell + blank)
        lines.append(f"{indent}{_SPACE.join(cells)}".rstrip())
    return "\n".join(lines)


def size(count: int) -> str:
    """Format a number of bytes in B, or in kB or MB with one decimal."""
    if count < 1000:
        return f"{count} B"
    return f"{count / 1e3:.1f} kB" if count < 1e6 else f"{count / 1e6:,.1f} MB"


def counted(count: int, noun: str) -> str:
    """Format a count with its noun, which gets an s in the plural."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class Line:
    """A line that is redrawn in place, by default only on a terminal."""

    def __init__(
        self, file: TextIO, now: Callable[[], float] = time.monotonic, *, shown: bool | None = None
    ) -> None:
        """Create the line without drawing it.

        Args:
            file: Where to draw.
            now: Returns the time in seconds.
            shown: Whether to draw; None to draw only if the file is a terminal.
        """
        self._file = file
        self._now = now
        self._shown = file.isatty() if shown is None else shown
        self._drawn = -math.inf
        self._width = 0

    @property
    def due(self) -> bool:
        """Whether the line should be redrawn; more frequent updates would be unreadable."""
        return self._shown and self._now() - self._drawn >= _REFRESH_SECONDS

    def show(self, text: str) -> None:
        """Replace the line by a text."""
        if not self._shown:
            return
        self._drawn = self._now()
        self._write("\r" + text + " " * (self._width - _width(text)))
        self._width = _width(text)

    def clear(self) -> None:
        """Clear the line, to make room for other output."""
        if self._width:
            self._write("\r" + " " * self._width + "\r")
            self._width = 0

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # A closed terminal must not end the work.
            self._file.write(text)
            self._file.flush()


def _printable(text: str) -> str:
    return text if text.isprintable() else "".join(one if one.isprintable() else "�" for one in text)


def _width(text: str) -> int:
    """Return the width of a text in columns; wide characters take two, combining marks none."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(one) in "WF" for one in text)
    return len(text) + wide - sum(unicodedata.combining(one) > 0 for one in text)


def fitted(text: str, columns: int, lines: int) -> list[str]:
    """Cut a text to the size of a screen.

    Args:
        text: The lines; control characters are shown as `�`.
        columns: Width of the screen.
        lines: Height of the screen.

    Returns:
        At least one line, none wider than the screen; the last one states how many lines were cut, if any.
    """
    shown = [_cut(_printable(line), columns) for line in text.split("\n")]
    if len(shown) > lines:
        left_out = len(shown) - lines + 1
        shown = [*shown[: lines - 1], _cut(f"… and {left_out:,} more lines", columns)]
    return shown


def _cut(line: str, columns: int) -> str:
    if _width(line) <= columns:
        return line
    while line and _width(line) >= columns:
        line = line[:-1]
    return line + "…"
