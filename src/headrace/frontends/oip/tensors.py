"""What REST and gRPC share: tensors as they came, turned into checked inputs, and their datatypes.

Whatever form a tensor came in, it becomes bytes of its datatype first, or a list of strings; one check serves
all forms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import NamedTuple, cast

import numpy as np

from headrace.errors import InvalidRequest, Unsupported
from headrace.servable import CheckedInputs, Signature, TensorSpec, spread_columns
from headrace.tensors import BY_DTYPE, BY_OIP, DATATYPES, STRING, Array

BYTES = "BYTES"
BFLOAT16 = "BF16"

# array.array's codes: it refuses what does not fit, in every version.
ARRAY_CODES = {
    "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q",
    "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q",
    "FP32": "f", "FP64": "d",
}  # fmt: skip

# Datatypes whose bytes are taken as they are, by NumPy's character: a look-up by dtype hashes it each time.
_EXACT = {one.dtype.char: (one.oip, one.dtype.itemsize) for one in DATATYPES if one.dtype.kind in "fiu"}

_LENGTH = Struct("<I")
_MOST_DIMENSIONS = 32
_MOST_ELEMENTS = 1 << 48  # beyond any message, and within what NumPy can address


class WireTensor(NamedTuple):
    """One input as it came.

    Attributes:
        name: The input's name.
        datatype: What the client says it is.
        shape: What the client says its shape is, rows first.
        values: The raw form: little-endian numbers, or strings each after its length; or a list of strings.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: bytes | list[bytes]


def datatype_name(spec: TensorSpec) -> str:
    """The datatype of an input or output in the protocol's words."""
    return BY_DTYPE[spec.dtype].oip


def metadata_shape(signature: Signature, spec: TensorSpec) -> list[int]:
    """The shape of an input or output with its rows, -1 for what may vary."""
    return [signature.rows or -1, *(-1 if size is None else size for size in spec.shape)]


def check(signature: Signature, tensors: Sequence[WireTensor]) -> CheckedInputs:
    """Check a request's tensors against a signature.

    Raises:
        InvalidRequest: An input is missing, unknown, twice there, or of the wrong datatype, shape or size.
    """
    by_name = {tensor.name: tensor for tensor in tensors}
    if len(by_name) != len(tensors):
        names = [tensor.name for tensor in tensors]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest(f"input {twice!r} is given twice; give it once", field="inputs")
    exact = _exact(signature, by_name)
    if exact is not None:
        return exact
    return signature.check({name: as_array(tensor) for name, tensor in by_name.items()}, exact=True)


def _exact(signature: Signature, by_name: dict[str, WireTensor]) -> CheckedInputs | None:
    """Take the tensors' bytes as columns as they are; None where that is not right, or something is wrong."""
    if len(by_name) != len(signature.inputs):
        return None
    columns, shapes, all_rows = [], [], []
    for spec in signature.inputs:
        tensor = by_name.get(spec.name)
        if tensor is None or not is_exact(spec, tensor):
            return None
        all_rows.append(tensor.shape[0])
        columns.append(cast("bytes", tensor.values))
        shapes.append(tensor.shape[1:])
    rows = all_rows[signature.counted]
    layout = signature.layout(tuple(shapes))
    spread = spread_inputs(signature, all_rows)
    if spread is None:
        return None
    return CheckedInputs(layout, spread_columns(columns, spread, layout, rows), rows)


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
    raw = b"".join(tensor.values) if isinstance(tensor.values, list) else tensor.values
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
            f"unknown datatype {tensor.datatype!r}; expected one of {', '.join(BY_OIP)} or {BFLOAT16}",
            field=tensor.name,
        )
    return known.dtype


def _element_count(tensor: WireTensor) -> int:
    shape = tensor.shape
    if len(shape) > _MOST_DIMENSIONS:
        raise InvalidRequest(
            f"expected at most {_MOST_DIMENSIONS} dimensions, got {len(shape)}", field=tensor.name
        )
    if any(size < 0 for size in shape):
        raise InvalidRequest(
            f"expected sizes of 0 or more in the shape, got {list(shape)}; -1 stands in metadata only",
            field=tensor.name,
        )
    if math.prod(size or 1 for size in shape) > _MOST_ELEMENTS:
        raise InvalidRequest(f"shape {list(shape)} is too large for any message", field=tensor.name)
    return math.prod(shape)


def _string_array(tensor: WireTensor, count: int) -> Array:
    values = tensor.values
    strings = values if isinstance(values, list) else split_strings(values, tensor.name)
    if len(strings) != count:
        raise InvalidRequest(
            f"expected {count} strings for shape {list(tensor.shape)}, got {len(strings)}; "
            "make the shape and the data agree",
            field=tensor.name,
        )
    array: Array = np.empty(count, STRING)
    array[:] = strings
    return array.reshape(tensor.shape)


def split_strings(raw: bytes, field: str) -> list[bytes]:
    """Take strings out of their raw form, in which each stands after its length, four bytes little-endian.

    Args:
        raw: All of them.
        field: Whose they are, for the error.

    Raises:
        InvalidRequest: A string is cut off.
    """
    strings: list[bytes] = []
    position, end = 0, len(raw)
    while position < end:
        start = position + _LENGTH.size
        position = start + _LENGTH.unpack_from(raw, position)[0] if start <= end else start
        if position > end:
            raise InvalidRequest(
                f"string {len(strings)} is cut off: it wants {position - end} bytes more; "
                "write each string after its length, four bytes little-endian",
                field=field,
            )
        strings.append(raw[start:position])
    return strings


def join_strings(strings: Iterable[bytes]) -> bytes:
    """Write strings in their raw form."""
    pack = _LENGTH.pack
    return b"".join([part for string in strings for part in (pack(len(string)), string)])


def version_number(text: str) -> int | None:
    """The version that a request names; None for the default one.

    Raises:
        InvalidRequest: It is not a number.
    """
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(1 << 63))):
        raise InvalidRequest(
            f"expected a number, got {text!r:.40}; leave it empty for the default", field="version"
        )
    return int(text)


def refuse_parameters(parameters: Iterable[str], field: str) -> None:
    """Refuse what would change the meaning of a tensor; other parameters are ignored, as the protocol allows.

    Args:
        parameters: The parameters' names.
        field: The tensor they came with.

    Raises:
        Unsupported: One asks for shared memory or for classification.
    """
    for name in parameters:
        if name.startswith("shared_memory_"):
            raise Unsupported(
                f"{field}: shared memory is not supported; send and take tensors in the messages"
            )
        if name == "classification":
            raise Unsupported(
                f"{field}: classification is not supported; ask for the output and rank it yourself"
            )
