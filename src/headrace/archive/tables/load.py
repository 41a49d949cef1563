"""Loads a file into an archive: assigns its columns, chooses the version, and stores it in batches."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from headrace.archive.lookup.archive import Archive
from headrace.archive.lookup.spaces import of_columns
from headrace.archive.model.catalog import SpaceVersion
from headrace.archive.model.columns import TEXT, Column, check_columns, rows_of
from headrace.archive.operations.space_versions import Lacking, has_keys, lost_by_moving
from headrace.archive.tables.file_readers import ColumnFile
from headrace.archive.tables.table_columns import (
    Guess,
    is_text,
    is_whole,
    keys_of,
    refuse,
    values_of,
    vectors_of,
    written_of,
)
from headrace.base.errors import InvalidRequest, instead, listed, nearest, shown
from headrace.stream.record_batches import is_listed
from headrace.stream.schema_inference import index_columns
from headrace.stream.text_or_number import are_floats, without_words

# Compares the columns of a file with those of a table.


_WIDER = {"int32": ("int64", "float64"), "int64": ("float64",), "float32": ("float64",)}
_SHOWN = 5


def fit(columns: Sequence[Column], there: Sequence[Column]) -> bool:
    """Return whether values of the columns of a file can be stored in the columns of a table."""
    return not _differences(columns, there)


def describe_differences(columns: Sequence[Column], there: Sequence[Column]) -> str:
    """Describe how the columns of a file differ from those of a table."""
    found = _differences(columns, there)
    more = len(found) - _SHOWN
    return "; ".join(found[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _differences(columns: Sequence[Column], there: Sequence[Column]) -> list[str]:
    given, known = ({one.name: one for one in some} for some in (columns, there))
    lacking = [name for name in known if name not in given]
    added = [
        f"{shown(name)} is not a column of the table" + _meant(name, lacking)
        for name in given
        if name not in known
    ]
    missing = [f"{shown(name)} is missing" for name in lacking]
    both = [_difference(one, known[name]) for name, one in given.items() if name in known]
    return [*added, *missing, *filter(None, both)]


def _meant(name: str, missing: Sequence[str]) -> str:
    near = nearest(name, missing)
    return f" (did you mean {near}?)" if near else ""


def _difference(column: Column, there: Column) -> str:
    """Describe how a column of a file differs from the table's; "" if its values can be stored."""
    name = shown(column.name)
    is_other_kind = TEXT in (column.dtype, there.dtype) and column.dtype != there.dtype
    if is_other_kind or there.dtype not in (column.dtype, *_WIDER.get(column.dtype, ())):
        return f"{name} is {column.dtype}, in the table {there.dtype}"
    if column.dtype == TEXT and column.bytes > there.bytes:
        return f"{name} has longer texts than the table's {there.bytes} bytes"
    if column.default is not None and there.default is None:
        return f"{name} lacks values, and the table's column has no default"
    return ""


_MOST_ROWS, _FEWEST_ROWS = 8192, 64
_BATCH_BYTES = 16 * 1024 * 1024

Progress = Callable[[int, float], object]
"""Called with the number of rows done and the share of the file read."""


@dataclass(frozen=True)
class Target:
    """The version and columns that a file is loaded into.

    Attributes:
        version: Version of the space; its number is 0 until the first rows of a new version are stored.
        key: Column of the file with the keys.
        vectors: Column of the file with the vectors; "" for a feature table.
        columns: Columns of the table that are loaded.
        is_new: Whether the version is created for this file.
        left_out: Columns of the file that are not loaded.
        nulls: Number of missing values stored as the default, by column; known only if the columns are
            guessed from the file.
        written: Column of the file with the time each row was written; "" for the current time.
        doubts: Possibly unexpected properties of guessed columns, as sentences.
    """

    version: SpaceVersion
    key: str
    vectors: str = ""
    columns: tuple[Column, ...] = ()
    is_new: bool = False
    left_out: Sequence[str] = ()
    nulls: dict[str, int] = field(default_factory=dict)
    written: str = ""
    doubts: Sequence[str] = ()


class Stopped(Exception):
    """The load was asked to stop before it was done."""


class Load:
    """Loads one file into one space.

    Attributes:
        rows: Number of rows stored.
    """

    def __init__(self, archive: Archive, space: str, file: ColumnFile, stopping: threading.Event) -> None:
        """Prepare a load.

        Args:
            archive: Archive to load into.
            space: Name of the space or table.
            file: File to load.
            stopping: Set when the load is to stop.

        Raises:
            NotFound: There is no such space.
        """
        archive.record(space)  # raises NotFound
        self._archive, self._space, self._file, self._stopping = archive, space, file, stopping
        self.rows = 0

    def table(self, key: str, written: str, progress: Progress, *, is_other_allowed: bool = False) -> Target:
        """Find the version of a table that the file fits, or define a new one.

        Args:
            key: Column of keys; "" to guess it.
            written: Column with the time each row was written; "" for the current time.
            progress: Called with the progress made: to guess columns, the file is read once.
            is_other_allowed: Whether guessed columns may differ from those of a table that has rows.

        Raises:
            InvalidRequest: The file lacks columns of the settings or of the table, or cannot be read; or the
                table is filled from a stream.
            Unavailable: The store does not answer.
            Stopped: The load was asked to stop.
        """
        settings, names = self._archive.config.spaces[self._space], self._file.schema.names
        declared = settings.columns or ()
        if any(column.window for column in declared):
            way_out = f"headrace archive feed {self._space} counts them from a stream"
            problem = f"expected a table that files fill, got {self._space!r}, whose columns are windows"
            raise InvalidRequest(f"{problem}; {way_out}", field="SPACE")
        if written:
            self._check_there(written, "--written")
        index = index_columns(self._file.schema) - {key, written} - {column.name for column in declared}
        key = self._key(key, {column.name for column in declared} | {written} | index)
        for column in declared:
            if column.name not in names and column.default is None:
                there = instead(column.name, filter(None, names))
                problem = f"the file does not have it, and it has no default; {there}"
                raise InvalidRequest(problem, field=f"column {column.name!r}")
        nulls, doubts = dict[str, int](), self._key_doubts(key, progress)
        columns, is_empty = declared, False
        if not declared:
            if index:
                doubts.append(f"the row index of a data frame is left out: {listed(sorted(index))}")
            guesses = self._guesses([name for name in names if name not in {key, written, *index}], progress)
            columns = tuple(one for one in (guess.column() for guess in guesses) if one is not None)
            nulls = {guess.name: guess.nulls for guess in guesses if guess.nulls}
            doubts += [f"the column {guess.name!r}: {guess.said}" for guess in guesses if guess.said]
            doubts += self._file.doubts
            is_empty = not any(guess.rows for guess in guesses)
        if not columns:
            problem = f"expected columns for a table besides the key {shown(key)}, got none"
            way_out = (
                "; if another character separates its columns, name it with --delimiter"
                if self._file.format == "csv"
                else ""
            )
            raise InvalidRequest(problem + way_out, field="FILE")
        check_columns(columns)
        version = self._declared(columns) if declared else self._guessed(columns, is_other_allowed, is_empty)
        loaded = tuple(column for column in version.columns if column.name in names)
        left_out = sorted(set(names) - {column.name for column in loaded} - {key, written or key})
        return Target(version, key, "", loaded, not version.number, left_out, nulls, written, doubts)

    def vectors(self, key: str, vectors: str, number: int) -> Target:
        """Return the target for a file of vectors.

        Args:
            key: Column of keys; "" to guess it.
            vectors: Column of vectors; "" for the only one with lists.
            number: Version of the space; 0 for its default.

        Raises:
            InvalidRequest: The file has no such columns.
            NotFound: There is no such version.
        """
        version = self._archive.reader(self._space, number).version
        lists = [one.name for one in self._file.schema if is_listed(one.type)]
        if not vectors and len(lists) != 1:
            got = f"there are {listed(lists)}" if lists else "there is none"
            raise InvalidRequest(f"expected one column of lists of numbers; {got}", field="--vectors")
        vectors = vectors or lists[0]
        self._check_there(vectors, "--vectors")
        key = self._key(key, {vectors})
        return Target(version, key, vectors, left_out=sorted(set(self._file.schema.names) - {key, vectors}))

    def run(self, target: Target, progress: Progress) -> Target:
        """Store all rows, replacing existing ones. Rows stored before an error remain.

        A new version is created once its first rows are known to be valid.

        Args:
            target: Version and columns to load into.
            progress: Called with the progress made.

        Returns:
            The target with the number of the version.

        Raises:
            InvalidRequest: A row is invalid; the error names its number, from 1, and its column.
            Unavailable: The store does not answer; the load may be run again.
            Stopped: The load was asked to stop.
        """
        longest = self._archive.config.spaces[self._space].max_key_bytes
        value_names = [target.vectors] if target.vectors else [column.name for column in target.columns]
        names = list(dict.fromkeys([target.key, *([target.written] if target.written else []), *value_names]))
        for batch in self._batches(names, target.version.form.record_bytes, progress):
            first = self.rows + 1
            with self._saying_lines():
                keys = keys_of(target.key, batch.column(target.key), first, longest)
                if target.vectors:
                    vectors = vectors_of(
                        target.vectors, batch.column(target.vectors), target.version.dimension, first
                    )
                    self._archive.put(self._space, keys, vectors, version=target.version.number)
                else:
                    target = self._put_rows(target, keys, batch, first)
            self.rows += len(keys)
        return target if target.version.number else self._made(target)

    def make_default(self, target: Target) -> Lacking:
        """Make the loaded version of a table the default, unless lookups would lose keys.

        For vectors, the default is not changed, as the caller has chosen the version.

        Returns:
            The keys of the default that the version lacks; if there are any, the default is not changed.

        Raises:
            NotFound: The version was dropped.
            Unavailable: The store does not answer.
        """
        if target.vectors:
            return Lacking()
        record = self._archive.catalog.read(self._space)
        lost = lost_by_moving(self._archive, self._space, record, target.version.number)
        if not lost.keys:
            self._archive.catalog.move_default(self._space, target.version.number)
        return lost

    def _made(self, target: Target) -> Target:
        """Create the target's version in the store and return the target with it."""
        version = self._archive.table_version(self._space, target.version.columns, is_loading=True)
        return replace(target, version=version)

    def _put_rows(self, target: Target, keys: list[str], batch: pa.RecordBatch, first: int) -> Target:
        """Store a batch and return the target, with the version created for the first batch."""
        values = {one.name: values_of(one, batch.column(one.name), first) for one in target.columns}
        written = written_of(target.written, batch.column(target.written), first) if target.written else None
        with self._naming_rows(first):
            if not target.version.number:
                rows_of(target.version.columns, values)
                target = self._made(target)
            self._archive.put_rows(self._space, keys, values, version=target.version.number, written=written)
        return target

    @contextmanager
    def _saying_lines(self) -> Iterator[None]:
        """Add the line to the row that an error names, if the file is text."""
        try:
            yield
        except InvalidRequest as error:
            said = re.fullmatch(r"row (\d+)(, column .*)", error.field, re.DOTALL)
            if said is None:
                raise
            where = f"{self._file.place(int(said[1]))}{said[2]}"
            raise InvalidRequest(error.message[len(error.field) + 2 :], field=where) from error

    @contextmanager
    def _naming_rows(self, first: int) -> Iterator[None]:
        """Convert row numbers within a batch to row numbers of the file."""
        try:
            yield
        except InvalidRequest as error:
            said = re.fullmatch(r"columns\.(.*)\[(\d+)\]", error.field, re.DOTALL)
            if said is None:
                raise
            refuse(said[1], first + int(said[2]), error.message[len(error.field) + 2 :])

    def _batches(
        self, names: list[str], row_bytes: int, progress: Progress
    ) -> Generator[pa.RecordBatch, None, None]:
        rows = max(_FEWEST_ROWS, min(_MOST_ROWS, _BATCH_BYTES // row_bytes))
        done = 0
        with closing(self._file.batches(names, rows)) as batches:
            for batch in batches:
                if self._stopping.is_set():
                    raise Stopped
                yield batch
                done += batch.num_rows
                progress(done, self._file.share)

    def _key_doubts(self, key: str, progress: Progress) -> list[str]:
        """Report keys at the start that a program may have rewritten: ``1012.0``, ``1.2E+11``, ``NA``."""
        if self._file.format != "csv":
            return []
        with closing(self._batches([key], 1, progress)) as batches:
            first = next(batches, None)
        keys = first.column(key) if first is not None else pa.array([], pa.string())
        odd = keys.filter(pc.or_(are_floats(keys), without_words(keys).is_null())).drop_null()
        return (
            [f"keys are texts: a lookup finds {shown(odd[0].as_py())} only as it is written"]
            if len(odd)
            else []
        )

    def _guesses(self, names: list[str], progress: Progress) -> list[Guess]:
        """Guess columns from all their values."""
        record = self._archive.catalog.read(self._space)
        default = record.version(record.default)
        there = default.columns if default is not None and default.is_full else ()
        texts = {one.name for one in there if one.dtype == TEXT}
        guesses = [
            Guess(self._file.schema.field(name), are_cells=self._file.format == "csv" and name not in texts)
            for name in names
        ]
        for batch in self._batches(names, 1, progress):
            for guess in guesses:
                guess.look(batch.column(guess.name))
        return guesses

    def _declared(self, columns: tuple[Column, ...]) -> SpaceVersion:
        """Return the version with the declared columns; its number is 0 if it does not exist yet."""
        wanted = of_columns(columns)
        return self._archive.catalog.read(self._space).made_by(wanted.fingerprint) or wanted

    def _guessed(self, columns: tuple[Column, ...], is_other_allowed: bool, is_empty: bool) -> SpaceVersion:
        """Return the default version if the guessed columns fit it, else the version of these columns."""
        record = self._archive.catalog.read(self._space)
        default = record.version(record.default)
        if is_empty:
            if default is None:
                raise InvalidRequest("expected rows, which define the columns, got none", field="FILE")
            return default
        if default is not None:
            if fit(columns, default.columns):
                return default
            is_begun = default.is_full and has_keys(self._archive, self._space, default)
            if is_begun and not is_other_allowed:
                differences = describe_differences(columns, default.columns)
                raise InvalidRequest(
                    f"expected the columns of {self._space!r}, as version {default.number} has them; "
                    f"{differences}. Correct the file, or load all rows with "
                    "--new-columns: into another version, which answers once it has all keys",
                    field="FILE",
                )
        wanted = of_columns(columns)
        return record.made_by(wanted.fingerprint) or wanted

    def _key(self, given: str, others: set[str]) -> str:
        """Return the column of keys, guessed if it is not given."""
        if given:
            self._check_there(given, "--key")
            return given
        may_be = [
            one.name
            for one in self._file.schema
            if one.name not in others and (is_text(one.type) or is_whole(one.type))
        ]
        if not may_be:
            raise InvalidRequest("expected a column of texts or whole numbers; name it", field="--key")
        usual = ("key", "id", self._space, f"{self._space}_id", f"{self._space.removesuffix('s')}_id")
        return next((name for name in usual if name in may_be), may_be[0])

    def _check_there(self, name: str, option: str) -> None:
        names = self._file.schema.names
        if name not in names:
            there = instead(name, filter(None, names))
            raise InvalidRequest(f"no column {shown(name)} in the file; {there}", field=option)
