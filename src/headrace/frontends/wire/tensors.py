"""Tensors as they came, over any protocol, turned into checked inputs.

Whatever form a tensor came in, it becomes bytes of its datatype first, or a list of strings; one check serves
all forms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from headrace.absent import Expansion
from headrace.errors import InvalidRequest, shown
from headrace.frontends.wire.steps import Steps, run
from headrace.frontends.wire.texts import LENGTH_BYTES, TEXT_BYTES, gathering, splitting, wrong_count
from headrace.servable import (
    CheckedInputs,
    Expanded,
    RowLayout,
    Signature,
    TensorSpec,
    charge_spread,
    spread_columns,
)
from headrace.tensors import BY_OIP, DATATYPES, Array, Buffer

if TYPE_CHECKING:
    from headrace.frontends.wire.allowance import Allowance

BYTES = "BYTES"
BFLOAT16 = "BF16"

# Datatypes whose bytes are taken as they are, by NumPy's character: a look-up by dtype hashes it each time.
_EXACT = {one.dtype.char: (one.oip, one.dtype.itemsize) for one in DATATYPES if one.dtype.kind in "fiu"}

MOST_DIMENSIONS = 32

_NAMES_TOO_MANY = 100
SPREAD_BYTES = 256 * 1024
"""Up to so many bytes are spread at once."""

_MOST_ELEMENTS = 1 << 48  # beyond any message, and within what NumPy can address


class WireTensor(NamedTuple):
    """One input as it came.

    Attributes:
        name: The input's name.
        datatype: What the client says it is.
        shape: What the client says its shape is, rows first.
        values: The raw form: little-endian numbers, or strings each after its length; or strings, in a list
            or an array.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: bytes | memoryview | list[bytes] | Array


def check_names(signature: Signature, names: Iterable[str]) -> None:
    """Check the names of a request's inputs, before anything is done with their values.

    Args:
        signature: What is called.
        names: The names, in the request's order; of many too many, only the first are looked at.

    Raises:
        InvalidRequest: An input is missing, unknown or twice there.
    """
    given: dict[str, None] = {}
    for name in islice(names, len(signature.inputs) + _NAMES_TOO_MANY):
        if name in given:
            raise InvalidRequest(f"input {shown(name)} is given twice; give it once", field="inputs")
        given[name] = None
    signature.check_names(given)


def check(
    signature: Signature, tensors: Sequence[WireTensor], allowance: Expansion | None = None
) -> CheckedInputs:
    """Check a request's tensors against a signature, at once; see ``checking``."""
    return run(checking(signature, tensors, allowance))


def checking(
    signature: Signature, tensors: Sequence[WireTensor], allowance: Expansion | None = None
) -> Steps[CheckedInputs]:
    """Check a request's tensors against a signature, in small steps where much is spread.

    Args:
        signature: What is called.
        tensors: The request's.
        allowance: What may be spread.

    Raises:
        InvalidRequest: An input is missing, unknown, twice there, or of the wrong datatype, shape or size.
        TooLarge: What is spread takes too much.
    """
    check_names(signature, (tensor.name for tensor in tensors))
    by_name = {tensor.name: tensor for tensor in tensors}
    allowance = allowance or Expanded()
    exact = yield from _exact(signature, by_name, allowance)
    if exact is not None:
        return exact
    arrays = {name: as_array(tensor) for name, tensor in by_name.items()}
    return signature.check(arrays, exact=True, allowance=allowance)


def _exact(
    signature: Signature, by_name: dict[str, WireTensor], allowance: Expansion
) -> Steps[CheckedInputs | None]:
    """Take the tensors' bytes as columns as they are; None where that is not right, or something is wrong."""
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
    charge_spread(spread, layout, rows, allowance)
    if not is_spread_at_once(spread, layout, rows):
        return CheckedInputs(layout, (yield from _spreading(columns, spread, rows)), rows)
    return CheckedInputs(layout, spread_columns(columns, spread, layout, rows), rows)


def is_spread_at_once(spread: Sequence[int], layout: RowLayout, rows: int) -> bool:
    """Whether spreading takes little enough to be done at once, and to be counted with the call itself.

    Args:
        spread: Which columns came with one row.
        layout: How a row lies in memory.
        rows: How many rows the others have.
    """
    return all(layout.row_bytes[index] * rows <= SPREAD_BYTES for index in spread)


def _spreading(columns: Sequence[Buffer], spread: Sequence[int], rows: int) -> Steps[tuple[Buffer, ...]]:
    """What ``spread_columns`` does, in small steps."""
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
    """Which inputs came with one row for all, being of the context; None if the rows disagree.

    Args:
        signature: What is called.
        rows: How many rows each input came with, in the signature's order.
    """
    wanted = rows[signature.counted]
    other = tuple([index for index, count in enumerate(rows) if count != wanted])
    return other if all(rows[index] == 1 and signature.inputs[index].context for index in other) else None


def is_exact(spec: TensorSpec, tensor: WireTensor) -> bool:
    """Whether a tensor's bytes are what the batch wants.

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
    """Whether a request like this can be taken without parsing: its bytes lie in it as the batch wants them.

    Args:
        signature: What is called.
        inputs: What the request was decoded to.
        by_name: Its tensors as they came.

    Returns:
        Which inputs are to be spread; None where others like it must be parsed.
    """
    layout = inputs.layout
    tensors = [by_name[spec.name] for spec in layout.specs]
    if not all(map(is_exact, layout.specs, tensors)):
        return None
    spread = spread_inputs(signature, [tensor.shape[0] for tensor in tensors]) or ()
    return spread if is_spread_at_once(spread, layout, inputs.rows) else None


def as_array(tensor: WireTensor) -> Array:
    """View a tensor as an array of its own datatype; BF16 is widened to float32, which is exact.

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
    """The shape of a tensor as it came, if it can be one.

    Args:
        field: Whose it is, for the error.
        sizes: The shape's sizes; many too many are not looked at.

    Raises:
        InvalidRequest: It has too many dimensions, or one that is negative.
    """
    if len(sizes) > MOST_DIMENSIONS:  # also keeps their product cheap
        raise InvalidRequest(f"expected at most {MOST_DIMENSIONS} dimensions, got {len(sizes)}", field=field)
    shape = tuple(sizes)
    if shape and min(shape) < 0:
        raise InvalidRequest(
            f"expected sizes of 0 or more in the shape, got {list(shape)}; -1 stands in metadata only",
            field=field,
        )
    return shape


def numbers(field: str, datatype: str, dtype: np.dtype[np.generic], values: Sequence[int | float]) -> Array:
    """Numbers of a message, which came one by one.

    Args:
        field: Whose they are, for the error.
        datatype: What the client calls them.
        dtype: What they become.
        values: A message's repeated field, which hands its numbers to NumPy at once.

    Raises:
        InvalidRequest: One does not fit.
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


def texts_of(tensor: WireTensor, raw: bytes, allowance: Allowance) -> Steps[Array]:
    """Take a tensor's strings out of their raw form, in small steps, once they are counted.

    Args:
        tensor: The tensor.
        raw: Its strings, each after its length.
        allowance: What the request may cost.

    Raises:
        InvalidRequest: A string is cut off, or there are more or fewer than the shape says.
        TooLarge: The request has too many.
    """
    count = _element_count(tensor)
    allowance.values(min(count, len(raw)), tensor.name)
    allowance.hold(TEXT_BYTES * min(count, len(raw) // LENGTH_BYTES))
    return (yield from splitting(tensor.name, raw, count))


def raw_bytes(tensor: Array) -> memoryview:
    """The bytes of an output of numbers, not copied where they lie in order."""
    return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data
