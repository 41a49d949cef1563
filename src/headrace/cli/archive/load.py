"""``headrace archive load SPACE FILE``: fill a feature table, or a space of vectors, from a file."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.errors import InvalidRequest
from headrace.base.stop_signals import StopSignals
from headrace.base.terminal import Line, counted
from headrace.cli import auditing, common
from headrace.cli.archive import archive_options

if TYPE_CHECKING:
    from headrace.archive.lookup.archive import Archive
    from headrace.archive.operations.space_versions import Lacking
    from headrace.archive.tables.load import Load, Target

_FORMATS = ("parquet", "arrow", "csv")
_BAR = 30
_LISTED = 20
_EXAMPLES = """examples:
  headrace archive load users users.parquet
  headrace archive load users users.csv --key user_id
  headrace archive load images embeddings.arrow --vectors embedding

The file is Parquet, Arrow (file or stream format) or CSV, optionally compressed; its name says which. It is
read in batches, and may be larger than memory. A row's key is a text or a whole number, from the column
--key, else from a column called key, id, SPACE or SPACE_id (or without the last s), else from the first
column that can be one.

A feature table gets the columns that archive.toml declares. If it declares none, the table gets all columns
of the file: numbers, texts, times (in milliseconds of Unix time); a null is then stored as 0 or the empty
text. Further files must have the columns of the table; with --new-columns, other columns make a new version.
So do changed columns in archive.toml. Both versions answer, and the new one becomes the default when the
last load into it has ended and none of the default's keys is missing.

Existing rows are replaced. If a load is stopped, killed or fails, run it again: that does no harm."""


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="load",
            help="fill a feature table, or a space, from a file",
            description="Store the rows of a file: columns by name in a feature table, or a column of lists "
            "of numbers in a space of vectors.",
            examples=_EXAMPLES,
            failure="the store does not answer, or it was stopped; some rows may be stored, run it again",
            run=run,
        ),
    )
    archive_options.add_space(parser)
    parser.add_argument("file", metavar="FILE", type=Path, help="Parquet, Arrow or CSV")
    archive_options.add_archive(parser)
    auditing.add_option(parser)
    parser.add_argument("--key", metavar="NAME", default="", help="the column of keys (default: see below)")
    parser.add_argument(
        "--vectors",
        metavar="NAME",
        default="",
        help="the column of vectors, for a space (default: the only one with lists)",
    )
    parser.add_argument(
        "--written",
        metavar="NAME",
        default="",
        help="the column with the time at which each row of a table was written (default: now)",
    )
    archive_options.add_version(parser)
    parser.add_argument("--format", choices=_FORMATS, help="the file's format (default: by its name)")
    parser.add_argument(
        "--delimiter",
        metavar="C",
        type=common.delimiter,
        default="",
        help="the delimiter of CSV: a character, or the word tab (default: a comma; tab for .tsv)",
    )
    parser.add_argument(
        "--new-columns",
        action="store_true",
        help="if the file's columns differ from the table's: load it into a new version with these",
    )
    parser.add_argument("--strict", action="store_true", help="fail if a guess changes the meaning of values")
    parser.add_argument("--keep-default", action="store_true", help="do not make a new version the default")


def run(options: argparse.Namespace) -> int:
    """Load the file, and show the progress."""
    from headrace.archive.operations.space_versions import Lacking  # noqa: PLC0415 - as above
    from headrace.archive.tables.file_readers import ColumnFile  # noqa: PLC0415 - not needed to list the verbs
    from headrace.archive.tables.load import Load, Stopped  # noqa: PLC0415 - as above

    if len(options.delimiter) > 1 or not options.delimiter.isascii():
        raise InvalidRequest(
            f"expected one ASCII character, or tab, got {options.delimiter!r}", field="--delimiter"
        )
    started, target = time.monotonic(), None
    with StopSignals() as stopping, archive_options.open_archive_of(options) as archive:
        archive.record(options.space)  # raises NotFound, with the existing spaces
        file = ColumnFile(options.file, options.format, options.delimiter)
        load = Load(archive, options.space, file, stopping.event)
        progress = _Progress()
        try:
            target = _target(options, archive, load, progress)
            progress.line.clear()
            _tell_doubts(target, strict=options.strict)
            with auditing.audited(options, "load-file", f"{options.space} from {options.file.absolute()}"):
                target = load.run(target, progress.stage("loading"))
                before = archive.catalog.read(options.space).default
                is_kept = options.keep_default and before != target.version.number
                lost = Lacking() if is_kept else load.make_default(target)
        except Stopped:
            progress.line.clear()
            print(
                f"stopped after {load.rows:,} rows; run the same command again to load all", file=sys.stderr
            )
            return common.INTERRUPTED if stopping.interrupted else common.FAILED
        finally:
            progress.line.clear()
        default = archive.catalog.read(options.space).default
    _finish(options, Loaded(target, load.rows, default, lost, time.monotonic() - started))
    return common.DONE


def _tell_doubts(target: Target, *, strict: bool) -> None:
    for doubt in target.doubts:
        print(f"headrace: {doubt}", file=sys.stderr)
    if strict and target.doubts:
        problem = "the guesses above change values; correct the file, or declare the table's columns"
        raise InvalidRequest(problem, field="--strict")


def _target(options: argparse.Namespace, archive: Archive, load: Load, progress: _Progress) -> Target:
    if not archive.config.spaces[options.space].is_table:
        if options.written:
            raise InvalidRequest(
                "expected none, because vectors are always written with the current time", field="--written"
            )
        return load.vectors(options.key, options.vectors, options.version)
    for name in ("vectors", "version"):
        if getattr(options, name):
            problem = f"expected none, because {options.space!r} is a feature table"
            raise InvalidRequest(problem, field=f"--{name}")
    return load.table(
        options.key,
        options.written,
        progress.stage("looking at the columns"),
        is_other_allowed=options.new_columns,
    )


class _Progress:
    """A progress bar with the rate and the remaining time."""

    def __init__(self) -> None:
        self.line = Line(sys.stderr)
        self._stage, self._started = "", time.monotonic()

    def stage(self, name: str) -> _Progress:
        """Restart the bar for another stage."""
        self._stage, self._started = name, time.monotonic()
        return self

    def __call__(self, rows: int, share: float) -> None:
        if not self.line.due:
            return
        seconds = time.monotonic() - self._started
        left = f", {seconds * (1 - share) / share:,.0f} s left" if share else ""
        bar = "#" * round(_BAR * min(1.0, share))
        pace = f"{rows:,} rows, {rows / max(seconds, 1e-9):,.0f}/s"
        self.line.show(f"{self._stage} [{bar:<{_BAR}}] {min(1.0, share):4.0%}  {pace}{left}")


@dataclass(frozen=True)
class Loaded:
    """Result of a load: the target, the number of rows, the default version, missing keys and duration."""

    target: Target
    rows: int
    default: int
    lost: Lacking
    seconds: float


def _finish(options: argparse.Namespace, loaded: Loaded) -> None:
    target, version = loaded.target, loaded.target.version
    is_default = version.number == loaded.default
    if options.json:
        common.print_json(
            {
                "space": options.space,
                "version": version.number,
                "is_new": target.is_new,
                "is_default": is_default,
                "lacking_keys": loaded.lost.keys,
                "rows": loaded.rows,
                "key": target.key,
                "columns": [column.name for column in target.columns] or [target.vectors],
                "left_out": list(target.left_out),
                "nulls": target.nulls,
                "seconds": round(loaded.seconds, 3),
            }
        )
        return
    answers = "answers now" if is_default else "is not the default"
    rows = "1 row is" if loaded.rows == 1 else f"{loaded.rows:,} rows are"
    print(f"{options.space}: {rows} in version {version.number}, which {answers}")
    if loaded.lost.keys:
        print(
            f"  it lacks {loaded.lost.describe(loaded.default)}; load these, too, or accept that they are "
            "missing:"
        )
        print(f"  headrace archive default {options.space} {version.number} --fewer-keys")
    if target.is_new:
        columns = ", ".join(f"{one.name} {one.dtype}" for one in version.columns[:_LISTED])
        more = len(version.columns) - _LISTED
        print(f"  it is new, with the columns {columns}{f' and {more} more' if more > 0 else ''}")
    print(f"  keys: {target.key}")
    if target.left_out:
        names = (name or "(one without a name)" for name in target.left_out[:_LISTED])
        print(f"  left out: {', '.join(names)}")
    for name, count in target.nulls.items():
        print(f"  {name}: missing in {counted(count, 'row')}, and stored as its default")
