"""Guessing a schema from the first rows of a file, and writing it down for people to correct."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import tomli_w

from headrace.errors import ConfigError
from headrace.stream.cells import Reading, read_column
from headrace.stream.converting import is_listed, is_text
from headrace.stream.dictionaries import plain
from headrace.stream.schema import Field, Pooling, Role, Schema, Unit

SAMPLE_ROWS = 50_000
"""How many rows are looked at."""

LABEL_NAMES = ("label", "click", "clicked", "target", "y")
"""What a label is called where nobody says."""

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
    """What is known about columns beforehand.

    Attributes:
        label: The label's column; one of the usual names if empty.
        views: The column that says how many views a row is of, or "".
        weight: The column that says how much a row counts, or "".
        timestamp: The column that says when it happened, or "".
        context: The columns that belong to the request and not to the candidate.
        ignored: The columns that are not learnt from.
        separator: What stands between several values in one text; "" if nothing does.
        timestamp_unit: What whole numbers of the timestamp count; "" for microseconds.
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
    """Which columns there are; one that looks like several says that they are separated otherwise."""
    separator = next((one for one in _SEPARATORS if one in names[0]), "") if len(names) == 1 else ""
    hint = "tab" if separator == "\t" else f"'{separator}'"
    return f"there are {', '.join(names)}" + (f"; of CSV, say --delimiter {hint}" if separator else "")


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
    """Guess what each column is.

    Integers and texts that come again are categories; other numbers, and flags, dense or categorical as they
    are; texts that hardly ever come again are ignored.

    Args:
        sample: The first rows.
        hints: What is known.
        readings: What its cells hold, if it comes from a text file; texts of other files are texts.
        few: Whether they are too few to tell how many values are to come: what a live source had by then.

    Raises:
        ConfigError: There is no label, or a name in the hints is no column.
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
            f"no column is called {', '.join(LABEL_NAMES)}: say which is the label (--label NAME); "
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
    """Report guesses that change the meaning of columns, in sentences.

    Args:
        sample: The rows that the guess is from.
        schema: The guess.
        hints: What was known before it.
        readings: What its cells hold, if it comes from a text file.
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
    """Find the row index of a pandas data frame: by its metadata, or by the names that pandas gives."""
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
    """Say why a column's meaning changed; "" if it did not."""
    kind = reading.values.type
    if field.text and pa.types.is_decimal(kind):
        return "it has numbers with more digits than int64 holds, and they are taken for texts"
    if reading.said or field.role == "categorical":
        return reading.said
    return _why_ignored(kind) if field.role == "ignored" else _why_dense(reading.values)


def _otherwise(reading: Reading, field: Field) -> str:
    """Say which line of a schema overrides the guess."""
    text = "" if pa.types.is_integer(reading.values.type) else ", text = true"
    role = f'"categorical"{text}'
    if field.role == "categorical":
        role = '"dense"' if reading.is_nearly_numbers else '"ignored"'
    return f"; to change it, set role = {role} in a schema (--print-schema writes one)"


def _why_ignored(kind: pa.DataType) -> str:
    if is_text(kind) or pa.types.is_integer(kind):
        return "its values hardly ever come again"
    return f"its values are {kind}"


def _why_dense(column: pa.Array) -> str:
    """Say why integers, which may be ids, became dense; "" for fractions."""
    if pa.types.is_integer(column.type) or (pa.types.is_decimal(column.type) and column.type.scale <= 0):
        return "its whole numbers hardly ever come again, so they are taken for a quantity"
    if not pa.types.is_floating(column.type):
        return ""
    there = pc.drop_null(column.cast(pa.float64()))
    there = there.filter(pc.is_finite(there))
    if not len(there) or not pc.all(pc.equal(there, pc.floor(there))).as_py():
        return ""
    return "its values are whole numbers that are stored as floats; they are taken for a quantity"


def schema_toml(schema: Schema) -> str:
    """A schema as TOML that can be edited and given back."""
    said = {"format": schema.format, "fields": [msgspec.to_builtins(field) for field in schema.fields]}
    return f"# What each column is: see docs/stream.md.\n{tomli_w.dumps(said)}"


def _longest(lists: pa.Array) -> int:
    """The most values in a row, rounded up to a power of two: later rows may have more."""
    longest = pc.max(pc.list_value_length(lists)).as_py() or 1
    return min(4096, 1 << (longest - 1).bit_length())


@dataclass(frozen=True)
class _Guess:
    """One column being judged."""

    name: str
    hints: Hints
    few: bool

    @property
    def context(self) -> bool:
        return self.name in self.hints.context

    def field(self, column: pa.Array) -> Field:
        """What it is, by its type."""
        column = plain(column)
        kind = column.type
        if pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type):
            return Field(name=self.name, role="vector", size=kind.list_size, context=self.context)
        if is_listed(kind):
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
        # Four rows a value keep collisions rare; where values still come in, later rows bring many more.
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
