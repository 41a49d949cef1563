"""How kernels meet memory: arrays begin on a cache line, rows are asked for before they are used."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj

from headrace.tensors import Array

LINE_BYTES = 64
"""A cache line."""

LINE_FLOATS = LINE_BYTES // 4
"""The float32 numbers in it."""

_WRITE, _KEEP, _DATA = 1, 3, 1  # llvm.prefetch: will be written, keep in all caches, data


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


if TYPE_CHECKING:

    def prefetch(array: Array, row: int, column: int) -> None:
        """Ask for the cache line of ``array[row, column]``, which is about to be changed; C-contiguous."""

else:

    @intrinsic
    def prefetch(_context, array, row, column):
        """Ask for the cache line of ``array[row, column]``, which is about to be changed; C-contiguous."""

        def generate(context, builder, signature, arguments):
            taken = arrayobj.make_array(signature.args[0])(context, builder, arguments[0])
            width = cgutils.unpack_tuple(builder, taken.shape, 2)[1]
            row_number, column_number = (
                context.cast(builder, value, kind, types.intp)
                for value, kind in zip(arguments[1:], signature.args[1:], strict=True)
            )
            place = builder.add(builder.mul(row_number, width), column_number)
            byte = ir.PointerType(ir.IntType(8))
            number = ir.IntType(32)
            function = builder.module.declare_intrinsic(
                "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, number, number, number])
            )
            hints = [ir.Constant(number, value) for value in (_WRITE, _KEEP, _DATA)]
            builder.call(function, [builder.bitcast(builder.gep(taken.data, [place]), byte), *hints])
            return context.get_dummy_value()

        return types.void(array, row, column), generate
