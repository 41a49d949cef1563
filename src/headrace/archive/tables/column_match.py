"""Compares the columns of a file with those of a table."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.archive.model.columns import TEXT, Column
from headrace.base.errors import nearest, shown

_WIDER = {"int32": ("int64", "float64"), "int64": ("float64",), "float32": ("float64",)}
_SHOWN = 5


def fit(columns: Sequence[Column], there: Sequence[Column]) -> bool:
    """Return whether values of the columns of a file can be stored in the columns of a table."""
    return not _differences(columns, there)


def told_differences(columns: Sequence[Column], there: Sequence[Column]) -> str:
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
