"""Intrinsics of kernels: element access, prefetching, and a barrier to vectorisation.

Numba has no equivalent for these instructions, or adds checks before them.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic as _typed_intrinsic

intrinsic: Any = _typed_intrinsic  # numba's own types require the typing context at every call


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


_READ, _WRITE = 0, 1  # llvm.prefetch: the intended access
_KEEP, _DATA = 3, 1  # llvm.prefetch: keep in all caches; data cache


@intrinsic
def read(_typing: Any, array: Any, place: Any) -> Any:
    """Return an element of a C-contiguous array.

    ``array[place]`` first checks for a negative index. LLVM then no longer sees that elements are adjacent,
    and gathers them one by one instead of loading a vector.

    Args:
        array: An array of one or two dimensions.
        place: Index of the element, or its row and column.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(address_of(context, builder, signature.args[:2], arguments[:2]))

    return array.dtype(array, place), generate


@intrinsic
def write(_typing: Any, array: Any, place: Any, value: Any) -> Any:
    """Set an element of a C-contiguous array; see ``read``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[2], address_of(context, builder, signature.args[:2], arguments[:2]))
        return context.get_dummy_value()

    return types.void(array, place, array.dtype), generate


def _prefetch(purpose: int) -> Any:
    """Create an intrinsic that prefetches the cache line of an element."""

    @intrinsic
    def ask(_typing: Any, array: Any, place: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            byte, number = ir.PointerType(ir.IntType(8)), ir.IntType(32)
            function = builder.module.declare_intrinsic(
                "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, number, number, number])
            )
            pointer = builder.bitcast(address_of(context, builder, signature.args, arguments), byte)
            hints = [ir.Constant(number, value) for value in (purpose, _KEEP, _DATA)]
            builder.call(function, [pointer, *hints])
            return context.get_dummy_value()

        return types.void(array, place), generate

    return ask


prefetch = _prefetch(_WRITE)
"""Prefetch the cache line of an element that is about to be written; see ``read``."""

prefetch_to_read = _prefetch(_READ)
"""Prefetch the cache line of an element that is only read."""


@intrinsic
def one_by_one(_typing: Any) -> Any:
    """Prevent vectorisation across the iterations of the enclosing loop.

    LLVM unrolls a short inner loop first. It would then gather and scatter across iterations of the outer
    loop, which is far slower than the few whole vectors of each iteration. This emits an empty assembler
    instruction, which cannot be vectorised.
    """

    def generate(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        builder.asm(ir.FunctionType(ir.VoidType(), []), "", "", [], side_effect=True)
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def assume(_typing: Any, condition: Any) -> Any:
    """Tell LLVM that a condition always holds, such as an array's width, so that it unrolls loops over it."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        builder.assume(arguments[0])
        return context.get_dummy_value()

    return types.void(condition), generate


def address_of(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
    """Return the LLVM pointer to an element of a C-contiguous array; see ``read``."""
    array, parts = context.make_array(kinds[0])(context, builder, arguments[0]), kinds[1]
    if isinstance(kinds[1], types.Integer):
        place = context.cast(builder, arguments[1], parts, types.intp)
    else:
        row, column = (
            context.cast(builder, builder.extract_value(arguments[1], number), kind, types.intp)
            for number, kind in enumerate(parts)
        )
        width = builder.extract_value(array.shape, 1)
        place = builder.add(builder.mul(row, width, flags=["nsw"]), column, flags=["nsw"])
    return builder.gep(array.data, [place], inbounds=True)
