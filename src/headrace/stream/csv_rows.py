"""The rows of CSV as every verb reads them: each column as text, and trouble named as what it is."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv

from headrace.errors import ConfigError, StreamError, shown
from headrace.stream.cells import trimmed
from headrace.stream.lines import Lines

_BOM = b"\xef\xbb\xbf"
_OTHER_ENCODINGS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"\x00": "UTF-16 or UTF-32"}
_SPACES = np.frombuffer(b" \t", np.uint8)
_WAY_OUT = "save it as UTF-8 (Excel: CSV UTF-8)"
_NUL_WITHIN = 64


class CsvRows:
    """Reads a CSV piece by piece.

    Attributes:
        names: The columns' names; "" for those that have none.
        has_spaces: Whether values with white space around them have been met; it is left out.
    """

    def __init__(self, lines: Lines, delimiter: str, columns: Sequence[str] = ()) -> None:
        """Read the first line, unless the columns are known.

        Args:
            lines: The file.
            delimiter: What stands between columns.
            columns: Their names, where no first line says them.

        Raises:
            ConfigError: The first line names a column twice, or is cut; or the file is no UTF-8.
            StreamError: The first line is too long.
        """
        self._lines, self._delimiter = lines, delimiter
        self._is_first = True
        self.has_spaces = False
        self.names = [name.strip() for name in columns] if columns else self._header()
        twice = [name for name, count in Counter(self.names).items() if name and count > 1]
        if twice:
            raise ConfigError(f"expected each column once, got {shown(twice[0])} twice; rename one of them")
        # Arrow wants names that differ; those of columns without one are nobody's.
        self._own_names = [name or f"\0{index}" for index, name in enumerate(self.names)]
        delimiting = re.escape(delimiter.encode())
        # A quote that a backslash precedes, and that is followed by more of the cell.
        self._backslash = re.compile(rb'\\"(?!["\r\n' + delimiting + rb"]|\Z)")

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Give the rows, of which each cell is a text without white space around it, or null.

        Raises:
            ConfigError: The file is no UTF-8.
            StreamError: A row cannot be read.
        """
        convert = arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(self._own_names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
        )
        parse = arrow_csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True)
        first_row = 0
        for piece in self._pieces():
            self._check(piece, first_row)
            # One thread, for which alone Arrow's errors say the row; the piece in one block.
            read = arrow_csv.ReadOptions(
                column_names=self._own_names, use_threads=False, block_size=len(piece) + 1
            )
            try:
                table = arrow_csv.read_csv(pa.BufferReader(piece), read, parse, convert)
            except pa.ArrowInvalid as error:
                if "Empty CSV file" in str(error):
                    continue
                raise self._error(error, first_row) from error
            if _has_spaces(piece, self._delimiter):
                self.has_spaces = True
                table = pa.table([trimmed(column.combine_chunks()) for column in table.columns], table.schema)
            for batch in table.to_batches():
                yield batch.rename_columns(self.names)
            first_row += table.num_rows

    def _header(self) -> list[str]:
        line = self._lines.first()
        self._check_encoding(line)
        self._is_first = False
        text = line.decode("utf-8-sig", "replace")
        if text.count('"') % 2:
            raise ConfigError(
                "the first line, which names the columns, ends within quotation marks: take the line end out"
            )
        return [name.strip() for name in next(csv.reader([text], delimiter=self._delimiter), [])]

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

    def _check(self, piece: bytes, first_row: int) -> None:
        """Refuse quotation marks that are written as Spark, MySQL and Hive do: cells would end at them."""
        if b'\\"' not in piece or b'"' not in piece:
            return
        found = self._backslash.search(piece)
        if found:
            row = first_row + piece.count(b"\n", 0, found.start())
            raise StreamError(
                'expected "" for a quotation mark within a quoted value, got \\" (a backslash before it); '
                'write the file with doubled quotes (Spark: .option("escape", "\\""))',
                row=row,
            )

    def _error(self, error: pa.ArrowInvalid, first_row: int) -> StreamError:
        said = re.search(r"Row #(\d+): (.*)", str(error), re.DOTALL)
        row, text = (int(said[1]) - 1, said[2]) if said else (0, str(error))
        hint = _WAY_OUT if "UTF8" in text else f"columns are split at the delimiter {self._delimiter!r}"
        return StreamError(f"{text}; {hint}", row=first_row + row)


def _has_spaces(piece: bytes, delimiter: str) -> bool:
    """Whether white space stands at the beginning or end of some cell."""
    values = np.frombuffer(piece, np.uint8)
    places = np.flatnonzero(np.isin(values, _SPACES))
    if not len(places):
        return False
    edges = np.frombuffer(f'{delimiter}\n\r"'.encode(), np.uint8)
    before, after = values[np.maximum(places, 1) - 1], values[np.minimum(places + 1, len(values) - 1)]
    at_edge = np.isin(before, edges) | np.isin(after, edges) | (places == 0) | (places == len(values) - 1)
    if delimiter == "\t":
        at_edge &= values[places] != ord("\t")
    return bool(at_edge.any())
