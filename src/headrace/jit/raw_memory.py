"""Reads of numbers at any address, aligned or not, in compiled code."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic


def _reader(kind: Any) -> Any:
    """Return an intrinsic that reads element ``place`` of the array at an address, aligned or not."""

    @intrinsic
    def read(_context: Any, address: Any, place: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            number = context.get_value_type(kind)
            first = builder.inttoptr(arguments[0], number.as_pointer())
            found = builder.load(builder.gep(first, [arguments[1]]))
            found.align = 1
            return found

        return kind(types.int64, types.int64), generate

    return read


read_int8, read_uint8 = _reader(types.int8), _reader(types.uint8)
read_int16, read_uint16 = _reader(types.int16), _reader(types.uint16)
read_int32, read_uint32 = _reader(types.int32), _reader(types.uint32)
read_int64, read_uint64 = _reader(types.int64), _reader(types.uint64)
read_float32, read_float64 = _reader(types.float32), _reader(types.float64)
