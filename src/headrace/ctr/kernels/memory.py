"""How kernels meet memory: arrays on cache lines, rows asked for early, elements without questions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic as _typed_intrinsic

from headrace.tensors import Array

LINE_BYTES = 64
"""A cache line."""

LINE_FLOATS = LINE_BYTES // 4
"""The float32 numbers in it."""

_WRITE, _KEEP, _DATA = 1, 3, 1  # llvm.prefetch: will be written, keep in all caches, data

_intrinsic: Any = _typed_intrinsic  # its own types want all arguments at every call, also the typing context


def aligned_zeros(shape: tuple[int, ...]) -> Array:
    """Zeros, float32, from the start of a cache line on: a row of 64 bytes is then one line and not two.

    NumPy asks for huge pages itself where an array is large.
    """
    size = math.prod(shape)
    buffer = np.zeros(size + LINE_FLOATS, np.float32)
    first = (-buffer.ctypes.data % LINE_BYTES) // 4
    return buffer[first : first + size].reshape(shape)


def fixed(array: Array) -> Array:
    """A C-contiguous view that nobody writes to: kernels are then compiled for one type of array only."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


@_intrinsic
def read(_typing: Any, array: Any, place: Any) -> Any:
    """An element of a C-contiguous array.

    ``array[place]`` would first ask whether the place counts from the end: LLVM then no longer sees that
    elements lie side by side, and gathers them one by one where a vector could be loaded.

    Args:
        array: Of one dimension or two.
        place: The number of the element, or the row and the column.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_pointer(context, builder, signature.args[:2], arguments[:2]))

    return array.dtype(array, place), generate


@_intrinsic
def write(_typing: Any, array: Any, place: Any, value: Any) -> Any:
    """Set an element of a C-contiguous array; see ``read``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[2], _pointer(context, builder, signature.args[:2], arguments[:2]))
        return context.get_dummy_value()

    return types.void(array, place, array.dtype), generate


@_intrinsic
def prefetch(_typing: Any, array: Any, place: Any) -> Any:
    """Ask for the cache line of an element that is about to be changed; see ``read``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, number = ir.PointerType(ir.IntType(8)), ir.IntType(32)
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        )
        pointer = builder.bitcast(_pointer(context, builder, signature.args, arguments), byte)
        hints = [ir.Constant(number, value) for value in (_WRITE, _KEEP, _DATA)]
        builder.call(function, [pointer, *hints])
        return context.get_dummy_value()

    return types.void(array, place), generate


@_intrinsic
def one_by_one(_typing: Any) -> Any:
    """Keep the rounds of the loop around it apart: vectors are made of what one round does.

    A short loop inside is unrolled first; then LLVM would rather gather and scatter across the rounds of the
    outer one, which is slower by far than the few whole vectors of each round. It is an assembler instruction
    of no length, which no vector can have.
    """

    def generate(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        builder.asm(ir.FunctionType(ir.VoidType(), []), "", "", [], side_effect=True)
        return context.get_dummy_value()

    return types.void(), generate


def _pointer(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
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
