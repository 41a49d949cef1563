"""Tensors as JSON values, flat or nested like their shape, decoded by datatype."""

from __future__ import annotations

import array
import math
import struct
from collections.abc import Callable
from functools import lru_cache
from itertools import chain
from typing import Any, cast

import msgspec
import numpy as np

from headrace.base.errors import InvalidRequest, shown
from headrace.frontends.oip.json_misfits import (
    another_length,
    no_list,
    not_nested_so,
    not_text,
    wrong_element,
)
from headrace.frontends.wire import long_lists
from headrace.frontends.wire.json_cost import has_slow_numbers
from headrace.frontends.wire.json_misfits import place_of
from headrace.frontends.wire.json_text import Json, decode
from headrace.frontends.wire.tensors import BFLOAT16, BYTES, MOST_DIMENSIONS, WireTensor
from headrace.frontends.wire.time_slicer import Steps
from headrace.model.missing_values import Expansion, pay, unexpected_null
from headrace.model.servable import TensorSpec

Parameters = dict[str, msgspec.Raw] | None
"""Parameters as received, with their values still as JSON text."""

# Type codes of array.array, which refuses values out of range in all versions.
_ARRAY_CODES = {
    "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q",
    "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q",
    "FP64": "d",
}  # fmt: skip
_NARROW = {"FP16": "e", "FP32": "f"}
"""Type codes of ``struct``, which refuses floats that are too large and accepts infinity."""

_CHARACTERS_A_STEP = 128 * 1024


class InferInput(msgspec.Struct):
    """One input of a body."""

    name: str
    datatype: str
    shape: list[int]
    parameters: Parameters = None
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def from_json(tensor: InferInput, spec: TensorSpec, budget: Expansion) -> Steps[WireTensor]:
    """Decode an input's values from short JSON; in small steps where some are absent.

    Args:
        tensor: The input as received.
        spec: The expected input.
        budget: Limits the values that are filled in.

    Raises:
        InvalidRequest: The values do not match the datatype or the shape.
        TooLarge: Too many values would be filled in.
    """
    check_given(tensor)
    text = bytes(tensor.data)  # type: ignore[arg-type]
    values = _typed_at_once(tensor, text)
    if values is None:
        return (yield from from_values(tensor, spec, decode(text, nan=False), budget))
    return WireTensor(tensor.name, tensor.datatype, tuple(tensor.shape), _packed(tensor, spec, values))


def check_given(tensor: InferInput) -> None:
    """Check that an input has values, and not too many dimensions.

    Raises:
        InvalidRequest: It has no values, or too many dimensions.
    """
    if isinstance(tensor.data, msgspec.UnsetType):
        raise InvalidRequest(
            "expected data, or binary_data_size in its parameters, got neither", field=tensor.name
        )
    if len(tensor.shape) > MOST_DIMENSIONS:
        raise InvalidRequest(
            f"expected at most {MOST_DIMENSIONS} dimensions, got {len(tensor.shape)}", field=tensor.name
        )


def from_values(tensor: InferInput, spec: TensorSpec, values: Json, budget: Expansion) -> Steps[WireTensor]:
    """Convert an input's values in small steps, filling in absent ones; the list is consumed.

    Args:
        tensor: The input as received.
        spec: The expected input.
        values: The parsed JSON: flat, or nested like the shape or like the input's rows.
        budget: Limits the values that are filled in.

    Raises:
        InvalidRequest: The values do not match the datatype or the shape, or a null has no default.
        TooLarge: Too many values would be filled in.
    """
    kind_of(tensor)
    if not isinstance(values, list):
        raise no_list(tensor, values, ())
    sizes: tuple[int, ...] | None = None
    if (yield from _is_nested(tensor, spec, values)):
        sizes, values = yield from _without_lists(tensor, spec, values, budget)
    raw: list[Any] = []
    first = 0
    for part in long_lists.parts(values):
        typed = _typed(tensor, spec, part, first, sizes)
        lengths = list(map(len, typed)) if tensor.datatype == BYTES else []
        for some in long_lists.cut(typed, lengths, _CHARACTERS_A_STEP):
            one = _packed(tensor, spec, some, first, sizes)
            raw += one if isinstance(one, list) else [one]
            first += len(some)
            yield
    shape = tuple(tensor.shape if sizes is None else (tensor.shape[0], *sizes))
    whole = raw if tensor.datatype == BYTES else b"".join(raw)
    return WireTensor(tensor.name, tensor.datatype, shape, whole)


def _may_lack_values(spec: TensorSpec) -> bool:
    filled = spec.absent is not None or spec.shorter or spec.shape == (1,)
    return filled and None not in spec.shape


def _is_nested(tensor: InferInput, spec: TensorSpec, values: list[Json]) -> Steps[bool]:
    if not _may_lack_values(spec):
        return len(tensor.shape) > 1 and bool(values) and isinstance(values[0], list)
    for start in range(0, len(values), long_lists.STEP):
        if any(isinstance(one, list) for one in values[start : start + long_lists.STEP]):
            return bool(tensor.shape and spec.shape)
        yield
    return False


def _without_lists(
    tensor: InferInput, spec: TensorSpec, rows: list[Json], budget: Expansion
) -> Steps[tuple[tuple[int, ...], list[Json]]]:
    """Return the sizes of a row, and all values as a flat list."""
    if len(rows) != tensor.shape[0]:
        raise another_length(tensor, (), tensor.shape[0], len(rows))
    sizes, whole = tuple(tensor.shape[1:]), cast("tuple[int, ...]", spec.shape)
    other = _may_lack_values(spec) and sizes != whole and not (yield from _are_lists_of(rows, sizes[:1]))
    if other:  # nested like the input's rows, not like the shape that the client sent
        sizes = whole
    filling = _Filling(spec, budget) if _may_lack_values(spec) and sizes == whole else None
    level = rows
    for index, size in enumerate(sizes):
        inner: list[Json] = []
        step, first = max(1, long_lists.STEP // max(1, math.prod(sizes[index:]))), 0
        for came in long_lists.parts(level, step):
            part = came if filling is None else filling.filled(came, size, last=index + 1 == len(sizes))
            _check_lists(tensor, part, first, (tensor.shape[0], *sizes[: index + 1]))
            inner += chain.from_iterable(part)
            first += len(part)
            yield
        level = inner
    if other and filling is not None and not filling.has_filled:
        raise not_nested_so(tensor, spec)
    return sizes, level


def _are_lists_of(rows: list[Json], size: tuple[int, ...]) -> Steps[bool]:
    for start in range(0, len(rows), long_lists.STEP):
        if not size or not all(
            isinstance(one, list) and len(one) == size[0] for one in rows[start : start + long_lists.STEP]
        ):
            return False
        yield
    return True


def _check_lists(tensor: InferInput, part: list[Json], first: int, shape: tuple[int, ...]) -> None:
    """Check that each value is a list of the last size of a shape; the first one has the number ``first``."""
    *outer, size = shape
    for number, one in enumerate(part, first):
        if not isinstance(one, list) or len(one) != size:
            place = [int(index) for index in np.unravel_index(number, outer)]
            if not isinstance(one, list):
                raise no_list(tensor, one, place, size)
            raise another_length(tensor, place, size, len(one))


class _Filling:
    """Fills in absent values, and the lists around single values.

    Attributes:
        has_filled: Whether anything was filled in.
    """

    def __init__(self, spec: TensorSpec, budget: Expansion) -> None:
        self.has_filled = False
        self._spec = spec
        self._budget = budget

    def filled(self, part: list[Json], size: int, *, last: bool) -> list[Json]:
        if all(isinstance(one, list) and len(one) == size for one in part):
            return part
        self.has_filled = True
        return [self._whole(one, size, last) for one in part]

    def _whole(self, value: Json, size: int, last: bool) -> Json:
        spec = self._spec
        if value is None:  # an absent row; its nulls are then handled like nulls that were sent
            pay(spec, size, self._budget)
            return [None] * size
        if not isinstance(value, list):
            if len(spec.shape) != 1 or not (size == 1 or spec.shorter):
                return value
            value = [value]
        if last and spec.shorter and len(value) < size:
            pay(spec, size - len(value), self._budget)
            return [*value, *[spec.absent] * (size - len(value))]
        return value


def _typed(
    tensor: InferInput, spec: TensorSpec, part: list[Json], first: int, sizes: tuple[int, ...] | None
) -> list[Any]:
    """Return values of the datatype's kind, with defaults in place of nulls."""
    kind: Any = list[kind_of(tensor)]  # type: ignore[misc]
    try:
        found: list[Any] = msgspec.convert(part, kind)
    except msgspec.ValidationError as error:
        wrong = error
    else:
        return found
    try:
        if None in part and spec.absent is None:
            at = part.index(None)
            msgspec.convert(part[:at], kind)  # an error before the null is reported first
            raise unexpected_null(spec, (first + at) // math.prod(sizes or ()))
        if None in part:
            found = msgspec.convert([spec.absent if one is None else one for one in part], kind)
            return found
    except msgspec.ValidationError as error:
        wrong = error
    (index,) = place_of(wrong)
    raise wrong_element(tensor, spec, part[index], first + index, sizes) from wrong


_KINDS: dict[str, type] = {
    **dict.fromkeys(_ARRAY_CODES, int),
    **dict.fromkeys(("FP16", "FP32", "FP64"), float),
    "BOOL": bool,
    BYTES: str,
}


def _nested_list(kind: type, depth: int) -> Any:
    nested: Any = kind
    for _ in range(depth):
        nested = list[nested]
    return nested


@lru_cache(maxsize=256)
def _list_decoder(kind: type, depth: int) -> Callable[[bytes], list[Any]]:
    found: Callable[[bytes], list[Any]] = msgspec.json.Decoder(_nested_list(kind, depth)).decode
    return found


def kind_of(tensor: InferInput) -> type:
    """Return the Python type of a datatype's values in JSON.

    Raises:
        InvalidRequest: The datatype has no JSON form.
    """
    kind = _KINDS.get(tensor.datatype)
    if kind is None:
        way_out = (
            "send it as binary data"
            if tensor.datatype == BFLOAT16
            else f"expected one of {', '.join(_KINDS)}"
        )
        raise InvalidRequest(
            f"datatype {shown(tensor.datatype)} has no JSON form; {way_out}", field=tensor.name
        )
    return kind


def _typed_at_once(tensor: InferInput, text: bytes) -> list[Any] | None:
    """Decode ``data``, flat or nested like its shape, by its datatype; return None for anything else."""
    kind = kind_of(tensor)
    is_nested = len(tensor.shape) > 1 and text[1:].lstrip()[:1] == b"["
    if has_slow_numbers(text):
        return None
    try:
        values = _list_decoder(kind, len(tensor.shape) if is_nested else 1)(text)
    except msgspec.ValidationError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"expected UTF-8 texts: {error}; send other bytes as binary data", field=tensor.name
        ) from error
    return _flattened(tensor, values) if is_nested else values


def _flattened(tensor: InferInput, values: list[Any]) -> list[Any] | None:
    level = [values]
    for size in tensor.shape:
        if any(len(one) != size for one in level):
            return None
        level = list(chain.from_iterable(level))
    return level


def _packed(
    tensor: InferInput,
    spec: TensorSpec,
    values: list[Any],
    first: int = 0,
    sizes: tuple[int, ...] | None = None,
) -> bytes | list[bytes]:
    """Return some of an input's values in raw form; strings as a list of bytes.

    Args:
        tensor: The input as received.
        spec: The expected input.
        values: The values.
        first: Number of the first of them among all.
        sizes: The sizes of a row; None for those of the shape.

    Raises:
        InvalidRequest: A value does not fit in the datatype.
    """
    datatype = tensor.datatype
    if datatype == BYTES:
        try:
            return [text.encode() for text in values]
        except UnicodeEncodeError as error:  # half a surrogate pair
            raise not_text(tensor, values, first) from error
    if datatype == "BOOL":
        return bytes(values)
    try:
        return _numbers(datatype, values)
    except OverflowError as error:
        number = next(number for number, value in enumerate(values) if not _fits(datatype, value))
        raise wrong_element(tensor, spec, values[number], first + number, sizes) from error


def _numbers(datatype: str, values: list[Any]) -> bytes:
    if datatype in _NARROW:
        return struct.pack(f"<{len(values)}{_NARROW[datatype]}", *values)
    return array.array(_ARRAY_CODES[datatype], values).tobytes()


def _fits(datatype: str, value: Any) -> bool:
    try:
        _numbers(datatype, [value])
    except OverflowError:
        return False
    return True
