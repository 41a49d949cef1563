"""``headrace stream VERB``: make, convert and inspect streams of rows."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.base.errors import ConfigError, HeadraceError, StreamError, needs_extra
from headrace.base.terminal import counted, table
from headrace.cli import common
from headrace.cli.stream_publish import add_publish
from headrace.stream.schema import Field, Schema, parse_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.stream.inspection import FieldReport, Inspection

_EXAMPLES = """examples:
  headrace stream generate --rows 1000000 --seed 1 | headrace train --model deepfm
  headrace stream encode --format csv clicks.csv --label clicked --out clicks.arrows
  headrace stream inspect clicks.arrows"""

_GENERATE_EXAMPLES = """examples:
  headrace stream generate --rows 1000000 --seed 1 --out clicks.arrows
  headrace stream generate --rows 100000 --shape small | headrace stream inspect
  headrace stream generate --rows 5000000 --drift 1 | headrace train --model fm
  headrace stream generate --rows 100000000 --pace 5000 | headrace train --model lr"""

_ENCODE_EXAMPLES = """examples:
  headrace stream encode --format csv clicks.csv.gz --label clicked --out clicks.arrows
  headrace stream encode --format csv clicks.csv --print-schema > schema.toml
  headrace stream encode --format parquet clicks.parquet --schema schema.toml | headrace train --model fm
  headrace stream encode --format csv - --delimiter tab --columns label,i1,c1 < day.tsv --out day.arrows
  headrace stream encode --format vw train.vw | headrace train --model ffm

docs/stream.md explains what each format may contain."""

_INSPECT_EXAMPLES = """examples:
  headrace stream inspect clicks.arrows
  headrace stream generate --rows 100000 | headrace stream inspect
  headrace stream inspect --json clicks.arrows"""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIELD_HEADINGS = ("field", "role", "type", "table", "what", "missing", "min", "mean", "max", "first values")
_NUMBER_COLUMNS = [_FIELD_HEADINGS.index(name) for name in ("missing", "min", "mean", "max")]


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = words.add_parser(
        "stream",
        help="make, convert and inspect streams of rows",
        description="Make, convert and inspect streams of rows: the input of headrace train, in Arrow IPC.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    tools = common.add_verbs(parser)
    _add_generate(tools)
    _add_encode(tools)
    _add_inspect(tools)
    add_publish(tools)


def _add_generate(tools: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = common.add(
        tools,
        common.Verb(
            name="generate",
            help="draw rows from a hidden model whose best logloss is known",
            description="Draw rows from a hidden model, shaped like Criteo's clicks. The exact probability "
            "of each label is in the column truth, so that the best possible logloss is known. The same "
            "options give the same bytes.",
            examples=_GENERATE_EXAMPLES,
            failure="the rows cannot be written",
            run=run_generate,
        ),
    )
    add = parser.add_argument
    add("--rows", type=int, default=1_000_000, metavar="N", help="how many rows (default 1000000)")
    add("--seed", type=int, default=0, metavar="N", help="the random seed of everything (default 0)")
    add(
        "--shape",
        choices=("criteo", "small", "ffm12"),
        default="criteo",
        help="criteo: 26 categorical and 13 dense fields; small: 6 and 2; ffm12: 12 and 0 (default criteo)",
    )
    add(
        "--drift",
        type=float,
        default=0.0,
        metavar="R",
        help="how many times per million rows all effects rotate fully, and large fields' categories are "
        "replaced (default 0)",
    )
    add("--from-row", type=int, default=0, metavar="N", help="skip the rows before this one (default 0)")
    add(
        "--base-rate",
        type=float,
        default=0.2,
        metavar="P",
        help="approximate share of clicked rows (default 0.2)",
    )
    add("--candidates", type=int, default=1, metavar="K", help="rows that share a context (default 1)")
    add(
        "--rows-per-second",
        type=float,
        default=1000.0,
        metavar="R",
        help="rows per second of the rows' timestamps (default 1000)",
    )
    add(
        "--keys",
        choices=("bucket", "hash"),
        default="bucket",
        help="write categories as rows of their tables, or as integers to be hashed (default bucket)",
    )
    add("--buckets", type=int, default=2**16, metavar="N", help="maximum rows of a table (default 65536)")
    _add_generated_output(parser)


def _add_generated_output(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--batch-rows", type=int, metavar="N", help="rows in a batch (default 8192; with --pace, fewer)")
    add(
        "--pace",
        type=float,
        metavar="R",
        help="write R rows per second, like a live source (default as fast as possible)",
    )
    add("--out", type=Path, metavar="FILE", help="where to write (default standard output)")


_FASTEST_PACE = 1e9


def run_generate(options: argparse.Namespace) -> int:
    """Write generated rows."""
    if options.pace is not None and not 0.0 < options.pace <= _FASTEST_PACE:
        expected = f"more than 0 rows a second, at most {_FASTEST_PACE:g}"
        raise ConfigError(f"--pace: expected {expected}, got {options.pace:g}")
    with _needs_extra():
        from headrace.stream.click_generator import (  # noqa: PLC0415 - needs the extra
            GeneratorSettings,
            arrow_schema,
            generate_batches,
        )
    batch_rows = options.batch_rows or (8192 if options.pace is None else _paced_rows(options.pace))
    settings = GeneratorSettings(
        rows=options.rows,
        seed=options.seed,
        shape=options.shape,
        drift=options.drift,
        from_row=options.from_row,
        base_rate=options.base_rate,
        candidates=options.candidates,
        rows_per_second=options.rows_per_second,
        keys=options.keys,
        buckets=options.buckets,
        batch_rows=batch_rows,
    )
    batches = generate_batches(settings)
    if options.pace is not None:
        batches = _paced(batches, options.pace)
    return _write(options, arrow_schema(settings), batches, settings.rows)


def _add_encode(tools: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = common.add(
        tools,
        common.Verb(
            name="encode",
            help="convert CSV, Parquet, VW text or Arrow files to a stream",
            description="Make a stream from a file. A schema describes its columns; without one, it is "
            "guessed from the first rows: print the guess, correct it, and pass it as --schema.",
            examples=_ENCODE_EXAMPLES,
            failure="a row cannot be read, or the rows cannot be written",
            run=run_encode,
        ),
    )
    add = parser.add_argument
    add("input", metavar="FILE", type=Path, help="the file; - for standard input")
    add("--format", choices=("csv", "parquet", "vw", "arrow"), required=True, help="the file's format")
    add(
        "--schema",
        type=Path,
        metavar="FILE",
        help="the schema of the columns, as TOML or JSON (default a guess)",
    )
    add("--print-schema", action="store_true", help="print the schema as TOML, and write no stream")
    add("--label", default="", metavar="NAME", help="the column with the label, 0 or 1; clicks, with --views")
    add("--views", default="", metavar="NAME", help="the column with the number of views of a row")
    add("--weight", default="", metavar="NAME", help="the column with the weight of a row")
    add("--timestamp", default="", metavar="NAME", help="the column with the time: microseconds, or ISO 8601")
    add(
        "--timestamp-unit",
        choices=("s", "ms", "us", "ns"),
        default="",
        help="the unit of integer times (default us, and times outside 1990 to 2100 are refused)",
    )
    names: dict[str, Any] = {"action": "extend", "type": common.names, "default": [], "metavar": "NAMES"}
    add("--context", **names, help="columns of the request, not the candidate; may be repeated")
    add("--ignore", **names, help="columns that are not learnt from; may be repeated")
    add(
        "--values-separator",
        default="",
        metavar="TEXT",
        help="the separator of a field's values in a text; overrides the schema's",
    )
    add(
        "--delimiter",
        type=common.delimiter,
        default=",",
        metavar="C",
        help="the delimiter of CSV: a character, or the word tab (default ,)",
    )
    add("--columns", **names, help="a CSV's columns, if its first line does not name them; may be repeated")
    add("--strict", action="store_true", help="fail if a guess changes the meaning of values")
    add("--out", type=Path, metavar="FILE", help="where to write (default standard output)")


def run_encode(options: argparse.Namespace) -> int:
    """Write rows of another format as a stream, or print the schema that they would have."""
    with _needs_extra():
        from headrace.stream.encode import EncodeSettings, encode  # noqa: PLC0415 - needs the extra
        from headrace.stream.schema_inference import Hints, schema_toml  # noqa: PLC0415 - needs the extra
    hints = Hints(
        label=options.label,
        views=options.views,
        weight=options.weight,
        timestamp=options.timestamp,
        context=tuple(options.context),
        ignored=tuple(options.ignore),
        separator=options.values_separator,
        timestamp_unit=options.timestamp_unit,
    )
    schema = None if options.schema is None else _read_schema(options.schema)
    settings = EncodeSettings(
        format=options.format,
        schema=schema,
        hints=hints,
        delimiter=options.delimiter,
        columns=tuple(options.columns),
        tell=functools.partial(_tell_of_a_row, strict=options.strict),
    )
    encoded = encode(settings, options.input)
    if encoded.guessed_rows is not None:
        print(
            f"headrace: the schema is guessed from {encoded.guessed_rows} rows, because no more had "
            "arrived; --print-schema prints it, --schema FILE gives one",
            file=sys.stderr,
        )
    for doubt in encoded.doubts:
        print(f"headrace: {doubt}", file=sys.stderr)
    if options.strict and encoded.doubts:
        raise ConfigError(
            "--strict: the guesses above change values; give a --schema (--print-schema writes one)"
        )
    if options.print_schema:
        print(encoded.schema.encode().decode() if options.json else schema_toml(encoded.schema))
        return common.DONE
    return _write(options, encoded.arrow_schema, encoded.batches, None)


def _tell_of_a_row(doubt: str, *, strict: bool) -> None:
    if strict:
        raise StreamError(f"--strict: {doubt}; give a --schema", row=0)
    print(f"headrace: {doubt}", file=sys.stderr)


def _add_inspect(tools: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = common.add(
        tools,
        common.Verb(
            name="inspect",
            help="show what a stream holds",
            description="Show a stream's schema, its size, the properties of its values and, if it has the "
            "truth, the best possible logloss. Errors are reported as headrace train would report them.",
            examples=_INSPECT_EXAMPLES,
            failure="the stream is cut or corrupt",
            run=run_inspect,
        ),
    )
    add = parser.add_argument
    add(
        "input",
        metavar="FILE",
        nargs="?",
        type=Path,
        default=Path("-"),
        help="the stream; - for standard input (default)",
    )
    add("--schema", type=Path, metavar="FILE", help="the schema, for a stream without one")


def run_inspect(options: argparse.Namespace) -> int:
    """Print the contents of a stream, then the error that ended it, if any."""
    with _needs_extra():
        from headrace.stream.inspection import inspect  # noqa: PLC0415 - needs the extra
        from headrace.stream.stream_io import ProgressLine  # noqa: PLC0415 - needs the extra
    schema = None if options.schema is None else _read_schema(options.schema)
    piped = str(options.input) == "-"
    if piped and sys.stdin.isatty():
        raise ConfigError(
            "FILE: expected a stream, but standard input is a terminal; name a file or pipe one in"
        )
    progress = ProgressLine(sys.stderr)
    try:
        with sys.stdin.buffer if piped else options.input.open("rb", buffering=0) as file:
            found = inspect(file, schema, progress)
    except OSError as error:
        raise ConfigError(f"FILE: {options.input}: {error.strerror or error}") from error
    finally:
        progress.close()
    print(inspection_json(found) if options.json else inspection_text(found))
    if found.problem is not None:
        raise found.problem
    return common.DONE


def _read_schema(path: Path) -> Schema:
    try:
        return parse_schema(path.read_bytes(), str(path))
    except OSError as error:
        raise ConfigError(f"--schema: {path}: {error.strerror}") from error


def _paced_rows(rows_per_second: float) -> int:
    """Return the rows per batch for ten batches a second, as a live source sends small batches."""
    return max(1, min(8192, round(rows_per_second / 10)))


def _paced(batches: Iterable[pa.RecordBatch], rows_per_second: float) -> Iterator[pa.RecordBatch]:
    started, rows = time.monotonic(), 0
    for batch in batches:
        rows += batch.num_rows
        time.sleep(max(0.0, started + rows / rows_per_second - time.monotonic()))
        yield batch


def _write(
    options: argparse.Namespace, schema: pa.Schema, batches: Iterable[pa.RecordBatch], rows: int | None
) -> int:
    from headrace.stream.stream_io import ProgressLine, open_output, write_stream  # noqa: PLC0415 - needs the extra

    out: Path | None = options.out
    if options.json and out in (None, Path("-")):
        raise ConfigError("json: standard output is the stream; add --out FILE")
    # In a pipeline, the reader draws its own progress line on the same terminal.
    progress = ProgressLine(sys.stderr, rows, shown=None if out is not None else False)
    try:
        with open_output(out) as file:
            written = write_stream(file, schema, batches, progress)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise HeadraceError(f"{out or 'standard output'}: {error.strerror or error}") from error
    finally:
        progress.close()
    if options.json and out is not None:
        common.print_json({"file": str(out), "rows": written, "size_bytes": out.stat().st_size})
    return common.DONE


@contextlib.contextmanager
def _needs_extra() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise needs_extra("headrace stream", "train", error) from error


def inspection_text(found: Inspection) -> str:
    """Return a few lines of totals of a stream, then one line per field."""
    size = f" ({found.bytes / found.rows:,.0f} a row)" if found.rows else ""
    batches = "1 batch" if found.batches == 1 else f"{found.batches:,} batches"
    lines = [f"{counted(found.rows, 'row')} in {batches}, {found.bytes:,} bytes{size}"]
    if found.schema is not None and found.schema.generator:
        settings = ", ".join(f"{name} {value:g}" for name, value in sorted(found.schema.generator.items()))
        lines.append(f"generated with {settings}")
    if found.first_time is not None and found.last_time is not None:
        lines.append(f"from {_time(found.first_time)} to {_time(found.last_time)}")
    if found.click_rate is not None and found.base_logloss is not None:
        of_views = "" if found.views is None else f"of {found.views:,} views were "
        lines.append(
            f"{found.click_rate:.2%} {of_views}clicked: predicting this rate for every row has logloss "
            f"{found.base_logloss:.5f}"
        )
    if found.optimal_logloss is not None:
        realised = found.realised_logloss
        on_labels = "" if realised is None else f", {realised:.5f} on these labels"
        lines.append(f"optimal logloss {found.optimal_logloss:.5f}{on_labels}")
    if not found.fields:
        return "\n".join(lines)
    shown = table([_FIELD_HEADINGS, *(_field_row(report) for report in found.fields)], _NUMBER_COLUMNS)
    return "\n".join([*lines, "", shown])


def inspection_json(found: Inspection) -> str:
    """Return a stream's description as one JSON object; unknown values are null."""
    problem = found.problem
    said = {
        "rows": found.rows,
        "size_bytes": found.bytes,
        "batches": found.batches,
        "views": found.views,
        "click_rate": found.click_rate,
        "base_logloss": found.base_logloss,
        "optimal_logloss": found.optimal_logloss,
        "realised_logloss": found.realised_logloss,
        "first_time": None if found.first_time is None else _time(found.first_time),
        "last_time": None if found.last_time is None else _time(found.last_time),
        "fields": [_field_object(report) for report in found.fields],
        "schema": None if found.schema is None else json.loads(found.schema.encode()),
        "problem": None if problem is None else problem.message,
    }
    return json.dumps(said)


def _field_object(report: FieldReport) -> dict[str, object]:
    return {
        "name": report.field.name,
        "role": report.field.role,
        "type": report.arrow_type,
        "first_values": report.first_values,
        "missing": report.missing,
        "distinct": report.distinct,
        "min": report.minimum,
        "mean": report.mean,
        "max": report.maximum,
    }


def _field_row(report: FieldReport) -> tuple[str, ...]:
    field = report.field
    categorical = field.role == "categorical"
    numbers = (report.minimum, report.mean, report.maximum)
    return (
        field.name,
        field.role,
        report.arrow_type,
        f"{field.table_name}[{field.buckets}] {field.keys}" if categorical else "",
        ", ".join(_what(field, report)),
        f"{report.missing:,}" if report.missing else "",
        *("" if number is None else f"{number:.4g}" for number in numbers),
        ", ".join(report.first_values),
    )


def _what(field: Field, report: FieldReport) -> list[str]:
    return [
        *([] if report.distinct is None else [f"{_about(field)}{report.distinct:,} distinct"]),
        *([f"up to {field.values} values"] if field.values > 1 else []),
        *([f"{field.size} numbers"] if field.role == "vector" else []),
        *(["context"] if field.context else []),
    ]


def _about(field: Field) -> str:
    """Return the prefix of a number of distinct values: it is an estimate if the values are hashed."""
    return "" if field.keys == "bucket" else "about "


def _time(microseconds: int) -> str:
    try:
        return (_EPOCH + timedelta(microseconds=microseconds)).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return f"{microseconds} µs since 1970"  # beyond the range of datetime
