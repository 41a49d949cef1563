"""Files of columns, read in batches: Parquet, Arrow's file and stream formats, CSV."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Literal, get_args

from headrace.base.errors import (
    ConfigError,
    HeadraceError,
    InvalidRequest,
    NotFound,
    StreamError,
    needs_extra,
    shown,
)

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:  # as with every optional package
    raise needs_extra("loading a file", "train", error) from error

from headrace.stream.text_files import CsvRows, Lines, WholeRows

Format = Literal["parquet", "arrow", "csv"]
FORMATS: tuple[Format, ...] = get_args(Format)

_SUFFIXES: dict[str, Format] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "csv",
}
_COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_ARROW_FILE = b"ARROW1"
_MOST_LINES = 10_000_000  # beyond this, finding a line takes longer than it is worth


class ColumnFile:
    """A file of columns that can be read from its beginning any number of times.

    Attributes:
        path: Path of the file.
        format: Format of the file.
        schema: Columns of the file; those of a CSV file are all texts.
        rows: Number of rows; None if it is not known without reading the file.
        doubts: Possibly unexpected ways in which a CSV file is read, as sentences.
        share: Share of the file that has been read, from 0 to 1.
    """

    def __init__(self, path: Path, format_: Format | None = None, delimiter: str = "") -> None:
        """Read the columns of a file.

        Args:
            path: Path of the file; CSV may be compressed (``.gz``, ``.bz2``, ``.zst``).
            format_: Format; None to derive it from the name.
            delimiter: Delimiter of a CSV file; "" for a comma, or a tab in ``.tsv``.

        Raises:
            NotFound: The file does not exist.
            InvalidRequest: The file has another format, cannot be read, or has two columns of the same name.
        """
        if not path.is_file():
            raise NotFound(f"{path}: there is no such file{'; it is a folder' if path.is_dir() else ''}")
        self.path, self.format = path, format_ or _format_of(path)
        names = path.suffixes[-2:]
        self._delimiter = delimiter or ("\t" if ".tsv" in names else ",")
        self.rows: int | None = None
        self.doubts: list[str] = []
        self.share = 0.0
        with self._reading():
            self.schema = self._look()
        name, count = Counter(self.schema.names).most_common(1)[0] if self.schema.names else ("", 0)
        if count > 1:
            raise InvalidRequest(f"{path}: expected each column once, got {shown(name)} {count} times")

    def batches(self, columns: list[str], rows: int) -> Generator[pa.RecordBatch, None, None]:
        """Yield the rows of the file.

        Args:
            columns: Names of the columns.
            rows: Maximum number of rows in a batch.

        Raises:
            InvalidRequest: The file is damaged; the error names the row if it is known.
        """
        readers = {"parquet": self._parquet, "arrow": self._arrow, "csv": self._csv}
        self.share = 0.0
        done = 0
        with self._reading():
            for large in readers[self.format](columns, rows):
                if self.format != "csv":
                    large.validate(full=True)  # damaged buffers must not be accessed
                for start in range(0, large.num_rows, rows):
                    batch = large.slice(start, rows)
                    done += batch.num_rows
                    if self.rows:
                        self.share = done / self.rows
                    yield batch

    def place(self, row: int) -> str:
        """Describe the position of a row: its number, and in a text file the line where it begins.

        Args:
            row: Number of the row, from 1.
        """
        line = self._line(row) if self.format == "csv" and row <= _MOST_LINES else 0
        return f"row {row} (line {line})" if line else f"row {row}"

    def located(self, error: StreamError) -> HeadraceError:
        """Return an error of reading rows as a stream, with the path and position in this file."""
        column = f", column {error.field!r}" if error.field else ""
        return HeadraceError(f"{self.path}: {self.place(error.row + 1)}{column}: {error.problem}")

    def _line(self, row: int) -> int:
        """Return the line where a row of a CSV file begins, from 1; 0 if it is not known."""
        with suppress(OSError, pa.ArrowException, csv.Error), self._text() as text:
            reader, line = csv.reader(text, delimiter=self._delimiter), 0
            rows = -1  # the first line has the names
            for found in reader:
                rows += bool(found)
                if found and rows == row:
                    return line + 1
                line = reader.line_num
        return 0

    @contextmanager
    def _text(self) -> Iterator[io.TextIOWrapper]:
        with (
            self._bytes()[0] as content,
            io.TextIOWrapper(content, "utf-8-sig", "replace", newline="") as text,
        ):
            yield text

    def _look(self) -> pa.Schema:
        if self.format == "parquet":
            with pq.ParquetFile(self.path) as file:
                self.rows = file.metadata.num_rows
                return file.schema_arrow
        if self.format == "arrow":
            with pa.memory_map(str(self.path)) as mapped, _opened_arrow(mapped) as file:
                if isinstance(file, pa.ipc.RecordBatchFileReader):
                    self.rows = sum(file.get_batch(at).num_rows for at in range(file.num_record_batches))
                return file.schema
        with closing(self._csv_lines()[0]) as lines:
            rows = CsvRows(lines, self._delimiter)
            names, self.doubts = rows.names, rows.doubts
        if not names:
            raise InvalidRequest(f"{self.path}: expected a first line that names the columns, got none")
        return pa.schema([(name, pa.string()) for name in names])

    def _parquet(self, columns: list[str], rows: int) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(self.path) as file:
            yield from file.iter_batches(rows, columns=columns)

    def _arrow(self, columns: list[str], _rows: int) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(str(self.path)) as mapped, _opened_arrow(mapped) as file:
            if isinstance(file, pa.ipc.RecordBatchStreamReader):
                for batch in file:
                    self.share = mapped.tell() / max(1, mapped.size())
                    yield batch.select(columns)
                return
            for at in range(file.num_record_batches):
                yield file.get_batch(at).select(columns)

    def _csv(self, columns: list[str], _rows: int) -> Iterator[pa.RecordBatch]:
        """Yield all columns as text: columns convert their values themselves, with errors that name rows."""
        lines, raw = self._csv_lines()
        size = self.path.stat().st_size
        with closing(lines):
            rows = CsvRows(lines, self._delimiter)
            for batch in rows:
                self.share = raw.tell() / max(1, size)
                self.doubts = rows.doubts
                yield batch.select(columns)

    def _csv_lines(self) -> tuple[Lines, pa.NativeFile]:
        content, raw = self._bytes()
        return Lines(content, WholeRows(self._delimiter)), raw

    def _bytes(self) -> tuple[pa.NativeFile, pa.NativeFile]:
        """Return the decompressed bytes of the file, and the raw file, for its position."""
        raw = pa.OSFile(str(self.path))
        packed = _COMPRESSED.get(self.path.suffix)
        return (pa.CompressedInputStream(raw, packed) if packed else raw), raw

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Convert errors of reading into errors that name the file and, if known, the row."""
        try:
            yield
        except ConfigError as error:
            raise InvalidRequest(f"{self.path}: {error.message}") from error
        except StreamError as error:
            raise InvalidRequest(f"{self.path}: {self.place(error.row + 1)}: {error.problem}") from error
        except (OSError, pa.ArrowException, UnicodeDecodeError, csv.Error) as error:
            problem = f"expected {self.format}, which cannot be read: {error}"
            raise InvalidRequest(f"{self.path}: {problem}") from error


def _format_of(path: Path) -> Format:
    suffixes = [suffix for suffix in path.suffixes if suffix not in _COMPRESSED]
    found = _SUFFIXES.get(suffixes[-1]) if suffixes else None
    if found is None:
        known = ", ".join(_SUFFIXES)
        raise InvalidRequest(f"{path}: expected a name that ends with {known}; or give --format")
    return found


def _opened_arrow(
    mapped: pa.MemoryMappedFile,
) -> pa.ipc.RecordBatchFileReader | pa.ipc.RecordBatchStreamReader:
    is_file = mapped.read(len(_ARROW_FILE)) == _ARROW_FILE
    mapped.seek(0)
    return pa.ipc.open_file(mapped) if is_file else pa.ipc.open_stream(mapped)
