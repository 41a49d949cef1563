"""Read CSV for all commands: every column as text, with errors that name the cause."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from headrace.base.errors import ConfigError, StreamError, shown
from headrace.stream.text_lines import Lines, WholeRows
from headrace.stream.text_or_number import trimmed

_BOM = b"\xef\xbb\xbf"
_OTHER_ENCODINGS = {b"\xff\xfe": "UTF-16 or UTF-32", b"\xfe\xff": "UTF-16", b"\x00": "UTF-16 or UTF-32"}
_WAY_OUT = "save it as UTF-8 (Excel: CSV UTF-8)"
_NUL_WITHIN = 64
_SPACE_AND_QUOTE = r'^[ \t]+"'


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
