"""What people see on a terminal: tables, and one line that is renewed while something goes on."""

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
    """Align columns.

    Args:
        rows: The cells, all rows of one length. What would move a terminal's cursor is shown as `�`.
        right: The columns that are aligned on the right, such as numbers.
        indent: What each line begins with.

    Returns:
        The lines, without blanks at their ends.
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
    """A number of bytes with its unit, to a tenth: small files are not 0.0 MB."""
    if count < 1000:
        return f"{count} B"
    return f"{count / 1e3:.1f} kB" if count < 1e6 else f"{count / 1e6:,.1f} MB"


def counted(count: int, noun: str) -> str:
    """A number of things, with their noun in the singular or the plural, which ends in an s."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class Line:
    """One line that is renewed in place; nothing where nobody looks."""

    def __init__(
        self, file: TextIO, now: Callable[[], float] = time.monotonic, *, shown: bool | None = None
    ) -> None:
        """Show nothing yet.

        Args:
            file: The terminal; a file that is none is left alone.
            now: What tells the time, in seconds.
            shown: Whether to draw, whatever the file is.
        """
        self._file = file
        self._now = now
        self._shown = file.isatty() if shown is None else shown
        self._drawn = -math.inf
        self._width = 0

    @property
    def due(self) -> bool:
        """Whether it is time to say something new: what is renewed more often, nobody can read."""
        return self._shown and self._now() - self._drawn >= _REFRESH_SECONDS

    def show(self, text: str) -> None:
        """Show a text in place of the one before it."""
        if not self._shown:
            return
        self._drawn = self._now()
        self._write("\r" + text + " " * (self._width - _width(text)))
        self._width = _width(text)

    def clear(self) -> None:
        """Wipe the line away, to make room for another one."""
        if self._width:
            self._write("\r" + " " * self._width + "\r")
            self._width = 0

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # A terminal that has gone ends no work.
            self._file.write(text)
            self._file.flush()


def _printable(text: str) -> str:
    return text if text.isprintable() else "".join(one if one.isprintable() else "�" for one in text)


def _width(text: str) -> int:
    """How many places a text takes; ideographs take two, and marks on a letter none."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(one) in "WF" for one in text)
    return len(text) + wide - sum(unicodedata.combining(one) > 0 for one in text)


def fitted(text: str, columns: int, lines: int) -> list[str]:
    """Cut a text to a screen.

    Args:
        text: Lines; what would move the cursor is shown as `�`.
        columns: How wide the screen is.
        lines: How high it is.

    Returns:
        At least one line, none wider than the screen; the last one says how many are left out, if any.
    """
    shown = [_cut(_printable(line), columns) for line in text.split("\n")]
    if len(shown) > lines:
        left_out = len(shown) - lines + 1
        shown = [*shown[: lines - 1], _cut(f"… and {left_out:,} lines more", columns)]
    return shown


def _cut(line: str, columns: int) -> str:
    if _width(line) <= columns:
        return line
    while line and _width(line) >= columns:
        line = line[:-1]
    return line + "…"
