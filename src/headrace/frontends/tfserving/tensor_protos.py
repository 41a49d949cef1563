"""Conversion from TensorProto messages to tensors as received, and from arrays to messages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from headrace.base.errors import InvalidRequest
from headrace.base.tensors import BY_DTYPE, BY_TENSORFLOW, STRING, Array
from headrace.frontends.wire import protos
from headrace.frontends.wire.protobuf_fields import as_bytes, field_number, field_of
from headrace.frontends.wire.tensors import (
    BFLOAT16,
    BYTES,
    MOST_DIMENSIONS,
    WireTensor,
    numbers,
    wire_shape,
)
from headrace.frontends.wire.texts import TEXT_BYTES, gathering
from headrace.frontends.wire.time_slicer import Steps

if TYPE_CHECKING:
    from headrace.frontends.wire.request_budget import RequestBudget
    from headrace.model.servable import TensorSpec

TensorProto = protos.message("tensorflow.TensorProto")

_BFLOAT16_NUMBER = 14
_POINTER_BYTES = 8
_FILL_BYTES = 128 * 1024

# The field for a datatype's values one by one; tensor_content holds those of any datatype but strings.
VALUE_FIELDS = {
    "FP32": "float_val", "FP64": "double_val",
    "INT32": "int_val", "UINT8": "int_val", "INT16": "int_val", "INT8": "int_val", "UINT16": "int_val",
    "BYTES": "string_val", "INT64": "int64_val", "BOOL": "bool_val",
    "FP16": "half_val", "BF16": "half_val", "UINT32": "uint32_val", "UINT64": "uint64_val",
}  # fmt: skip
_ALL_VALUE_FIELDS = frozenset(VALUE_FIELDS.values())
_NAMES = {number: datatype.oip for number, datatype in BY_TENSORFLOW.items()} | {_BFLOAT16_NUMBER: BFLOAT16}
# The dtypes of the values in the message, which holds halves as integers of the same bits.
_DTYPES = {datatype.oip: datatype.dtype for datatype in BY_TENSORFLOW.values()} | {
    "FP16": np.dtype(np.uint16),
    BFLOAT16: np.dtype(np.uint16),
}


def read_tensor(spec: TensorSpec, proto: protos.Message, budget: RequestBudget) -> Steps[WireTensor]:
    """Read one input in small steps.

    Args:
        spec: The input.
        proto: A TensorProto.
        budget: Limits the cost of the request. One value may be repeated for a whole shape, so the size of
            the message is no limit.

    Raises:
        InvalidRequest: The datatype, the shape or the values are invalid.
        TooLarge: There are too many rows, or repeated values take too much.
    """
    name = spec.name
    datatype = _NAMES.get(proto.dtype)
    if datatype is None:
        raise InvalidRequest(
            f"datatype {_datatype_name(proto.dtype)} is not supported; expected one of "
            f"{', '.join(known.tensorflow_name for known in BY_TENSORFLOW.values())}",
            field=name,
        )
    shape = _shape(name, proto.tensor_shape)
    budget.rows(shape[0] if shape else 0, name)
    used = [field.name for field, _ in proto.ListFields() if field.name in _ALL_VALUE_FIELDS]
    if proto.tensor_content:
        return WireTensor(name, datatype, shape, _content(name, datatype, proto.tensor_content, used))
    wanted = VALUE_FIELDS[datatype]
    if used and used != [wanted]:
        raise InvalidRequest(
            f"expected tensor_content or {wanted} for {_datatype_name(proto.dtype)}, got {', '.join(used)}",
            field=name,
        )
    values, count = getattr(proto, wanted), math.prod(shape)
    if len(values) > count:
        raise InvalidRequest(f"expected {count} values for its shape, got {len(values)}", field=name)
    if datatype == BYTES:
        return WireTensor(name, datatype, shape, (yield from _strings(name, values, count, budget)))
    given = numbers(name, datatype, _DTYPES[datatype], values)
    missing = count - len(given)
    if not missing:
        return WireTensor(name, datatype, shape, given.tobytes())
    if len(shape) == len(spec.shape) + 1 and not (spec.shorter or spec.accepts(shape[1:])):
        raise InvalidRequest(f"expected {spec}, got shape {list(shape)}", field=name)
    # At the width of the model's dtype, to which they are widened later.
    budget.expanded(missing * max(given.itemsize, spec.dtype.itemsize), name)
    last = given[-1] if len(given) else given.dtype.type(0)
    filled = yield from _filled(given, last, count)
    return WireTensor(name, datatype, shape, filled.view(np.uint8).data)


def _filled(given: Array, last: object, count: int) -> Steps[Array]:
    """Return an array of ``count`` values: the given ones, then ``last`` for all others."""
    filled = np.empty(count, given.dtype)
    filled[: len(given)] = given
    step = _FILL_BYTES // given.itemsize
    for start in range(len(given), count, step):
        filled[start : start + step] = last
        yield
    return filled


def _strings(name: str, values: Sequence[bytes], count: int, budget: RequestBudget) -> Steps[Array]:
    """Return strings as an array; missing ones repeat the last one, or are empty if there is none."""
    given, missing = len(values), count - len(values)
    last = values[-1] if given else b""
    if missing:
        budget.values(missing, name)
        budget.expanded(missing * (_POINTER_BYTES + len(last)), name)
    budget.hold(TEXT_BYTES * given)
    strings = yield from gathering(values)
    return (yield from _filled(strings, last, count)) if missing else strings


def _datatype_name(number: int) -> str:
    known = BY_TENSORFLOW.get(number)
    return known.tensorflow_name if known else str(number)


def _shape(name: str, proto: protos.Message) -> tuple[int, ...]:
    if proto.unknown_rank:
        raise InvalidRequest("expected a shape, got one of unknown rank; give all sizes", field=name)
    dimensions = proto.dim
    if len(dimensions) > MOST_DIMENSIONS:  # avoids an object for each; raises the error
        return wire_shape(name, range(len(dimensions)))
    return wire_shape(name, [dimension.size for dimension in dimensions])


def _content(name: str, datatype: str, content: bytes, used: list[str]) -> bytes:
    if used:
        raise InvalidRequest(
            f"given both in tensor_content and in {', '.join(used)}; use one of them", field=name
        )
    if datatype == BYTES:
        raise InvalidRequest("strings cannot be sent in tensor_content; send string_val", field=name)
    return content


def write_tensor(tensor: Array) -> protos.Message:
    """Return an output's message with its values one by one, as TensorFlow Serving writes it for clients."""
    proto, field, tensor = _written_head(tensor)
    values = tensor.ravel().tolist()
    if tensor.dtype == STRING:
        values = list(map(as_bytes, values))
    getattr(proto, field).extend(values)
    return proto


def writing_tensor(tensor: Array, budget: RequestBudget) -> Steps[list[bytes]]:
    """Serialize the message of ``write_tensor``, in pieces and small steps.

    Args:
        tensor: The output.
        budget: Charged with the bytes written.

    Raises:
        Overloaded: The byte budget of all requests is exhausted.
    """
    proto, field, tensor = _written_head(tensor)
    number = field_number(TensorProto, field)
    values = yield from field_of(number, tensor, budget)
    return [proto.SerializeToString(), *values]


def _written_head(tensor: Array) -> tuple[protos.Message, str, Array]:
    """Return an output's message without values, the field for them, and the values in that field's dtype."""
    datatype = BY_DTYPE[tensor.dtype]
    proto = TensorProto(dtype=datatype.tensorflow)
    for size in tensor.shape:
        proto.tensor_shape.dim.add(size=size)
    if tensor.dtype == np.float16:
        tensor = np.ascontiguousarray(tensor).view(np.uint16)
    return proto, VALUE_FIELDS[datatype.oip], tensor
