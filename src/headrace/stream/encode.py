"""CSV, Parquet, VW's text and Arrow files made into a stream, piece by piece in bounded memory."""

from __future__ import annotations

import csv
import io
import itertools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from headrace.errors import ConfigError, StreamError
from headrace.stream import vw
from headrace.stream.converting import column_of, stream_column, stream_type
from headrace.stream.inference import SAMPLE_ROWS, Hints, infer_schema
from headrace.stream.schema import METADATA_KEY, Schema

Format = Literal["csv", "parquet", "vw", "arrow"]
FORMATS: tuple[Format, ...] = get_args(Format)

_BLOCK_BYTES = 2**20
_BATCH_ROWS = 8192
_VW_SAMPLE_LINES = 10_000
_MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "\\N")


@dataclass(frozen=True)
class EncodeSettings:
    """What is read, and how.

    Attributes:
        format: The format.
        schema: What the columns are; guessed from the first rows if None.
        hints: What is known where there is no schema.
        delimiter: What stands between the columns of a CSV file.
        columns: The names of a CSV file's columns, if its first line does not say them.
    """

    format: Format
    schema: Schema | None = None
    hints: Hints = field(default_factory=Hints)
    delimiter: str = ","
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check each setting."""
        if self.format not in FORMATS:
            raise ConfigError(f"format: expected one of {', '.join(FORMATS)}, got {self.format!r}")
        if len(self.delimiter) != 1:
            raise ConfigError(f"delimiter: expected one character, got {self.delimiter!r}")


@dataclass(frozen=True)
class Encoded:
    """A stream to be written.

    Attributes:
        schema: What its columns are.
        arrow_schema: Their Arrow schema, with ours in its metadata.
        batches: Its rows, converted as they are asked for.
    """

    schema: Schema
    arrow_schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


def encode(settings: EncodeSettings, path: Path) -> Encoded:
    """Make a stream of a file.

    Args:
        settings: What it is.
        path: The file; ``-`` is standard input; CSV and VW may be compressed (``.gz``, ``.bz2``, ``.zst``).

    Returns:
        The stream; errors in rows are raised when its batches reach them.

    Raises:
        ConfigError: The file cannot be read, or does not fit the schema.
        StreamError: One of the first rows is wrong.
    """
    if str(path) != "-" and not path.exists():
        raise ConfigError(f"{path}: there is no such file")
    readers = {"csv": _read_csv, "parquet": _read_parquet, "vw": _read_vw, "arrow": _read_arrow}
    hints = settings.hints
    if settings.format == "vw":
        hints = replace(hints, label=vw.LABEL, weight=vw.WEIGHT, separator="")
    raw = readers[settings.format](settings, path)
    sample = _sample(raw)
    if sample is None:
        raise ConfigError(f"{path}: there are no rows; nothing says what they would look like")
    schema = settings.schema or infer_schema(sample, hints)
    if schema.one("label") is None:
        raise ConfigError('schema: no field has the role "label"; a stream to learn from needs one')
    types = [stream_type(one, column_of(sample, one).type) for one in schema.fields]
    columns = [pa.field(one.name, kind) for one, kind in zip(schema.fields, types, strict=True)]
    arrow_schema = pa.schema(columns, metadata={METADATA_KEY: schema.encode()})
    batches = _converted(itertools.chain([sample], raw), schema, arrow_schema, hints.separator)
    return Encoded(schema, arrow_schema, batches)


def _sample(raw: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    """The first rows, joined; None if there are none."""
    pieces: list[pa.RecordBatch] = []
    for batch in raw:
        pieces.append(batch)
        if sum(piece.num_rows for piece in pieces) >= SAMPLE_ROWS:
            break
    if not any(piece.num_rows for piece in pieces):
        return None
    return pa.Table.from_batches(pieces).combine_chunks().to_batches()[0]


def _converted(
    raw: Iterator[pa.RecordBatch], schema: Schema, arrow_schema: pa.Schema, separator: str
) -> Iterator[pa.RecordBatch]:
    first_row = 0
    for large in raw:
        for start in range(0, large.num_rows, _BATCH_ROWS):
            batch = large.slice(start, _BATCH_ROWS)
            columns = [
                stream_column(one, column_of(batch, one), first_row, separator) for one in schema.fields
            ]
            yield pa.record_batch(columns, arrow_schema)
            first_row += batch.num_rows


def _open(path: Path) -> io.BufferedReader:
    """A file's bytes, unpacked."""
    if str(path) == "-":
        return sys.stdin.buffer  # type: ignore[return-value]  # Buffered, whatever its declared type.
    try:
        return io.BufferedReader(pa.input_stream(str(path), compression="detect"), _BLOCK_BYTES)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error


def _read_csv(settings: EncodeSettings, path: Path) -> Iterator[pa.RecordBatch]:
    """Every column as text: what it stands for is the schema's matter, and its errors name rows."""
    file = _open(path)
    names = list(settings.columns)
    if not names:
        header = file.readline().decode("utf-8-sig", "replace")
        names = next(csv.reader([header], delimiter=settings.delimiter), [])
    if not names:
        raise ConfigError(
            f"{path}: there is no first line that names the columns; say them (--columns a,b,c)"
        )
    convert = arrow_csv.ConvertOptions(
        column_types={name: pa.string() for name in names},
        null_values=list(_MISSING),
        strings_can_be_null=True,
    )
    # One thread, for which alone Arrow's errors say the row.
    read = arrow_csv.ReadOptions(column_names=names, use_threads=False, block_size=_BLOCK_BYTES)
    parse = arrow_csv.ParseOptions(delimiter=settings.delimiter, newlines_in_values=True)
    try:
        yield from arrow_csv.open_csv(file, read_options=read, parse_options=parse, convert_options=convert)
    except pa.ArrowInvalid as error:
        if "Empty CSV file" in str(error):
            return
        said = re.search(r"Row #(\d+): (.*)", str(error), re.DOTALL)
        row, text = (int(said[1]) - 1, said[2]) if said else (0, str(error))
        where = "standard input" if str(path) == "-" else path
        hint = "save it as UTF-8" if "UTF8" in text else f"is the delimiter {settings.delimiter!r}?"
        raise StreamError(f"{where}: {text}; {hint}", row=row) from error


def _read_parquet(settings: EncodeSettings, path: Path) -> Iterator[pa.RecordBatch]:
    _refuse_standard_input(path, "Parquet")
    try:
        # Without a pool of threads: the next batch is read while whoever learns has the other core.
        yield from pq.ParquetFile(path).iter_batches(
            _BATCH_ROWS, columns=_wanted(settings), use_threads=False
        )
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(f"{path}: {error}") from error


def _read_arrow(settings: EncodeSettings, path: Path) -> Iterator[pa.RecordBatch]:
    _refuse_standard_input(path, "the Arrow file format")
    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(f"{path}: {error}") from error


def _read_vw(settings: EncodeSettings, path: Path) -> Iterator[pa.RecordBatch]:
    schema = settings.schema
    dense = [one.name for one in schema.of("dense")] if schema else None
    spaces = [one.name for one in schema.of("categorical")] if schema else []
    lines = io.TextIOWrapper(_open(path), encoding="utf-8", errors="replace")
    return vw.read_batches(lines, _VW_SAMPLE_LINES, dense, spaces)


def _wanted(settings: EncodeSettings) -> list[str] | None:
    return [one.name for one in settings.schema.fields] if settings.schema else None


def _refuse_standard_input(path: Path, what: str) -> None:
    if str(path) == "-":
        raise ConfigError(f"{what} is read from its end, which standard input does not have; name a file")
