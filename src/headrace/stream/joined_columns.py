"""Check the Arrow types of a stream's columns, and describe the columns for the joining kernels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.base.errors import StreamError, listed
from headrace.base.tensors import Array
from headrace.stream.block import Features
from headrace.stream.hashing import seed_of
from headrace.stream.schema import Field

NULL, BOOL, INT8, UINT8, INT16, UINT16, INT32, UINT32, INT64, UINT64 = range(10)
TEXT_32, TEXT_64, FLOAT16, FLOAT32, FLOAT64 = range(10, 15)
"""Codes of value types; those of texts differ by the width of their offsets."""

ONE, LIST_32, LIST_64, LIST_FIXED = range(4)
"""Shapes of a column: one value per row, lists with 32-bit or 64-bit offsets, or lists of a fixed size."""

HASH, BUCKET, EXACT = range(3)
"""How a value maps to its row; see ``Field.keys``."""

CATEGORICAL = np.dtype(
    [
        *((name, np.int64) for name in ("child", "type", "entry_type", "shape", "width")),
        *((name, np.int64) for name in ("slot", "slots", "keys", "key_column")),
        *((name, np.uint64) for name in ("seed", "buckets", "table_start")),
    ],
    align=True,
)
"""One categorical field.

``child`` is the number of its column. ``type`` is the type of its values, and ``entry_type`` that of a
dictionary's entries, else -1. ``shape`` and ``width`` are their shape and the width of a fixed list. ``slot``
and ``slots`` are its first slot and their number. ``keys`` says how values map to rows, and ``key_column`` is
the first column of exact ones in the keys. The others describe its hash and its table.
"""

NUMBER = np.dtype(
    [*((name, np.int64) for name in ("child", "type", "width", "column")), ("null", np.float64)], align=True
)
"""One numeric field: the number of its column, the type of its values, the width of a vector (0 for a single
number), its first column in the result, and the number that replaces null."""

_INTEGERS = {
    pa.int8(): INT8,
    pa.uint8(): UINT8,
    pa.int16(): INT16,
    pa.uint16(): UINT16,
    pa.int32(): INT32,
    pa.uint32(): UINT32,
    pa.int64(): INT64,
    pa.uint64(): UINT64,
}
_TEXTS = {pa.string(): TEXT_32, pa.binary(): TEXT_32, pa.large_string(): TEXT_64, pa.large_binary(): TEXT_64}
_PLAIN = {pa.null(): NULL, pa.bool_(): BOOL, **_INTEGERS}
_NUMBERS = {**_PLAIN, pa.float16(): FLOAT16, pa.float32(): FLOAT32, pa.float64(): FLOAT64}
_CATEGORIES = {**_PLAIN, **_TEXTS}

_NUMBER_TYPES = "a number or a boolean"
_UNIT_MICROSECONDS = {"s": 1_000_000.0, "ms": 1000.0, "us": 1.0, "ns": 0.001}


class Times(NamedTuple):
    """The column of timestamps.

    Attributes:
        child: The number of the column.
        type: The type of its values.
        microseconds: Microseconds per unit.
    """

    child: int
    type: int
    microseconds: float


class Columns(NamedTuple):
    """The description of a stream's columns for the joining kernels.

    Attributes:
        categorical: One ``CATEGORICAL`` per field, in the order of ``Features.categorical``.
        dense: One ``NUMBER`` per field, in the order of ``Features.numeric``.
        label: One ``NUMBER``, or none.
        views: One ``NUMBER``, or none.
        weight: One ``NUMBER``, or none.
        truth: One ``NUMBER``, or none.
        times: The timestamps, or None.
    """

    categorical: Array
    dense: Array
    label: Array
    views: Array
    weight: Array
    truth: Array
    times: Times | None


def columns_of(features: Features, columns: pa.Schema) -> Columns:
    """Find the fields' columns, and check their types.

    Raises:
        StreamError: A field has no column, or one of an unsupported type.
    """
    dense, first = [], 0
    for field in features.numeric:
        dense.append(_number(field, columns, first, null=0.0))
        first += field.size
    single = {}
    for role in ("label", "views", "weight", "truth"):
        field_or_none = features.schema.one(role)
        made = [_number(field_or_none, columns, 0, null=np.nan)] if field_or_none else []
        single[role] = np.array(made, NUMBER)
    times = features.schema.one("timestamp")
    return Columns(
        categorical=_categorical(features, columns),
        dense=np.array(dense, NUMBER),
        times=_times(times, columns) if times else None,
        **single,
    )


def column_number(name: str, columns: pa.Schema) -> int:
    """Return the number of a column.

    Raises:
        StreamError: No column has that name, or several have it.
    """
    found = columns.get_all_field_indices(name)
    if len(found) == 1:
        return int(found[0])
    if found:
        raise StreamError(f"{len(found)} columns have this name, expected one", field=name)
    raise StreamError(
        f"there is no such column; the stream has {listed(columns.names) or 'none'}; add it, or correct "
        "the schema",
        field=name,
    )


def _wrong_type(field: Field, expected: str, came: pa.DataType) -> StreamError:
    return StreamError(
        f"as {field.role} expected {expected}, got a column of type {came}; "
        "write that type, or correct the schema",
        field=field.name,
    )


def _categorical(features: Features, columns: pa.Schema) -> Array:
    made = np.zeros(len(features.categorical), CATEGORICAL)
    exact = 0
    for number, field in enumerate(features.categorical):
        child = column_number(field.name, columns)
        type_ = columns.field(child).type
        shape, width, values = _unlisted(type_)
        if shape != ONE and field.values == 1:
            raise _wrong_type(field, "one value a row (or `values` above 1 in the schema)", type_)
        if shape == ONE and field.separator:
            raise _wrong_type(
                field, "a list, because the schema has a separator (`headrace stream encode` splits)", type_
            )
        entry = _category(field, values.value_type, type_) if pa.types.is_dictionary(values) else -1
        code = _INTEGERS[values.index_type] if entry >= 0 else _category(field, values, type_)
        made[number] = (
            *(child, code, entry, shape, width),
            *(features.slot_starts[number], field.values),
            *({"hash": HASH, "bucket": BUCKET, "exact": EXACT}[field.keys], exact),
            *(seed_of(field.table_name), field.buckets, features.table_starts[number]),
        )
        exact += field.values if field.keys == "exact" else 0
    return made


def _unlisted(type_: pa.DataType) -> tuple[int, int, pa.DataType]:
    if pa.types.is_fixed_size_list(type_):
        return LIST_FIXED, type_.list_size, type_.value_type
    if pa.types.is_large_list(type_):
        return LIST_64, 0, type_.value_type
    if pa.types.is_list(type_):
        return LIST_32, 0, type_.value_type
    return ONE, 0, type_


def _category(field: Field, values: pa.DataType, column: pa.DataType) -> int:
    """Return the code of the type of a field's values."""
    wants_text = field.text and field.keys != "bucket"
    code = _CATEGORIES.get(values)
    if code is None or (code != NULL and wants_text != (values in _TEXTS)):
        expected = "text or bytes" if wants_text else "integers"
        if field.keys != "bucket":
            expected += f" (the schema says text = {str(wants_text).lower()})"
        raise _wrong_type(field, expected + ", plain, in a dictionary, or in lists of those", column)
    return code


def _number(field: Field, columns: pa.Schema, first: int, *, null: float) -> tuple[int, int, int, int, float]:
    child = column_number(field.name, columns)
    type_ = columns.field(child).type
    if field.role != "vector":
        if type_ not in _NUMBERS:
            raise _wrong_type(field, _NUMBER_TYPES, type_)
        return child, _NUMBERS[type_], 0, first, null
    if not pa.types.is_fixed_size_list(type_) or type_.list_size != field.size:
        raise _wrong_type(field, f"lists of the fixed size {field.size}", type_)
    if type_.value_type not in _NUMBERS:
        raise _wrong_type(field, f"lists of the fixed size {field.size} of numbers", type_)
    return child, _NUMBERS[type_.value_type], field.size, first, null


def _times(field: Field, columns: pa.Schema) -> Times:
    child = column_number(field.name, columns)
    type_ = columns.field(child).type
    if pa.types.is_timestamp(type_):
        return Times(child, INT64, _UNIT_MICROSECONDS[type_.unit])
    if type_ not in _INTEGERS:
        raise _wrong_type(field, "timestamps, or integers that count microseconds since 1970", type_)
    return Times(child, _INTEGERS[type_], 1.0)
