"""Comparison of two models' outputs on the same rows, for models that were converted, quantized or exported.

Conversion changes numbers. When a threshold or a feature is rounded from float64 to float32, a row close to
the threshold may take the other branch, which changes its output by a whole leaf. Averages hide that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from headrace.base.errors import InvalidRequest
from headrace.base.tensors import Array, Tensors
from headrace.batching.concatenation import cut, join, padded_size
from headrace.model.servable import DEFAULT_SIGNATURE, Servable, Signature, TensorSpec

_ROWS_A_CALL = 256


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between two models in one output.

    Attributes:
        name: The output of the first model.
        other_name: The output of the second model that was compared with it.
        rows: Number of rows compared.
        differing: Number of rows in which a number differs by more than the tolerance, or another value
            differs at all.
        largest: The largest difference of two numbers; None for texts. Infinite if only one of them is NaN.
        worst_row: Index of the row that differs most; None if no row differs.
        example: The two models' outputs for ``worst_row``, or for row 0 if no row differs.
    """

    name: str
    other_name: str
    rows: int
    differing: int
    largest: float | None
    worst_row: int | None
    example: tuple[object, object]


def compare(one: Servable, other: Servable, rows: Mapping[str, Array], tolerance: float) -> list[Difference]:
    """Run two models on the same rows, and return the differences of their outputs.

    Args:
        one: The original model.
        other: The model derived from it.
        rows: The rows by column, or one matrix under any name; both models find their inputs in it.
        tolerance: The largest difference of two numbers that still counts as equal.

    Returns:
        One Difference per output that both models have. Outputs match by name; if one is left in each model,
        these two match as well.

    Raises:
        InvalidRequest: The rows do not fit a model, or the models have no output in common.
    """
    first, second = _answers(one, rows), _answers(other, rows)
    return [
        _difference(name, first[name], other_name, second[other_name], tolerance)
        for name, other_name in _pairs(list(first), list(second))
    ]


def inputs_of(signature: Signature, rows: Mapping[str, Array]) -> dict[str, Array]:
    """Return a model's inputs from rows that were not made for this model alone.

    Args:
        signature: The signature that the inputs are for.
        rows: The rows by column, or as one matrix.

    Raises:
        InvalidRequest: The rows do not contain the inputs.
    """
    names = signature.input_names
    if all(name in rows for name in names):
        return {spec.name: _filled(spec, rows[spec.name]) for spec in signature.inputs}
    given = list(rows.values())
    if len(names) == 1 and len(given) == 1:
        return {names[0]: given[0]}
    if len(names) == 1 and all(column.ndim == 1 for column in given):
        return {names[0]: np.stack(given, axis=1)}
    if len(given) == 1 and given[0].ndim > 1 and given[0].shape[1] == len(names):
        return dict(zip(names, given[0].T, strict=True))
    raise InvalidRequest(
        f"expected columns named {', '.join(map(repr, names))}, or one matrix; "
        f"got {', '.join(map(repr, rows))}",
        field="rows",
    )


def _filled(spec: TensorSpec, column: Array) -> Array:
    """Return a column with its NaNs, a table's empty cells, replaced by the input's ``absent`` value."""
    if spec.absent is None or isinstance(spec.absent, str) or column.dtype.kind != "f":
        return column
    filled = np.where(np.isnan(column), spec.absent, column)
    whole = filled.astype(spec.dtype)
    return whole if np.array_equal(whole, filled) else filled  # 30.5 is kept, so that it is rejected later


def _answers(model: Servable, rows: Mapping[str, Array]) -> Tensors:
    signature = model.signatures[DEFAULT_SIGNATURE]
    parts = [model.predict(batch) for batch in _batches(signature, rows)]
    count = len(next(iter(rows.values())))
    return {name: np.concatenate([part[name] for part in parts])[:count] for name in signature.output_names}


def _batches(signature: Signature, rows: Mapping[str, Array]) -> Iterator[Tensors]:
    layout, columns, count = signature.check(inputs_of(signature, rows))
    size = signature.rows or _ROWS_A_CALL
    for start in range(0, count, size):
        stop = min(start + size, count)
        padded = padded_size(stop - start, (signature.rows,) if signature.rows else ())
        yield join(layout, [cut(layout, columns, start, stop)], stop - start, padded)


def _pairs(names: list[str], others: list[str]) -> list[tuple[str, str]]:
    same = [(name, name) for name in names if name in others]
    left = [name for name in names if name not in others]
    left_others = [name for name in others if name not in names]
    if len(left) == len(left_others) == 1:
        same.append((left[0], left_others[0]))
    if not same:
        raise InvalidRequest(
            f"the models have no output in common: {', '.join(names)}; and {', '.join(others)}",
            field="outputs",
        )
    return same


def _difference(name: str, one: Array, other_name: str, other: Array, tolerance: float) -> Difference:
    if one.size != other.size:
        raise InvalidRequest(
            f"expected equal sizes, got {list(one.shape)} and {list(other.shape)}",
            field=f"{name} and {other_name}",
        )
    rows = len(one)
    one, other = one.reshape(rows, -1), other.reshape(rows, -1)
    largest = None
    if one.dtype.kind in "fiub" and other.dtype.kind in "fiub":
        with np.errstate(invalid="ignore"):
            apart = np.abs(one.astype(np.float64) - other.astype(np.float64))
        equal = (one == other) | (np.isnan(one.astype(np.float64)) & np.isnan(other.astype(np.float64)))
        apart = np.where(equal, 0.0, np.where(np.isnan(apart), np.inf, apart))
        by_row = apart.max(axis=1, initial=0.0)
        largest = float(by_row.max())
        differs = by_row > tolerance
    else:
        # The same label may be a number in one model and text in the other.
        texts = _texts(one), _texts(other)
        differs = np.array([left != right for left, right in zip(*texts, strict=True)])
        by_row = differs.astype(np.float64)
    worst = int(by_row.argmax())
    return Difference(
        name,
        other_name,
        rows,
        int(differs.sum()),
        largest,
        worst if by_row[worst] else None,
        (_shown(one[worst]), _shown(other[worst])),
    )


def _texts(array: Array) -> list[list[str]]:
    return [
        [one.decode(errors="replace") if isinstance(one, bytes) else str(one) for one in row]
        for row in array.tolist()
    ]


def _shown(row: Array) -> object:
    values = [one.decode(errors="replace") if isinstance(one, bytes) else one for one in row[:4].tolist()]
    return values[0] if len(row) == 1 else values
