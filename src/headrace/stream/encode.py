"""Convert CSV, Parquet, VW's text and Arrow files to a stream, piece by piece in bounded memory."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, cast, get_args

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.base.errors import ConfigError, StreamError
from headrace.stream import vw_text
from headrace.stream.byte_sources import ReadAhead
from headrace.stream.column_conversion import column_of, is_text, shown, stream_column, stream_type
from headrace.stream.record_batches import Validator
from headrace.stream.schema import METADATA_KEY, Field, Schema
from headrace.stream.schema_inference import SAMPLE_ROWS, Hints, doubts, infer_schema, read_cells
from headrace.stream.text_files import CsvRows, File, Lines, WholeLines, WholeRows
from headrace.stream.text_or_number import may_hold_words, without_words

Format = Literal["csv", "parquet", "vw", "arrow"]
FORMATS: tuple[Format, ...] = get_args(Format)

_Batches = Generator[pa.RecordBatch, None, None]
_Tell = Callable[[str], object]

_BATCH_ROWS = 8192
_SAMPLE_BYTES = 64 * 1024 * 1024
_VW_SAMPLE_LINES = 10_000
_COMPRESSED = (".gz", ".bz2", ".zst", ".lz4", ".br")


def _nothing(_: str) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class EncodeSettings:
    """Settings for converting a file.

    Attributes:
        format: The format.
        schema: The Schema of the columns; None to infer it from the first rows.
        hints: Known columns, used if there is no schema.
        delimiter: The separator of columns in a CSV file.
        columns: The names of a CSV file's columns, if its first line does not contain them.
        tell: Called with a sentence for each numeric column of an inferred schema that first has a word for
            a missing number, such as NA, after the sample.
    """

    format: Format
    schema: Schema | None = None
    hints: Hints = field(default_factory=Hints)
    delimiter: str = ","
    columns: tuple[str, ...] = ()
    tell: _Tell = _nothing

    def __post_init__(self) -> None:
        """Check each setting."""
        if self.format not in FORMATS:
            raise ConfigError(f"format: expected one of {', '.join(FORMATS)}, got {self.format!r}")
        if len(self.delimiter) != 1 or not self.delimiter.isascii():
            raise ConfigError(f"delimiter: expected one ASCII character, got {self.delimiter!r}")


@dataclass(frozen=True)
class Encoded:
    """A stream to be written.

    Attributes:
        schema: The Schema of its columns.
        arrow_schema: Their Arrow schema, with the Schema in its metadata.
        batches: Its rows, converted on demand.
        guessed_rows: Number of rows that the schema was inferred from, if a live source had too few; None
            otherwise.
        doubts: Sentences about inferred columns that may be unexpected.
    """

    schema: Schema
    arrow_schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    guessed_rows: int | None = None
    doubts: tuple[str, ...] = ()


def encode(settings: EncodeSettings, path: Path) -> Encoded:
    """Convert a file to a stream.

    Args:
        settings: The format of the file, and its columns.
        path: The file; ``-`` is standard input; CSV and VW may be compressed (``.gz``, ``.bz2``, ``.zst``,
            ``.lz4``, ``.br``).

    Returns:
        The stream. Errors in later rows are raised when their batches are requested.

    Raises:
        ConfigError: The file cannot be read, or does not match the schema.
        StreamError: One of the first rows is invalid.
    """
    if str(path) != "-" and not path.exists():
        raise ConfigError(f"{path}: there is no such file")
    hints = settings.hints
    if settings.format == "vw":
        hints = replace(hints, label=vw_text.LABEL, weight=vw_text.WEIGHT, separator="")
    lines = _lines(settings, path) if settings.format in ("csv", "vw") else None
    read = list[CsvRows]()
    raw = _rows(settings, path, lines, read)
    try:
        sample = _sample(raw, 1 if settings.schema else SAMPLE_ROWS, lines)
        if sample is None:
            raise ConfigError(f"{path}: the file has no rows; expected at least one")
        few = lines is not None and lines.live and sample.num_rows < SAMPLE_ROWS
        schema, doubtful = settings.schema, list[str]()
        if schema is None:
            readings = read_cells(sample) if settings.format == "csv" else {}
            schema = infer_schema(sample, hints, readings, few=few)
            doubtful = doubts(sample, schema, hints, readings)
            doubtful += [doubt for rows in read for doubt in rows.doubts]
        schema = _with_unit(schema, hints)
        schema = _separated(schema, sample, hints.separator)
        arrow_schema = _arrow_schema(schema, sample)
    except BaseException:
        raw.close()
        raise
    batches = _converted(sample, raw, schema, arrow_schema, None if settings.schema else settings.tell)
    guessed_rows = sample.num_rows if few and not settings.schema else None
    return Encoded(schema, arrow_schema, batches, guessed_rows, tuple(doubtful))


def _with_unit(schema: Schema, hints: Hints) -> Schema:
    """Return a schema whose timestamp has the unit from the hints.

    Raises:
        ConfigError: There is no timestamp.
    """
    if not hints.timestamp_unit:
        return schema
    if schema.one("timestamp") is None:
        raise ConfigError("--timestamp-unit: no column is the timestamp; name it with --timestamp")
    unit = hints.timestamp_unit
    fields = [
        msgspec.structs.replace(one, unit=unit) if one.role == "timestamp" else one for one in schema.fields
    ]
    return msgspec.structs.replace(schema, fields=tuple(fields))


def _separated(schema: Schema, sample: pa.RecordBatch, separator: str) -> Schema:
    """Return the schema with a separator for every list field whose column is text.

    Raises:
        ConfigError: Such a field has no separator.
    """
    fields = []
    for one in schema.fields:
        kind = column_of(sample, one).type
        if not one.listed or not is_text(kind.value_type if pa.types.is_dictionary(kind) else kind):
            fields.append(one)
            continue
        if not (separator or one.separator):
            several = f"values = {one.values}" if one.role == "categorical" else f"size = {one.size}"
            raise ConfigError(
                f"schema: field {one.name!r} has {several}, but its column is text: set its separator, "
                "with separator = \"|\" in the schema, or --values-separator '|'"
            )
        fields.append(msgspec.structs.replace(one, separator=separator or one.separator))
    return msgspec.structs.replace(schema, fields=tuple(fields))


def _arrow_schema(schema: Schema, sample: pa.RecordBatch) -> pa.Schema:
    if schema.one("label") is None:
        raise ConfigError('schema: no field has the role "label"; a stream to learn from needs one')
    counted = schema.one("views") is not None
    types = [stream_type(one, column_of(sample, one).type, counted=counted) for one in schema.fields]
    columns = [pa.field(one.name, kind) for one, kind in zip(schema.fields, types, strict=True)]
    # The stream contains timestamps, whatever the unit of the source.
    written = msgspec.structs.replace(
        schema, fields=tuple(msgspec.structs.replace(one, unit="") for one in schema.fields)
    )
    return pa.schema(columns, metadata={METADATA_KEY: written.encode()})


def _sample(raw: _Batches, rows: int, lines: Lines | None) -> pa.RecordBatch | None:
    """Return the first rows as one batch, or those that a live source has so far; None if there are none."""
    pieces: list[pa.RecordBatch] = []
    for batch in raw:
        pieces.append(batch)
        is_enough = sum(piece.num_rows for piece in pieces) >= rows
        is_large = sum(piece.nbytes for piece in pieces) >= _SAMPLE_BYTES
        if is_enough or is_large or (lines is not None and lines.live):
            break
    if not any(piece.num_rows for piece in pieces):
        return None
    return pa.Table.from_batches(pieces).combine_chunks().to_batches()[0]


def _converted(
    sample: pa.RecordBatch, raw: _Batches, schema: Schema, arrow_schema: pa.Schema, tell: _Tell | None
) -> _Batches:
    """Convert all rows.

    Args:
        sample: The first rows, from which the schema may be inferred.
        raw: The other rows.
        schema: The schema of the stream.
        arrow_schema: The Arrow schema of the stream.
        tell: Called with unexpected values of later rows; None if the schema was not inferred.
    """
    first_row, counted, guessed = 0, schema.one("views") is not None, tell is not None
    words = _Words(schema, sample)
    with contextlib.closing(raw):
        for large in itertools.chain([sample], raw):
            for start in range(0, large.num_rows, _BATCH_ROWS):
                batch = large.slice(start, _BATCH_ROWS)
                columns = [
                    stream_column(one, column_of(batch, one), first_row, counted=counted, guessed=guessed)
                    for one in schema.fields
                ]
                if tell is not None and large is not sample:
                    words.report(batch, first_row, tell)
                yield pa.record_batch(columns, arrow_schema)
                first_row += batch.num_rows


class _Words:
    """Reports words for a missing number in numeric columns that had none in the sample."""

    def __init__(self, schema: Schema, sample: pa.RecordBatch) -> None:
        """Find the numeric columns that are written as text.

        Args:
            schema: The schema of the stream.
            sample: The rows whose words have been reported.
        """
        numbers = [one.name for one in schema.fields if one.role == "dense" or _is_integer(one)]
        columns = {name: sample.column(name) for name in numbers}
        self._names = [name for name, one in columns.items() if is_text(one.type) and not _words_in(one)]

    def report(self, batch: pa.RecordBatch, first_row: int, tell: _Tell) -> None:
        """Report the first such word in each column.

        Args:
            batch: Rows as read.
            first_row: The number of the first row.
            tell: Called with a sentence for each word.
        """
        for name in list(self._names):
            cells = batch.column(name)
            if _words_in(cells):
                row = pc.index(pc.and_(without_words(cells).is_null(), cells.is_valid()), True).as_py()
                word = f"{shown(cells[row])} is treated as a missing number"
                tell(f"row {first_row + row}, column {name!r}: {word}")
                self._names.remove(name)


def _is_integer(field: Field) -> bool:
    return field.role == "categorical" and not field.text and field.values == 1


def _words_in(cells: pa.Array) -> bool:
    return may_hold_words(cells) and bool(without_words(cells).null_count > cells.null_count)


def _open(path: Path) -> File:
    """Open a file for decompressed, unbuffered reading: a buffer would delay bytes that have arrived."""
    if str(path) == "-":
        return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
    try:
        if path.suffix in _COMPRESSED:
            return cast("File", pa.input_stream(str(path), compression="detect"))
        return path.open("rb", buffering=0)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error


def _lines(settings: EncodeSettings, path: Path) -> Lines:
    whole = WholeRows(settings.delimiter) if settings.format == "csv" else WholeLines()
    return Lines(_open(path), whole)


def _rows(settings: EncodeSettings, path: Path, lines: Lines | None, read: list[CsvRows]) -> _Batches:
    if lines is None:
        yield from _read_parquet(settings, path) if settings.format == "parquet" else _read_arrow(path)
        return
    with contextlib.closing(lines):
        if settings.format == "vw":
            yield from _read_vw(settings, lines)
            return
        with _saying_where(path):
            rows = CsvRows(lines, settings.delimiter, settings.columns)
            read.append(rows)
            if not rows.names:
                raise ConfigError(
                    "expected a first line that names the columns; if there is none, set --columns a,b,c"
                )
            # Arrow parses the next piece, without the GIL, while this one is converted.
            with contextlib.closing(ReadAhead(iter(rows), lines.source, 1)) as ahead:
                yield from ahead


@contextlib.contextmanager
def _saying_where(path: Path) -> Iterator[None]:
    """Add the file's name to errors."""
    where = "standard input" if str(path) == "-" else path
    try:
        yield
    except StreamError as error:
        raise StreamError(f"{where}: {error.problem}", row=error.row, field=error.field) from error
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message}") from error


def _read_parquet(settings: EncodeSettings, path: Path) -> Iterator[pa.RecordBatch]:
    _refuse_standard_input(path, "Parquet")
    try:
        # No thread pool: it would take cores from the learner.
        yield from pq.ParquetFile(path).iter_batches(
            _BATCH_ROWS, columns=_wanted(settings), use_threads=False
        )
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(f"{path}: {error}") from error


def _read_arrow(path: Path) -> Iterator[pa.RecordBatch]:
    _refuse_standard_input(path, "the Arrow file format")
    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
            validator = Validator(reader.schema)
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                validator.validate(batch, new_dictionaries=not number)
                yield batch
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(f"{path}: {error}") from error


def _read_vw(settings: EncodeSettings, lines: Lines) -> Iterator[pa.RecordBatch]:
    schema = settings.schema
    dense = [one.name for one in schema.of("dense")] if schema else None
    named = schema.of("categorical", "ignored") if schema else ()
    spaces = [one.name for one in named if one.name not in (vw_text.LABEL, vw_text.WEIGHT)]
    groups = _groups(lines)
    sample = list(itertools.chain.from_iterable(_sampled(groups, lines))) if schema is None else []
    return vw_text.read_batches(itertools.chain([sample], groups), dense, spaces)


def _groups(lines: Lines) -> Iterator[list[str]]:
    for piece in lines:
        said = piece.decode("utf-8", "replace").split("\n")
        for start in range(0, len(said), _BATCH_ROWS):
            yield said[start : start + _BATCH_ROWS]


def _sampled(groups: Iterator[list[str]], lines: Lines) -> Iterator[list[str]]:
    """Yield the groups of lines that determine the columns."""
    count = 0
    for group in groups:
        yield group
        count += len(group)
        if lines.live or count >= _VW_SAMPLE_LINES:
            return


def _wanted(settings: EncodeSettings) -> list[str] | None:
    return [one.name for one in settings.schema.fields] if settings.schema else None


def _refuse_standard_input(path: Path, what: str) -> None:
    if str(path) == "-":
        raise ConfigError(f"{what} is read from its end, but standard input cannot seek; name a file")
