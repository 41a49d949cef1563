"""Rows of a stream joined with the archive's values at the time of serving: a model's inputs, as served.

The inputs are made by the same code as in serving (``assembly``), here of past values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa

from headrace.archive.lookup.archive import Archive
from headrace.archive.lookup.as_of import PastLookup
from headrace.archive.model_inputs.assembly import NO_KEY, Filled, ModelInputs, Question
from headrace.base.clock import unix_milliseconds
from headrace.base.errors import ConfigError, InvalidRequest, InvalidRows, StreamError, listed, shown
from headrace.base.tensors import STRING, Array
from headrace.batching.request import VERSION, WRITTEN
from headrace.config import InputSource
from headrace.stream.column_conversion import first_wrong, is_text
from headrace.stream.column_conversion import shown as shown_value
from headrace.stream.record_batches import plain
from headrace.stream.schema import METADATA_KEY, Field, Schema

_MICROSECONDS = 1000  # per millisecond


@dataclass(slots=True)
class Joined:
    """Counts of the rows of one input.

    Attributes:
        rows: Number of rows.
        keys: Number of rows with a key.
        found: Number of these that got the value that was served.
        too_old: Number of these whose value was older than allowed.
        lost: Number of these whose served value is no longer kept, or may not be. This includes keys served
            from another version that this version lacks: they are not filled yet, or were forgotten.
        recorded: Number of rows that record the values that they were served with.
    """

    rows: int = 0
    keys: int = 0
    found: int = 0
    too_old: int = 0
    lost: int = 0
    recorded: int = 0

    @property
    def missing(self) -> int:
        """Number of rows with a key and no value: new keys, and keys that were forgotten."""
        return self.keys - self.found - self.too_old - self.lost


@dataclass(frozen=True)
class JoinSettings:
    """Settings of a join.

    Attributes:
        sources: Sources of the model's inputs from the archive, by the input's name.
        time: Column with the time of serving; "" for the field of the role ``timestamp``.
        versions: Space versions to join with; the default for other spaces.
        served: Space versions that served rows without a recorded version, usually those that the serving
            model pins. For other spaces, the version that was the default at the row's time.
    """

    sources: Mapping[str, InputSource]
    time: str = ""
    versions: Mapping[str, int] = field(default_factory=dict)
    served: Mapping[str, int] = field(default_factory=dict)


class Join:
    """Joins the record batches of one stream, in order.

    Attributes:
        schema: Schema of the joined rows; it names the space versions.
        arrow_schema: Their Arrow schema, with ``schema`` in its metadata.
        counts: Counts of the rows, by input.
        sources: Sources of the inputs, by name.
    """

    def __init__(self, archive: Archive, settings: JoinSettings, columns: pa.Schema, schema: Schema) -> None:
        """Determine the schema of the joined rows.

        Args:
            archive: The archive.
            settings: Settings of the join.
            columns: Arrow schema of the rows.
            schema: Schema of the rows.

        Raises:
            ConfigError: There are no inputs, or an input or a setting does not fit the rows or the space.
            NotFound: There is no such space or version.
            Unavailable: The store does not answer.
        """
        self._archive, self.sources = archive, settings.sources
        if not settings.sources:
            raise ConfigError("inputs: expected a table [inputs.NAME] for each input from the archive")
        spaces = dict.fromkeys(source.space for source in settings.sources.values())
        for named, given in (("versions", settings.versions), ("served", settings.served)):
            for space in given:
                if space not in spaces:
                    problem = f"no input comes from {shown(space)}; inputs come from {listed(spaces)}"
                    raise ConfigError(f"{named}: {problem}")
        for space, number in settings.served.items():
            if not archive.record(space).is_gone(number):
                archive.reader(space, number)  # raises unless the version exists
        self._served_from = settings.served
        self._versions = {
            space: archive.reader(space, settings.versions.get(space, 0)).version.number for space in spaces
        }
        self._inputs = ModelInputs(settings.sources, self._versions, {})
        self._check(columns)
        self._time = _time_column(settings.time, columns, schema)
        self.counts = {name: Joined() for name in settings.sources}
        self._times = self._now = np.zeros(0, np.uint64)
        self._served: dict[str, Array] = {}
        self._row, self._numbers = 0, np.zeros(0, np.int64)
        made = self._filled(
            {name: pa.nulls(0, columns.field(name).type) for name in self._keys}, {}, 0
        ).inputs
        added = {name: _column(values) for name, values in made.items()}
        fields = {one.name: one for one in schema.fields}
        fields |= {name: _field(name, one) for name, one in added.items() if name not in fields}
        fields |= {
            name: _unlearnt(fields[name]) for name in _record_columns(settings.sources) if name in fields
        }
        versions = (schema.spaces or {}) | self._versions
        self.schema = msgspec.structs.replace(schema, fields=tuple(fields.values()), spaces=versions)
        joined = [*columns, *(pa.field(name, one.type) for name, one in added.items())]
        metadata = {**(columns.metadata or {}), METADATA_KEY: self.schema.encode()}
        self.arrow_schema = pa.schema(joined, metadata=metadata)

    @property
    def _keys(self) -> Sequence[str]:
        return tuple(dict.fromkeys(source.key for source in self.sources.values()))

    def batch(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Join a record batch.

        Raises:
            StreamError: A row's key, time, or record of served values is invalid.
            Unavailable: The store does not answer.
        """
        recorded = _recorded(rows, self.sources)
        parts = _alike(rows, recorded)
        made = []
        for part, names in parts:
            self._numbers = self._row + part
            made.append(self._part(rows.take(pa.array(part)) if len(parts) > 1 else rows, names))
        joined = made[0]
        if len(made) > 1:
            order = np.argsort(np.concatenate([part for part, _ in parts]), kind="stable")
            joined = pa.Table.from_batches(made).combine_chunks().to_batches()[0].take(pa.array(order))
        self._row += rows.num_rows
        return joined

    def _part(self, rows: pa.RecordBatch, recorded: Sequence[str]) -> pa.RecordBatch:
        """Join rows that have records of served values for the same inputs."""
        known = {name: self._whole(rows, name + WRITTEN) for name in recorded}
        said = [name for name in recorded if name + VERSION in rows.schema.names]
        self._served = {name: self._whole(rows, name + VERSION) for name in said}
        self._now = self._when(rows) if self._time else np.full(rows.num_rows, unix_milliseconds(), np.uint64)
        # A value written in a row's own millisecond counts as later: the row may have caused it.
        self._times = np.maximum(self._now, 1) - np.uint64(1)
        if not self._time and len(recorded) < len(self.sources):
            missing = next(name for name in self.sources if name not in recorded)
            raise ConfigError(
                "time: expected the column with the time when rows were served, as some rows lack "
                f"{missing + WRITTEN!r}; name it, or give a field of the schema the role timestamp"
            )
        filled = self._filled({name: rows.column(name) for name in self._keys}, known, rows.num_rows)
        for name, counted in filled.counts.items():
            total = self.counts[name]
            total.rows += rows.num_rows
            total.keys += counted.keys
            total.found += counted.found
            total.too_old += counted.too_old
            total.recorded += rows.num_rows if name in known else 0
        made = [_column(values) for values in filled.inputs.values()]
        return pa.record_batch([*rows.columns, *made], schema=self.arrow_schema)

    def _filled(self, keys: Mapping[str, pa.Array], recorded: Mapping[str, Array], rows: int) -> Filled:
        request = {name: _key_values(name, column) for name, column in keys.items()}
        try:
            asked = self._inputs.questions(request, recorded)
            answers = [self._look(question) for question in asked]
            return self._inputs.filled(asked, answers, rows, self._now, recorded)
        except InvalidRows as error:
            row, (name, problem) = next(iter(error.rows.items()))
            raise StreamError(problem.removeprefix(": "), row=int(self._numbers[row]), field=name) from error
        except InvalidRequest as error:
            raise StreamError(
                f"in the batch that starts at this row: {error.message}", row=self._row
            ) from error

    def _look(self, question: Question) -> PastLookup:
        """Return the values with which a question's keys were served."""
        times = self._times[question.rows] if len(self._times) else np.zeros(len(question.keys), np.uint64)
        served = next((self._served[name] for name in question.inputs if name in self._served), None)
        version = self._archive.reader(question.space, question.version).version
        written = question.written
        others = np.zeros(len(question.keys), np.bool_)
        if written is not None and served is not None:
            others = (served[question.rows] != version.number) & (written != 0)  # misses stay misses
        elif written is None:
            others = self._served_at(question.space, times) != version.number
        looked = self._back(question, times, written if not others.any() else None)
        if others.any():
            if written is not None:
                own = self._back(question, times, written)
                _take(looked, own, ~others)
            self._replace_others(question, times, looked, others)
        for name in question.inputs:
            self.counts[name].lost += int(np.count_nonzero(looked.lost))
        return looked

    def _back(self, question: Question, times: Array, written: Array | None) -> PastLookup:
        return self._archive.as_of(
            question.space, question.keys, times, version=question.version, written=written
        )

    def _replace_others(self, question: Question, times: Array, looked: PastLookup, others: Array) -> None:
        """Replace the values of rows that another version served.

        Keys that had a vector in that version get the present vector of this version.

        A newer encoder's vectors are made of the same contents, but later than the rows were served, so their
        own write times are ignored. Feature tables are skipped, because their values change.
        """
        if not self._archive.config.spaces[question.space].embedder:
            return
        gone = np.zeros(len(times), np.bool_)
        was = question.written
        if was is None:
            was, gone = self._written_before(question, times)
        now = self._back(question, np.full(len(question.keys), unix_milliseconds(), np.uint64), None)
        now.lost |= gone | ((now.written == 0) & (was != 0))  # not filled yet, or forgotten
        now.written = np.where((was != 0) & (now.written != 0), was, np.uint64(0))
        now.vectors[now.written == 0] = now.oov
        _take(looked, now, others)

    def _served_at(self, space: str, times: Array) -> Array:
        """Return the versions that served rows that do not record it, int64 ``[N]``; 0 if there was none."""
        if space in self._served_from:
            return np.full(len(times), self._served_from[space])
        return self._archive.record(space).defaults_at(times)

    def _written_before(self, question: Question, times: Array) -> tuple[Array, Array]:
        """Return the write times of the served values, in the versions that served them.

        Returns:
            The times, uint64 ``[N]``; and whether that version has been dropped since, bool ``[N]``.
        """
        record = self._archive.record(question.space)
        numbers = self._served_at(question.space, times)
        written, gone = np.zeros(len(times), np.uint64), np.zeros(len(times), np.bool_)
        for number in np.unique(numbers).tolist():
            rows = numbers == number
            if record.is_gone(number):
                gone |= rows & (number != 0)
            elif number != question.version:
                earlier = self._back(question._replace(version=number), times, None)
                written[rows] = earlier.written[rows]
        return written, gone

    def _check(self, columns: pa.Schema) -> None:
        for name, source in self.sources.items():
            if source.key not in columns.names:
                raise ConfigError(
                    f"inputs.{name}.key: the rows have no column {source.key!r}; "
                    f"they have {listed(columns.names)}"
                )
            if name in columns.names:
                raise ConfigError(f"inputs.{name}: the rows have a column of that name; leave it out")
            there = self._archive.reader(source.space, self._versions[source.space]).version.columns
            if bool(there) != bool(source.column) or (
                there and source.column not in {one.name for one in there}
            ):
                expected = f"one of {listed(one.name for one in there)}" if there else "none, it has vectors"
                raise ConfigError(
                    f"inputs.{name}.column: for the space {source.space!r} expected {expected}, "
                    f"got {source.column!r}"
                )

    def _whole(self, rows: pa.RecordBatch, name: str) -> Array:
        """Return a column of recorded versions or write times, uint64 ``[rows]``; 0 for null.

        In a CSV file, columns that are not learnt from are texts; pandas turns integers beside nulls into
        float64.
        """
        column = plain(rows.column(name), f"column {name!r}")
        types = (pa.types.is_integer, pa.types.is_float64, is_text)
        if not any(is_type(column.type) for is_type in types):
            expected = f"expected whole numbers in the column {name!r}, as in answers"
            raise ConfigError(f"{expected}; got {column.type}")
        for kind in (pa.float64(), pa.uint64()) if is_text(column.type) else (pa.uint64(),):
            try:
                column = column.cast(kind)
            except pa.ArrowInvalid:
                wrong = first_wrong(column, kind)
                problem = f"expected a whole number, as in answers, got {shown_value(column[wrong])}"
                raise StreamError(problem, row=int(self._numbers[wrong]), field=name) from None
        numbers: Array = column.fill_null(0).to_numpy()
        return numbers

    def _when(self, rows: pa.RecordBatch) -> Array:
        """Return when rows were served, in milliseconds of Unix time, uint64 ``[rows]``."""
        times = rows.column(self._time)
        if times.null_count:
            row = int(np.argmax(times.is_null().to_numpy(zero_copy_only=False)))
            problem = "expected a time, got null"
            raise StreamError(problem, row=int(self._numbers[row]), field=self._time)
        if pa.types.is_timestamp(times.type):
            times = times.cast(pa.timestamp("us", times.type.tz), safe=False)
        microseconds: Array = np.maximum(times.cast(pa.int64()).to_numpy(), 0).astype(np.uint64)
        return microseconds // np.uint64(_MICROSECONDS)


def _take(looked: PastLookup, other: PastLookup, rows: Array) -> None:
    for name in ("vectors", "written", "lost"):
        getattr(looked, name)[rows] = getattr(other, name)[rows]


def _recorded(rows: pa.RecordBatch, sources: Mapping[str, InputSource]) -> dict[str, Array]:
    """Return which rows have a record of served values, bool ``[rows]`` by input."""
    names = [name for name in sources if name + WRITTEN in rows.schema.names]
    return {name: rows.column(name + WRITTEN).is_valid().to_numpy(zero_copy_only=False) for name in names}


def _alike(rows: pa.RecordBatch, recorded: Mapping[str, Array]) -> list[tuple[Array, tuple[str, ...]]]:
    """Return groups of rows that have records for the same inputs: their indices, and the inputs."""
    every = np.arange(rows.num_rows)
    parts: list[tuple[Array, tuple[str, ...]]] = [(every, ())]
    for name, there in recorded.items():
        cut = [(part[there[part]], (*names, name)) for part, names in parts]
        cut += [(part[~there[part]], names) for part, names in parts]
        parts = [(part, names) for part, names in cut if len(part)] or [(every, ())]
    return parts


def _key_values(name: str, column: pa.Array) -> Array:
    """Return keys as in requests: ``bytes`` of UTF-8, or int64; null becomes the value for no key."""
    column = plain(column, f"column {name!r}")
    if pa.types.is_integer(column.type):
        numbers: Array = column.cast(pa.int64()).fill_null(NO_KEY).to_numpy()
        return numbers
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    if not any(is_kind(column.type) for is_kind in kinds):
        raise ConfigError(
            f"expected texts or whole numbers in the column of keys {name!r}, got {column.type}"
        )
    made = np.empty(len(column), STRING)
    made[:] = column.cast(pa.large_binary()).fill_null(b"").to_pylist()
    return made


def _column(values: Array) -> pa.Array:
    """Return the values of an input as a column of a stream."""
    if values.ndim == 2:
        flat = pa.array(np.ascontiguousarray(values).reshape(-1))
        return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
    if values.dtype == STRING:
        return pa.array(values.tolist(), pa.binary()).cast(pa.string())
    return pa.array(values)


def _field(name: str, column: pa.Array) -> Field:
    """Return the default field of a joined column for the learner, as ``stream encode`` guesses it."""
    if pa.types.is_fixed_size_list(column.type):
        return Field(name=name, role="vector", size=column.type.list_size)
    if pa.types.is_floating(column.type):
        return Field(name=name, role="dense")
    return Field(name=name, role="categorical", text=pa.types.is_string(column.type))


def _record_columns(sources: Mapping[str, InputSource]) -> list[str]:
    """Return the names of the columns with records of served values."""
    return [name + said for name in sources for said in (WRITTEN, VERSION)]


def _unlearnt(field: Field) -> Field:
    """Return the field of a record column; one that ``stream encode`` guessed to be an input is ignored."""
    return Field(name=field.name, role="ignored") if field.role in ("categorical", "dense") else field


def _time_column(name: str, columns: pa.Schema, schema: Schema) -> str:
    """Return the column with the time of serving; "" if there is none."""
    said = schema.one("timestamp")
    name = name or (said.name if said else "")
    if not name:
        return ""
    if name not in columns.names:
        raise ConfigError(f"time: the rows have no column {name!r}; they have {listed(columns.names)}")
    kind = columns.field(name).type
    if not (pa.types.is_timestamp(kind) or pa.types.is_integer(kind)):
        expected = "timestamps, or microseconds since 1970 as whole numbers"
        raise ConfigError(f"time: expected {expected} in the column {name!r}, got {kind}")
    return name
