"""Guessing a schema from the first rows of a file, and writing it down for people to correct."""

from __future__ import annotations

import json
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ConfigError
from headrace.stream.converting import is_listed, is_text
from headrace.stream.schema import Field, Pooling, Role, Schema

SAMPLE_ROWS = 50_000
"""How many rows are looked at."""

LABEL_NAMES = ("label", "click", "clicked", "target", "y")
"""What a label is called where nobody says."""

_POOLING: Pooling = "mean"
_FEWEST_TO_JUDGE = 100
_LARGEST_DENSE_INTEGER = 2**24


@dataclass(frozen=True)
class Hints:
    """What is known about columns beforehand.

    Attributes:
        label: The label's column; one of the usual names if empty.
        weight: The column that says how much a row counts, or "".
        timestamp: The column that says when it happened, or "".
        context: The columns that belong to the request and not to the candidate.
        ignored: The columns that are not learnt from.
        separator: What stands between several values in one text; "" if nothing does.
    """

    label: str = ""
    weight: str = ""
    timestamp: str = ""
    context: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    separator: str = ""


def infer_schema(sample: pa.RecordBatch, hints: Hints) -> Schema:
    """Guess what each column is.

    Integers and texts that come again are categories; other numbers, and flags, dense or categorical as they
    are; texts that hardly ever come again are ignored.

    Args:
        sample: The first rows.
        hints: What is known.

    Raises:
        ConfigError: There is no label, or a name in the hints is no column.
    """
    names = sample.schema.names
    given = {"label": hints.label, "weight": hints.weight, "timestamp": hints.timestamp}
    for name in (*given.values(), *hints.context, *hints.ignored):
        if name and name not in names:
            raise ConfigError(f"there is no column {name!r}; there are {', '.join(names)}")
    if not hints.label:
        given["label"] = next((name for name in names if name.lower() in LABEL_NAMES), "")
    if not given["label"]:
        raise ConfigError(
            f"no column is called {', '.join(LABEL_NAMES)}: say which is the label (--label NAME); "
            f"there are {', '.join(names)}"
        )
    roles: dict[str, Role] = dict.fromkeys(hints.ignored, "ignored")
    roles |= {given["label"]: "label"}
    for role in ("weight", "timestamp"):
        if given[role]:
            roles[given[role]] = role
    fields = []
    for name, column in zip(names, sample.columns, strict=True):
        if name in roles:
            fields.append(Field(name=name, role=roles[name]))
        else:
            fields.append(_guess(name, column, hints))
    return Schema(fields=tuple(fields))


def schema_toml(schema: Schema) -> str:
    """A schema as TOML that can be edited and given back."""
    lines = ["# What each column is: see docs/stream.md.", f"format = {schema.format}", ""]
    for field in schema.fields:
        lines.append("[[fields]]")
        lines += [f"{key} = {_toml(value)}" for key, value in msgspec.to_builtins(field).items()]
        lines.append("")
    return "\n".join(lines)


def _toml(value: object) -> str:
    # A TOML basic string escapes as JSON does, but for the delete character.
    return json.dumps(value).replace("\x7f", "\\u007f")


def _guess(name: str, column: pa.Array, hints: Hints) -> Field:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type):
        return Field(name=name, role="vector", size=kind.list_size, context=name in hints.context)
    if is_listed(kind):
        return _category(name, column.flatten(), hints, _longest(column))
    if is_text(kind):
        return _guess_text(name, column, hints)
    if pa.types.is_boolean(kind):
        return _category(name, column, hints)
    if pa.types.is_integer(kind):
        return _guess_integers(name, column, hints)
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return Field(name=name, role="dense", context=name in hints.context)
    return Field(name=name, role="ignored")


def _guess_text(name: str, column: pa.Array, hints: Hints) -> Field:
    for wanted in (pa.int64(), pa.float64()):
        try:
            numbers = column.cast(wanted)
        except pa.ArrowInvalid:
            continue
        if numbers.null_count < len(numbers):
            return _guess(name, numbers, hints)
    if hints.separator:
        lists = pc.split_pattern(column, hints.separator)
        longest = _longest(lists)
        if longest > 1:
            return _category(name, lists.flatten(), hints, longest)
    if _hardly_repeats(column):
        return Field(name=name, role="ignored")
    return _category(name, column, hints)


def _guess_integers(name: str, column: pa.Array, hints: Hints) -> Field:
    if not _hardly_repeats(column):
        return _category(name, column, hints)
    extremes = pc.min_max(column).as_py()
    large = max(abs(extremes["min"] or 0), abs(extremes["max"] or 0)) > _LARGEST_DENSE_INTEGER
    return Field(name=name, role="ignored" if large else "dense", context=name in hints.context and not large)


def _hardly_repeats(column: pa.Array) -> bool:
    there: int = len(column) - column.null_count
    distinct: int = pc.count_distinct(column).as_py()
    return there >= _FEWEST_TO_JUDGE and distinct > there / 2


def _longest(lists: pa.Array) -> int:
    """The most values in a row, rounded up to a power of two: later rows may have more."""
    longest = pc.max(pc.list_value_length(lists)).as_py() or 1
    return min(4096, 1 << (longest - 1).bit_length())


def _category(name: str, values: pa.Array, hints: Hints, most: int = 1) -> Field:
    distinct = pc.count_distinct(values).as_py()
    # Four rows a value keep collisions rare; where values still come in, later rows bring many more.
    room = 4 if distinct * 20 <= len(values) else 32
    buckets = 1 << max(8, min(20, (room * distinct - 1).bit_length()))
    text = is_text(values.type)
    return Field(
        name=name,
        role="categorical",
        buckets=buckets,
        text=text,
        values=most,
        pooling=_POOLING,
        context=name in hints.context,
    )
