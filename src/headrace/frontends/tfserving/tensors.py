"""TensorProto: from a message to a tensor as it came, and from an array to a message."""

from __future__ import annotations

import array
import math

import numpy as np

from headrace.errors import InvalidRequest
from headrace.frontends import protos
from headrace.frontends.oip.tensors import ARRAY_CODES, BFLOAT16, BYTES, WireTensor
from headrace.tensors import BY_DTYPE, BY_TENSORFLOW, STRING, Array

TensorProto = protos.message("tensorflow.TensorProto")

_BFLOAT16_NUMBER = 14
_MOST_DIMENSIONS = 32

# The field that holds the values of a datatype one by one; tensor_content holds those of any.
VALUE_FIELDS = {
    "FP32": "float_val", "FP64": "double_val",
    "INT32": "int_val", "UINT8": "int_val", "INT16": "int_val", "INT8": "int_val", "UINT16": "int_val",
    "BYTES": "string_val", "INT64": "int64_val", "BOOL": "bool_val",
    "FP16": "half_val", "BF16": "half_val", "UINT32": "uint32_val", "UINT64": "uint64_val",
}  # fmt: skip
_ALL_VALUE_FIELDS = frozenset(VALUE_FIELDS.values())
_NAMES = {number: datatype.oip for number, datatype in BY_TENSORFLOW.items()} | {_BFLOAT16_NUMBER: BFLOAT16}
_ITEM_BYTES = {datatype.oip: datatype.dtype.itemsize for datatype in BY_TENSORFLOW.values()} | {BFLOAT16: 2}
_CODES = ARRAY_CODES | {"FP16": "H", BFLOAT16: "H", "BOOL": "B"}


def read_tensor(name: str, proto: protos.Message, max_bytes: int) -> WireTensor:
    """Read one input.

    Args:
        name: The input's name.
        proto: A TensorProto.
        max_bytes: What its values may take once they are spread over its shape: a single value may stand for
            all of them, so the message's own size bounds nothing.

    Raises:
        InvalidRequest: The datatype, the shape or the values are wrong.
    """
    datatype = _NAMES.get(proto.dtype)
    if datatype is None:
        raise InvalidRequest(
            f"datatype {_datatype_name(proto.dtype)} is not supported; expected one of "
            f"{', '.join(known.tensorflow_name for known in BY_TENSORFLOW.values())}",
            field=name,
        )
    shape = _shape(name, proto.tensor_shape)
    used = [field.name for field, _ in proto.ListFields() if field.name in _ALL_VALUE_FIELDS]
    if proto.tensor_content:
        return WireTensor(name, datatype, shape, _content(name, datatype, proto.tensor_content, used))
    wanted = VALUE_FIELDS[datatype]
    if used and used != [wanted]:
        raise InvalidRequest(
            f"expected tensor_content or {wanted} for {_datatype_name(proto.dtype)}, got {', '.join(used)}",
            field=name,
        )
    count = math.prod(shape)
    if count * _ITEM_BYTES[datatype] > max_bytes:
        raise InvalidRequest(
            f"shape {list(shape)} takes more than {max_bytes} bytes; send fewer rows", field=name
        )
    return WireTensor(name, datatype, shape, _values(name, datatype, getattr(proto, wanted), count))


def _datatype_name(number: int) -> str:
    known = BY_TENSORFLOW.get(number)
    return known.tensorflow_name if known else str(number)


def _shape(name: str, proto: protos.Message) -> tuple[int, ...]:
    if proto.unknown_rank:
        raise InvalidRequest("expected a shape, got one of unknown rank; say all sizes", field=name)
    if len(proto.dim) > _MOST_DIMENSIONS:  # also keeps their product cheap
        raise InvalidRequest(
            f"expected at most {_MOST_DIMENSIONS} dimensions, got {len(proto.dim)}", field=name
        )
    shape = tuple([dimension.size for dimension in proto.dim])
    if shape and min(shape) < 0:
        raise InvalidRequest(
            f"expected sizes of 0 or more in the shape, got {list(shape)}; -1 stands in metadata only",
            field=name,
        )
    return shape


def _content(name: str, datatype: str, content: bytes, used: list[str]) -> bytes:
    if used:
        raise InvalidRequest(f"came in tensor_content and in {', '.join(used)}; use one of them", field=name)
    if datatype == BYTES:
        raise InvalidRequest("strings cannot come in tensor_content; send string_val", field=name)
    return content


def _values(name: str, datatype: str, values: protos.Message, count: int) -> bytes | list[bytes]:
    """The values one by one; the last one stands for those that are missing, and zero for none at all."""
    given = len(values)
    if given > count:
        raise InvalidRequest(f"expected {count} values for its shape, got {given}", field=name)
    if datatype == BYTES:
        strings = list(values)
        return strings + (strings[-1:] or [b""]) * (count - given)
    try:
        numbers = array.array(_CODES[datatype], values)
    except OverflowError as error:
        raise InvalidRequest(f"a value does not fit in {datatype}", field=name) from error
    missing = (numbers[-1:] or array.array(numbers.typecode, [0])) * (count - given)
    return (numbers + missing).tobytes()


def write_tensor(tensor: Array) -> protos.Message:
    """Write an output, its values one by one, as TensorFlow Serving does: clients read those fields."""
    datatype = BY_DTYPE[tensor.dtype]
    proto = TensorProto(dtype=datatype.tensorflow)
    for size in tensor.shape:
        proto.tensor_shape.dim.add(size=size)
    if tensor.dtype == np.float16:
        tensor = np.ascontiguousarray(tensor).view(np.uint16)
    values = tensor.ravel().tolist()
    if tensor.dtype == STRING:
        values = [value if isinstance(value, bytes) else str(value).encode() for value in values]
    getattr(proto, VALUE_FIELDS[datatype.oip]).extend(values)
    return proto
