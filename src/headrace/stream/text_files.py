"""Read text files for all commands: whole lines, and CSV, every column as text, with errors that name causes.

Lines are read in large pieces; from a live source, those that have arrived.
"""

from __future__ import annotations

import csv
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from headrace.base.errors import ConfigError, StreamError, shown
from headrace.base.tensors import Array
from headrace.stream.byte_sources import Readable, source_of
from headrace.stream.text_or_number import trimmed

PIECE_BYTES = 2**20
"""Size of a piece when more lines are available."""

MOST_LINE_BYTES = 2**24
"""Maximum size of a line; line ends within quoted cells do not end it."""

_LINGER_SECONDS = 0.1
"""Time that a line of a live source waits for others: ten small batches a second cost next to nothing."""

_FIRST_LINGER_SECONDS = 0.5
"""Time that the first line waits for others: columns are inferred from the lines that arrive meanwhile."""

_QUOTE = ord('"')

Whole = Callable[[bytearray], int]
"""Return the size in bytes of the whole lines at the start of a text.

The text must start where a line starts. The function is called repeatedly while the text grows, and examines
each byte once: the caller must remove the whole lines that it found before the next call.
"""

_BOM = b"\xef\xbb\xbf"
_OTHER_ENCODINGS = {b"\xff\xfe": "UTF-16 or UTF-32", b"\xfe\xff": "UTF-16", b"\x00": "UTF-16 or UTF-32"}
_WAY_OUT = "save it as UTF-8 (Excel: CSV UTF-8)"
_NUL_WITHIN = 64
_SPACE_AND_QUOTE = r'^[ \t]+"'


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
            StreamError: The line is too long, or the source cannot be read.
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
        return _LINGER_SECONDS if self.live else _FIRST_LINGER_SECONDS

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


class CsvRows:
    """Reads a CSV file piece by piece.

    Attributes:
        names: The columns' names; columns without one are left out.
        nameless: Number of columns without a name, from pandas' row index or delimiters at line ends.
        has_spaces: Whether spaces or tabs around values were removed.
    """

    def __init__(self, lines: Lines, delimiter: str, columns: Sequence[str] = ()) -> None:
        """Read the first line, unless the columns are known.

        Args:
            lines: The file.
            delimiter: The character between columns.
            columns: The columns' names, if the first line does not name them.

        Raises:
            ConfigError: The first line is not a list of distinct names, or the file is not UTF-8.
            StreamError: The first line is too long.
        """
        self._lines, self._delimiter = lines, delimiter
        self._is_first = True
        self.has_spaces = False
        all_names = [name.strip() for name in columns] if columns else self._header()
        self.names = [name for name in all_names if name]
        self.nameless = len(all_names) - len(self.names)
        twice = [name for name, count in Counter(self.names).items() if count > 1]
        if twice:
            raise ConfigError(f"expected each column once, got {shown(twice[0])} twice; rename one of them")
        # Arrow requires distinct names, even for columns that are left out.
        self._all_names = [name or f"\0{index}" for index, name in enumerate(all_names)]
        delimiting = re.escape(delimiter.encode())
        # A quote after a backslash, followed by more of the cell.
        self._backslash = re.compile(rb'\\"(?!["\r\n' + delimiting + rb"]|\Z)")
        # The same at the end of a cell, where it could also be a backslash and a doubled quote.
        self._backslash_last = re.compile(rb'(?<!\\)\\""(?=[\r\n' + delimiting + rb"]|\Z)")
        self._space_and_quote = re.compile(delimiting + rb'[ \t]+"')
        self._doubled = re.compile(rb'[^\\"\r\n' + delimiting + rb']""')

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows; each cell is a text without spaces around it, or null.

        Raises:
            ConfigError: The file is not UTF-8.
            StreamError: A row cannot be read.
        """
        first_row = 0
        for piece in self._pieces():
            self._check(piece, first_row)
            table = self._table(piece, first_row)
            if _may_have_spaces(piece, self._delimiter):
                table = self._trimmed(table, first_row)
            yield from table.to_batches()
            first_row += table.num_rows

    @property
    def doubts(self) -> list[str]:
        """Sentences about data that was left out or changed."""
        said = []
        if self.nameless:
            are = "1 column has no name" if self.nameless == 1 else f"{self.nameless} columns have no name"
            said.append(f"{are} in the first line (pandas writes its row index like this); ignored")
        if self.has_spaces:
            said.append("the spaces around values are removed")
        return said

    def _header(self) -> list[str]:
        line = self._lines.first()
        while line in (b"\n", b"\r\n", b"\r"):
            line = self._lines.first()
        self._check_encoding(line)
        self._is_first = False
        try:
            text = line.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            problem = f"expected UTF-8, got the byte {line[error.start]:#04x} in the first line"
            raise ConfigError(f"{problem}; {_WAY_OUT}") from None
        if text.count('"') % 2:
            raise ConfigError(
                "the first line has an odd number of quotation marks, so a name contains a quotation mark or "
                "a line end; rename that column"
            )
        try:
            names = next(csv.reader([text], delimiter=self._delimiter), [])
        except csv.Error as error:
            raise ConfigError(f"expected a first line that names the columns: {error}") from None
        quoted = next((name for name in names if re.match(_SPACE_AND_QUOTE, name)), None)
        if quoted is not None:
            raise ConfigError(f"expected a quotation mark right after the delimiter, got {shown(quoted)}")
        return [name.strip() for name in names]

    def _pieces(self) -> Iterator[bytes]:
        for piece in self._lines:
            if self._is_first:
                self._check_encoding(piece)
                piece = piece.removeprefix(_BOM)  # noqa: PLW2901
                self._is_first = False
            yield piece

    def _check_encoding(self, begin: bytes) -> None:
        for mark, encoding in _OTHER_ENCODINGS.items():
            if begin.startswith(mark) or (mark == b"\x00" and mark in begin[:_NUL_WITHIN]):
                raise ConfigError(f"expected UTF-8, got {encoding}; {_WAY_OUT}")

    def _table(self, piece: bytes, first_row: int) -> pa.Table:
        convert = arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(self.names, pa.string()),
            include_columns=self.names,
            null_values=[""],
            strings_can_be_null=True,
        )
        parse = arrow_csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True)
        # Arrow's errors name the row only with one thread and the whole piece in one block.
        read = arrow_csv.ReadOptions(
            column_names=self._all_names, use_threads=False, block_size=len(piece) + 1
        )
        try:
            return arrow_csv.read_csv(pa.BufferReader(piece), read, parse, convert)
        except pa.ArrowInvalid as error:
            if "Empty CSV file" in str(error):
                return pa.table({name: pa.array([], pa.string()) for name in self.names})
            raise self._error(error, first_row, piece) from error

    def _check(self, piece: bytes, first_row: int) -> None:
        """Refuse a backslash before a quotation mark (Spark, MySQL): the cell would end there."""
        if b'\\"' not in piece:
            return
        found = self._backslash.search(piece)
        if not (found or self._doubled.search(piece)):
            found = self._backslash_last.search(piece)
        if found:
            before = piece[: WholeRows(self._delimiter)(bytearray(piece[: found.start() + 1]))]
            row = first_row + self._table(before, first_row).num_rows
            raise StreamError(
                'expected "" for a quotation mark within a quoted value, got \\" (a backslash before it); '
                'write the file with doubled quotes (Spark: .option("escape", "\\""))',
                row=row,
            )

    def _trimmed(self, table: pa.Table, first_row: int) -> pa.Table:
        """Strip spaces from cells. Refuse a quotation mark after a space: it would quote nothing."""
        columns = [column.combine_chunks() for column in table.columns]
        bare = [trimmed(column) for column in columns]
        for name, column, stripped in zip(self.names, columns, bare, strict=True):
            if stripped.equals(column):
                continue
            self.has_spaces = True
            row = pc.index(pc.match_substring_regex(column, _SPACE_AND_QUOTE), True).as_py()
            if row >= 0:
                got = shown(column[row].as_py())
                problem = f"expected a quotation mark right after the delimiter, got {got}; remove the space"
                raise StreamError(problem, row=first_row + row, field=name)
        return pa.table(bare, table.schema)

    def _error(self, error: pa.ArrowInvalid, first_row: int, piece: bytes) -> StreamError:
        said = re.search(r"Row #(\d+): (.*)", str(error), re.DOTALL)
        row, text = (int(said[1]) - 1, said[2]) if said else (0, str(error))
        hint = _WAY_OUT if "UTF8" in text else f"columns are split at the delimiter {self._delimiter!r}"
        if "UTF8" not in text and self._space_and_quote.search(piece):
            hint += "; a quotation mark after a space does not open a quoted value: remove the space"
        return StreamError(f"{text}; {hint}", row=first_row + row)


def _may_have_spaces(piece: bytes, delimiter: str) -> bool:
    """Whether a cell may begin or end with a space; quoted cells may cause false positives."""
    values = np.frombuffer(piece, np.uint8)
    places = np.flatnonzero((values == ord(" ")) | (values == ord("\t")))
    if not len(places):
        return False
    edges = np.frombuffer(f'{delimiter}\n\r"'.encode(), np.uint8)
    before, after = values[np.maximum(places, 1) - 1], values[np.minimum(places + 1, len(values) - 1)]
    at_edge = np.isin(before, edges) | np.isin(after, edges) | (places == 0) | (places == len(values) - 1)
    if delimiter == "\t":
        at_edge &= values[places] != ord("\t")
    return bool(at_edge.any())
