"""Infer a schema from the first rows of a file, and write it as TOML for people to correct."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import tomli_w

from headrace.base.errors import ConfigError
from headrace.stream.column_conversion import is_text
from headrace.stream.record_batches import is_listed, plain
from headrace.stream.schema import Field, Pooling, Role, Schema, Unit
from headrace.stream.text_or_number import Reading, read_column

SAMPLE_ROWS = 50_000
"""Number of rows after which no more batches are examined."""

LABEL_NAMES = ("label", "click", "clicked", "target", "y")
"""Names by which a label is recognised if none is specified."""

_POOLING: Pooling = "mean"
_SEPARATORS = (";", "\t", "|")
_FEWEST_TO_JUDGE = 100
_MOST_DOUBTS = 20
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")
_GUESSED = ("ignored", "categorical", "dense")
_LARGEST_DENSE_INTEGER = 2**24
_FEW_BUCKETS = 2**18
_TYPED: Mapping[str, Reading] = {}


@dataclass(frozen=True)
class Hints:
    """Columns that the caller knows.

    Attributes:
        label: The label; if empty, a column with one of the usual names.
        views: The number of views of each row, or "".
        weight: The weight of each row, or "".
        timestamp: The time of each row, or "".
        context: The columns that belong to the request and not to the candidate.
        ignored: The columns that are not learnt from.
        separator: The separator of several values in one text; "" for none.
        timestamp_unit: Unit of integer timestamps; "" for microseconds.
    """

    label: str = ""
    views: str = ""
    weight: str = ""
    timestamp: str = ""
    context: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    separator: str = ""
    timestamp_unit: Unit = ""


def _there_are(names: list[str]) -> str:
    """Describe the columns; a single one that contains a separator gets a hint to use it."""
    separator = next((one for one in _SEPARATORS if one in names[0]), "") if len(names) == 1 else ""
    hint = "tab" if separator == "\t" else f"'{separator}'"
    return f"there are {', '.join(names)}" + (f"; for CSV, set --delimiter {hint}" if separator else "")


def read_cells(sample: pa.RecordBatch) -> dict[str, Reading]:
    """Read the cells of a text file, by column.

    Args:
        sample: The first rows.
    """
    return {
        name: read_column(column) for name, column in zip(sample.schema.names, sample.columns, strict=True)
    }


def infer_schema(
    sample: pa.RecordBatch, hints: Hints, readings: Mapping[str, Reading] = _TYPED, *, few: bool = False
) -> Schema:
    """Infer the role of each column.

    Integers and texts that repeat, booleans and lists of these become categorical. Floats, and integers that
    hardly repeat, become dense. Fixed-size lists of floats become vectors. Texts that hardly repeat, integers
    that hardly repeat and exceed 2**24, and other types are ignored.

    Args:
        sample: The first rows.
        hints: Known columns.
        readings: The cells of a text file, by column; texts of other files stay texts.
        few: Whether the rows are too few to estimate the number of values, as from a live source.

    Raises:
        ConfigError: There is no label, or a name in the hints is not a column.
    """
    names = sample.schema.names
    given = {"label": hints.label, "views": hints.views, "weight": hints.weight, "timestamp": hints.timestamp}
    for name in (*given.values(), *hints.context, *hints.ignored):
        if name and name not in names:
            raise ConfigError(f"there is no column {name!r}; {_there_are(names)}")
    if not hints.label:
        given["label"] = next((name for name in names if name.lower() in LABEL_NAMES), "")
    if not given["label"]:
        raise ConfigError(
            f"no column is called {', '.join(LABEL_NAMES)}; name the label (--label NAME); "
            f"{_there_are(names)}"
        )
    roles: dict[str, Role] = dict.fromkeys(hints.ignored, "ignored")
    roles |= {given["label"]: "label"}
    for role in ("views", "weight", "timestamp"):
        if given[role]:
            roles[given[role]] = role
    fields = []
    index = index_columns(sample.schema)
    for name, column in zip(names, sample.columns, strict=True):
        if name in roles:
            fields.append(Field(name=name, role=roles[name]))
        elif not name or name in index:
            fields.append(Field(name=name, role="ignored"))
        else:
            column = readings[name].values if name in readings else column  # noqa: PLW2901
            fields.append(_Guess(name, hints, few).field(column))
    return Schema(fields=tuple(fields))


def doubts(
    sample: pa.RecordBatch, schema: Schema, hints: Hints, readings: Mapping[str, Reading] = _TYPED
) -> list[str]:
    """Return sentences about guesses that change the meaning of columns.

    Args:
        sample: The rows that the schema was inferred from.
        schema: The inferred schema.
        hints: Columns that were known before.
        readings: The cells of a text file, by column.
    """
    said, index = [], index_columns(sample.schema)
    for name, column in zip(sample.schema.names, sample.columns, strict=True):
        field = schema.by_name[name]
        if name in hints.ignored or field.role not in _GUESSED:
            continue
        reading = readings.get(name) or _as_it_is(plain(column))
        if not name:
            why = "it has no name; name it to learn from it"
        else:
            why = "it is the row index of a data frame" if name in index else _why(reading, field)
        if why:
            becomes = "is ignored" if field.role == "ignored" else f"becomes {field.role}"
            said.append(f"the column {name!r} {becomes}: {why}{_otherwise(reading, field)}")
    more = len(said) - _MOST_DOUBTS
    return said if more <= 0 else [*said[:_MOST_DOUBTS], f"{more} more columns are doubtful or ignored"]


def index_columns(schema: pa.Schema) -> frozenset[str]:
    """Return the row index columns of a pandas data frame, from its metadata or from pandas' names."""
    named = {name for name in schema.names if _PANDAS_INDEX.fullmatch(name)}
    try:
        told = msgspec.json.decode((schema.metadata or {}).get(b"pandas", b"{}"))
        named |= {one for one in told.get("index_columns", ()) if isinstance(one, str)}
    except (msgspec.DecodeError, AttributeError):
        pass
    return frozenset(named)


def _as_it_is(column: pa.Array) -> Reading:
    return Reading(column, is_nearly_numbers=not is_text(column.type))


def _why(reading: Reading, field: Field) -> str:
    """Return the reason why a column's meaning changed; "" if it did not."""
    kind = reading.values.type
    if field.text and pa.types.is_decimal(kind):
        return "it has numbers with more digits than int64 holds, so they are treated as text"
    if reading.said or field.role == "categorical":
        return reading.said
    return _why_ignored(kind) if field.role == "ignored" else _why_dense(reading.values)


def _otherwise(reading: Reading, field: Field) -> str:
    """Return the schema setting that overrides the guess, as a clause."""
    kind = reading.values.type
    text = "" if pa.types.is_integer(kind) else ", text = true"
    role = f'"categorical"{text}'
    if is_listed(kind) and pa.types.is_floating(kind.value_type):
        role = '"vector" and its size'
    if field.role == "categorical":
        role = '"dense"' if reading.is_nearly_numbers else '"ignored"'
    return f"; to change it, set role = {role} in a schema (--print-schema writes one)"


def _why_ignored(kind: pa.DataType) -> str:
    if is_text(kind) or pa.types.is_integer(kind):
        return "its values hardly ever repeat"
    return f"its values are {kind}"


def _why_dense(column: pa.Array) -> str:
    """Return the reason why integers, which may be ids, became dense; "" for fractions."""
    if pa.types.is_integer(column.type) or (pa.types.is_decimal(column.type) and column.type.scale <= 0):
        return "its whole numbers hardly ever repeat, so they are treated as a quantity"
    if not pa.types.is_floating(column.type):
        return ""
    there = pc.drop_null(column.cast(pa.float64()))
    there = there.filter(pc.is_finite(there))
    if not len(there) or not pc.all(pc.equal(there, pc.floor(there))).as_py():
        return ""
    return "its values are whole numbers that are stored as floats; they are treated as a quantity"


def schema_toml(schema: Schema) -> str:
    """Return a schema as TOML that can be edited and read again."""
    said = {"format": schema.format, "fields": [msgspec.to_builtins(field) for field in schema.fields]}
    return f"# The role of each column; see docs/stream.md.\n{tomli_w.dumps(said)}"


def _longest(lists: pa.Array) -> int:
    """Return the maximum number of values per row, rounded up to a power of two for later rows."""
    longest = pc.max(pc.list_value_length(lists)).as_py() or 1
    return min(4096, 1 << (longest - 1).bit_length())


def _is_category(kind: pa.DataType) -> bool:
    return bool(is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind))


@dataclass(frozen=True)
class _Guess:
    """One column whose role is being inferred."""

    name: str
    hints: Hints
    few: bool

    @property
    def context(self) -> bool:
        return self.name in self.hints.context

    def field(self, column: pa.Array) -> Field:
        """Return the inferred field, by the column's type."""
        column = plain(column)
        kind = column.type
        if pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type):
            return Field(name=self.name, role="vector", size=kind.list_size, context=self.context)
        if is_listed(kind) and _is_category(kind.value_type):
            return self._category(column.flatten(), _longest(column))
        if is_text(kind):
            return self._text(column)
        if pa.types.is_boolean(kind):
            return self._category(column)
        if pa.types.is_integer(kind):
            return self._integers(column)
        if pa.types.is_decimal(kind) and kind.scale <= 0:
            return self._decimal_integers(column)
        if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            return Field(name=self.name, role="dense", context=self.context)
        return Field(name=self.name, role="ignored")

    def _text(self, column: pa.Array) -> Field:
        if self.hints.separator:
            lists = pc.split_pattern(column, self.hints.separator)
            longest = _longest(lists)
            if longest > 1:
                return self._category(lists.flatten(), longest, self.hints.separator)
        if self._hardly_repeats(column):
            return Field(name=self.name, role="ignored")
        return self._category(column)

    def _decimal_integers(self, column: pa.Array) -> Field:
        try:
            return self._integers(column.cast(pa.int64()))
        except pa.ArrowInvalid:
            return self._text(column.cast(pa.string()))

    def _integers(self, column: pa.Array) -> Field:
        if not self._hardly_repeats(column):
            return self._category(column)
        extremes = pc.min_max(column).as_py()
        large = max(abs(extremes["min"] or 0), abs(extremes["max"] or 0)) > _LARGEST_DENSE_INTEGER
        role: Role = "ignored" if large else "dense"
        return Field(name=self.name, role=role, context=self.context and not large)

    def _hardly_repeats(self, column: pa.Array) -> bool:
        there: int = len(column) - column.null_count
        distinct: int = pc.count_distinct(column).as_py()
        return not self.few and there >= _FEWEST_TO_JUDGE and distinct > there / 2

    def _category(self, values: pa.Array, most: int = 1, separator: str = "") -> Field:
        distinct = pc.count_distinct(values).as_py()
        # Four buckets per value keep collisions rare. If values repeat little so far, many more will come.
        room = 4 if distinct * 20 <= len(values) else 32
        buckets = 1 << max(8, min(20, (room * distinct - 1).bit_length()))
        return Field(
            name=self.name,
            role="categorical",
            buckets=max(buckets, _FEW_BUCKETS) if self.few else buckets,
            text=is_text(values.type),
            values=most,
            pooling=_POOLING,
            separator=separator,
            context=self.context,
        )
