"""Take a request's inputs from a data frame of pandas or polars, which need not be installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_not
from typing import Any, Protocol

import numpy as np

from headrace.base.errors import InvalidRequest, shown
from headrace.base.tensors import STRING, Array


class DataFrame(Protocol):
    """The parts of a data frame that this module reads, in pandas and in polars."""

    @property
    def columns(self) -> Any:
        """The names of the columns."""

    def __getitem__(self, name: Any, /) -> Any:
        """Return a column."""


_PLAIN_ROWS = frozenset((list, tuple, np.ndarray))

Inputs = Mapping[str, object] | DataFrame
"""Inputs by name, or a data frame whose columns are the inputs."""


class Input(Protocol):
    """The parts of a ``TensorSpec`` that this module reads."""

    @property
    def name(self) -> str:
        """The input's name."""

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of one row."""


def named_inputs(inputs: Inputs, wanted: Sequence[Input]) -> Mapping[str, object]:
    """Return inputs by name; those of a data frame are its columns.

    Columns that are no inputs are ignored. A model with one input for all columns, such as
    ``features [rows, 4]``, gets them in the frame's order.

    Args:
        inputs: A data frame, or inputs by name, which are returned as they are.
        wanted: The model's inputs.

    Returns:
        For a data frame arrays of numbers, and lists of texts in which None stands for a missing one.

    Raises:
        InvalidRequest: It is neither, or two columns have the same name.
    """
    if isinstance(inputs, Mapping):
        return inputs
    if _is_table(inputs) or _is_query(inputs) or not hasattr(inputs, "columns"):
        raise InvalidRequest(
            f"expected arrays by input name or a data frame, got {type(inputs).__name__}"
            f"{_way_out(inputs, wanted)}",
            field="inputs",
        )
    names = list(inputs.columns)
    found, whole = {str(name): name for name in names}, wanted[0]
    if len(found) != len(names):
        texts = list(map(str, names))
        twice = next(name for name in texts if texts.count(name) > 1)
        raise InvalidRequest("two columns of the data frame have this name", field=shown(twice))
    if len(wanted) == 1 and whole.name not in found and whole.shape == (len(names),):
        return {whole.name: _joined([values_of(inputs[name]) for name in names])}
    if all(one.name in found for one in wanted):
        return {one.name: values_of(inputs[found[one.name]]) for one in wanted}
    return {name: values_of(inputs[column]) for name, column in found.items()}


def _is_table(inputs: object) -> bool:
    """Return whether it is a table of Arrow, whose ``columns`` are no names."""
    return hasattr(type(inputs), "column_names")


def _is_query(inputs: object) -> bool:
    """Return whether it is a lazy frame, which has no values yet."""
    return hasattr(type(inputs), "collect")


def _way_out(inputs: object, wanted: Sequence[Input]) -> str:
    if isinstance(inputs, list | tuple) and inputs and isinstance(inputs[0], Mapping):
        return "; pass pandas.DataFrame(rows)"
    if hasattr(inputs, "to_frame"):  # a series: one row of a data frame, or one column
        return "; pass pandas.DataFrame([row]) for one row, or column.to_frame() for a column"
    if _is_table(inputs):
        return "; pass table.to_pandas()"
    if _is_query(inputs):
        return "; pass frame.collect()"
    return f"; pass {{{wanted[0].name!r}: values}}" if len(wanted) == 1 else ""


def values_of(column: Any) -> Array | list[object]:
    """Return a column as an array if it has only numbers, else as a list in which missing values are None."""
    values: Array = np.asarray(column)
    if values.dtype.kind not in "OUST" and not has_nulls(column):
        return values
    is_missing = column.isna() if hasattr(column, "isna") else column.is_null()
    listed = column.to_list() if hasattr(column, "to_list") else column.tolist()
    return [None if missing else value for value, missing in zip(listed, is_missing, strict=True)]


def with_nones(rows: object, axes: int) -> object:
    """Return an array or a column in which values are missing as a list with None; others as they are.

    Args:
        rows: An array, a column, or lists that may contain such.
        axes: Number of axes, with that of the rows. The lists of the last axis contain values.
    """
    if isinstance(rows, list | tuple):
        if _are_plain(rows, axes):
            return rows
        changed = [with_nones(row, axes - 1) for row in rows]
        return changed if any(map(is_not, changed, rows)) else rows
    if isinstance(rows, np.ndarray):
        is_missing = np.ma.is_masked(rows) or (rows.dtype == STRING and any(one is None for one in rows.flat))
        return rows.tolist() if is_missing else rows
    return values_of(rows) if is_column(rows) else rows


def hides_nulls(rows: object, axes: int) -> bool:
    """Return whether an array or a column has missing values, or one within nested lists.

    NumPy would turn them into NaN, or into the values under a mask.

    Args:
        rows: An array, a column, or lists that may contain such.
        axes: Number of axes, with that of the rows. The lists of the last axis contain values.
    """
    if isinstance(rows, list | tuple):
        return not _are_plain(rows, axes) and any(hides_nulls(row, axes - 1) for row in rows)
    if isinstance(rows, np.ndarray):
        return type(rows) is not np.ndarray and bool(np.ma.is_masked(rows))
    return is_column(rows) and has_nulls(rows)


def _are_plain(rows: Sequence[object], axes: int) -> bool:
    return axes < 2 or (axes == 2 and _PLAIN_ROWS.issuperset(map(type, rows)))


def is_column(values: object) -> bool:
    """Return whether it is a column of pandas or polars by itself, or an array of pandas."""
    return hasattr(values, "dtype") and (hasattr(values, "to_list") or hasattr(values, "isna"))


def has_nulls(column: Any) -> bool:
    """Return whether a column has missing values, which NumPy would turn into NaN, and integers into floats.

    A NaN in a column of NumPy's floats is a number.
    """
    if hasattr(column, "null_count"):  # polars, which does not count those within arrays
        return bool((column.reshape((-1,)) if hasattr(column.dtype, "shape") else column).null_count())
    return not isinstance(column.dtype, np.dtype) and bool(column.isna().any())


def _joined(columns: Sequence[object]) -> object:
    arrays = [column for column in columns if isinstance(column, np.ndarray) and column.dtype.kind in "biuf"]
    if len(arrays) == len(columns):
        return np.stack(arrays, axis=1)
    return [list(row) for row in zip(*columns, strict=True)]
