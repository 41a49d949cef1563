"""Turn tensors as received, over any protocol, into checked inputs.

A tensor in any form is first converted to bytes of its datatype, or to a list of strings; one check serves
all forms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from headrace.base.errors import InvalidRequest, shown
from headrace.base.tensors import BY_OIP, DATATYPES, Array, Buffer
from headrace.frontends.wire.texts import LENGTH_BYTES, TEXT_BYTES, gathering, splitting, wrong_count
from headrace.frontends.wire.time_slicer import Steps, run
from headrace.model.missing_values import Expansion
from headrace.model.servable import (
    CheckedInputs,
    Expanded,
    RowLayout,
    Signature,
    TensorSpec,
    charge_spread,
    spread_columns,
)

if TYPE_CHECKING:
    from headrace.frontends.wire.request_budget import RequestBudget

BYTES = "BYTES"
BFLOAT16 = "BF16"

# Datatypes whose bytes are used unchanged, by NumPy's character: a look-up by dtype hashes it each time.
_EXACT = {one.dtype.char: (one.oip, one.dtype.itemsize) for one in DATATYPES if one.dtype.kind in "fiu"}

MOST_DIMENSIONS = 32

_NAMES_TOO_MANY = 100
SPREAD_BYTES = 256 * 1024
"""Number of bytes up to which a spread column is made at once."""

_MOST_ELEMENTS = 1 << 48  # more than any message holds, and within NumPy's address range


class WireTensor(NamedTuple):
    """One input as received.

    Attributes:
        name: Name of the input.
        datatype: Datatype declared by the client.
        shape: Shape declared by the client, rows first.
        values: Values in the raw form (little-endian numbers, or strings each after its length), or a list or
            array of strings.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: bytes | memoryview | list[bytes] | Array


def check_names(signature: Signature, names: Iterable[str]) -> None:
    """Check the names of a request's inputs, before their values are read.

    Args:
        signature: Signature of the model.
        names: Names in the request's order; if there are far too many, only the first are read.

    Raises:
        InvalidRequest: An input is missing, unknown or given twice.
    """
    given: dict[str, None] = {}
    for name in islice(names, len(signature.inputs) + _NAMES_TOO_MANY):
        if name in given:
            raise InvalidRequest(f"input {shown(name)} is given twice; give it once", field="inputs")
        given[name] = None
    signature.check_names(given)


def check(
    signature: Signature, tensors: Sequence[WireTensor], budget: Expansion | None = None
) -> CheckedInputs:
    """Check a request's tensors against a signature at once; see ``checking``."""
    return run(checking(signature, tensors, budget))


def checking(
    signature: Signature, tensors: Sequence[WireTensor], budget: Expansion | None = None
) -> Steps[CheckedInputs]:
    """Check a request's tensors against a signature, in small steps where much is spread.

    Args:
        signature: Signature of the model.
        tensors: Tensors of the request.
        budget: Limits on what may be spread.

    Raises:
        InvalidRequest: An input is missing, unknown, given twice, or of the wrong datatype, shape or size.
        TooLarge: The spread columns would exceed the budget.
    """
    check_names(signature, (tensor.name for tensor in tensors))
    by_name = {tensor.name: tensor for tensor in tensors}
    budget = budget or Expanded()
    exact = yield from _exact(signature, by_name, budget)
    if exact is not None:
        return exact
    arrays = {name: as_array(tensor) for name, tensor in by_name.items()}
    return signature.check(arrays, exact=True, budget=budget)


def _exact(
    signature: Signature, by_name: dict[str, WireTensor], budget: Expansion
) -> Steps[CheckedInputs | None]:
    """Use the tensors' bytes as columns unchanged; return None where they need conversion or are wrong."""
    columns, shapes, all_rows = [], [], []
    for spec in signature.inputs:
        tensor = by_name[spec.name]
        if not is_exact(spec, tensor):
            return None
        all_rows.append(tensor.shape[0])
        columns.append(cast("bytes", tensor.values))
        shapes.append(tensor.shape[1:])
    rows = all_rows[signature.counted]
    layout = signature.layout(tuple(shapes))
    spread = spread_inputs(signature, all_rows)
    if spread is None:
        return None
    charge_spread(spread, layout, rows, budget)
    if not is_spread_at_once(spread, layout, rows):
        return CheckedInputs(layout, (yield from _spreading(columns, spread, rows)), rows)
    return CheckedInputs(layout, spread_columns(columns, spread, layout, rows), rows)


def is_spread_at_once(spread: Sequence[int], layout: RowLayout, rows: int) -> bool:
    """Return whether spreading is cheap enough to be done at once and covered by the charge of the call.

    Args:
        spread: Indices of the columns received with one row.
        layout: Memory layout of a row.
        rows: Number of rows of the other columns.
    """
    return all(layout.row_bytes[index] * rows <= SPREAD_BYTES for index in spread)


def _spreading(columns: Sequence[Buffer], spread: Sequence[int], rows: int) -> Steps[tuple[Buffer, ...]]:
    """Do the same as ``spread_columns`` in small steps."""
    whole = list(columns)
    for index in spread:
        row: Array = np.frombuffer(whole[index], np.uint8)
        column = np.empty((rows, len(row)), np.uint8)
        step = max(1, SPREAD_BYTES // len(row))
        for start in range(0, rows, step):
            column[start : start + step] = row
            yield
        whole[index] = column.reshape(-1).data
    return tuple(whole)


def spread_inputs(signature: Signature, rows: Sequence[int]) -> tuple[int, ...] | None:
    """Return the indices of context inputs received with one row for all; None if row counts disagree.

    Args:
        signature: Signature of the model.
        rows: Number of rows received for each input, in the signature's order.
    """
    wanted = rows[signature.counted]
    other = tuple([index for index, count in enumerate(rows) if count != wanted])
    return other if all(rows[index] == 1 and signature.inputs[index].context for index in other) else None


def is_exact(spec: TensorSpec, tensor: WireTensor) -> bool:
    """Return whether a tensor's bytes can be used in a batch unchanged.

    Not so for strings, for booleans (any byte but 0 means true), and for tensors without values.
    """
    shape = tensor.shape
    datatype, item_bytes = _EXACT.get(spec.dtype.char, (None, 0))
    return (
        datatype == tensor.datatype
        and len(shape) > 0
        and min(shape) > 0
        and (shape[1:] == spec.shape or spec.accepts(shape[1:]))
        and item_bytes * math.prod(shape) == len(tensor.values)
    )


def spread_if_repeatable(
    signature: Signature, inputs: CheckedInputs, by_name: Mapping[str, WireTensor]
) -> tuple[int, ...] | None:
    """Return the inputs to spread if similar requests need no parsing, their bytes being used unchanged.

    Args:
        signature: Signature of the model.
        inputs: Result of decoding the request.
        by_name: Its tensors as received, by name.

    Returns:
        Indices of the inputs to spread; None if similar requests must be parsed.
    """
    layout = inputs.layout
    tensors = [by_name[spec.name] for spec in layout.specs]
    if not all(map(is_exact, layout.specs, tensors)):
        return None
    spread = spread_inputs(signature, [tensor.shape[0] for tensor in tensors]) or ()
    return spread if is_spread_at_once(spread, layout, inputs.rows) else None


def as_array(tensor: WireTensor) -> Array:
    """Return a tensor as an array of its own datatype; BF16 is widened to float32, which is exact.

    Raises:
        InvalidRequest: The datatype is unknown, or the values do not fill the shape.
    """
    count = _element_count(tensor)
    if tensor.datatype == BYTES:
        return _string_array(tensor, count)
    item_bytes = 2 if tensor.datatype == BFLOAT16 else _dtype(tensor).itemsize
    if len(tensor.values) != count * item_bytes:
        raise InvalidRequest(
            f"expected {count * item_bytes} bytes for {tensor.datatype} {list(tensor.shape)}, "
            f"got {len(tensor.values)}; make the shape and the data agree",
            field=tensor.name,
        )
    raw = tensor.values
    if not isinstance(raw, bytes | memoryview):
        raise InvalidRequest(f"expected numbers for {tensor.datatype}, got strings", field=tensor.name)
    if tensor.datatype == BFLOAT16:
        widened = np.frombuffer(raw, "<u2").astype(np.uint32) << 16
        return widened.view(np.float32).reshape(tensor.shape)
    if tensor.datatype == "BOOL":
        truth: Array = np.frombuffer(raw, np.uint8) != 0
        return truth.reshape(tensor.shape)
    array: Array = np.frombuffer(raw, _dtype(tensor)).reshape(tensor.shape)
    return array


def _dtype(tensor: WireTensor) -> np.dtype[np.generic]:
    known = BY_OIP.get(tensor.datatype)
    if known is None:
        raise InvalidRequest(
            f"unknown datatype {shown(tensor.datatype)}; expected one of {', '.join(BY_OIP)} or {BFLOAT16}",
            field=tensor.name,
        )
    return known.dtype


def wire_shape(field: str, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a tensor as received, after checking it.

    Args:
        field: Name of the tensor, for the error.
        sizes: Sizes of the shape; if there are far too many, they are not read.

    Raises:
        InvalidRequest: It has too many dimensions, or a negative one.
    """
    if len(sizes) > MOST_DIMENSIONS:  # also keeps their product cheap
        raise InvalidRequest(f"expected at most {MOST_DIMENSIONS} dimensions, got {len(sizes)}", field=field)
    shape = tuple(sizes)
    if shape and min(shape) < 0:
        raise InvalidRequest(
            f"expected sizes of 0 or more in the shape, got {list(shape)}; -1 is for metadata only",
            field=field,
        )
    return shape


def numbers(field: str, datatype: str, dtype: np.dtype[np.generic], values: Sequence[int | float]) -> Array:
    """Return an array of numbers that a message holds one by one.

    Args:
        field: Field that contains them, for the error.
        datatype: The client's name for their datatype.
        dtype: NumPy dtype of the array.
        values: Repeated field of a message, which passes its numbers to NumPy at once.

    Raises:
        InvalidRequest: A number does not fit in the datatype.
    """
    if not values:
        return np.empty(0, dtype)
    array = np.asarray(values)
    if dtype.kind in "iu" and array.dtype.itemsize > dtype.itemsize:
        limits = np.iinfo(dtype.char)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise InvalidRequest(f"a value does not fit in {datatype}", field=field)
    return array.astype(dtype, copy=False)


def _element_count(tensor: WireTensor) -> int:
    shape = wire_shape(tensor.name, tensor.shape)
    if math.prod(size or 1 for size in shape) > _MOST_ELEMENTS:
        raise InvalidRequest(f"shape {list(shape)} is too large for any message", field=tensor.name)
    return math.prod(shape)


def _string_array(tensor: WireTensor, count: int) -> Array:
    if isinstance(tensor.values, bytes):
        return run(splitting(tensor.name, tensor.values, count)).reshape(tensor.shape)
    if len(tensor.values) != count:
        raise wrong_count(tensor.name, count, len(tensor.values))
    return run(gathering(cast("list[bytes] | Array", tensor.values))).reshape(tensor.shape)


def texts_of(tensor: WireTensor, raw: bytes, budget: RequestBudget) -> Steps[Array]:
    """Read a tensor's strings from their raw form in small steps, after charging for them.

    Args:
        tensor: The tensor.
        raw: Its strings, each after its length.
        budget: Limits on the cost of the request.

    Raises:
        InvalidRequest: A string is truncated, or there are more or fewer than the shape says.
        TooLarge: The request has too many values.
    """
    count = _element_count(tensor)
    budget.values(min(count, len(raw)), tensor.name)
    budget.hold(TEXT_BYTES * min(count, len(raw) // LENGTH_BYTES))
    return (yield from splitting(tensor.name, raw, count))


def raw_bytes(tensor: Array) -> memoryview:
    """Return the bytes of a numeric output, without a copy if it is contiguous."""
    return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data
