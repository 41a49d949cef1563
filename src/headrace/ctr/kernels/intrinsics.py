"""How kernels read and write elements, ask for memory early, and keep a loop from becoming vectors.

Instructions that numba has no word for, or puts questions before.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic as _typed_intrinsic

_READ, _WRITE = 0, 1  # llvm.prefetch: what the line is wanted for
_KEEP, _DATA = 3, 1  # the same: keep in all caches, data

intrinsic: Any = _typed_intrinsic  # its own types want all arguments at every call, also the typing context


@intrinsic
def read(_typing: Any, array: Any, place: Any) -> Any:
    """An element of a C-contiguous array.

    ``array[place]`` would first ask whether the place counts from the end: LLVM then no longer sees that
    elements lie side by side, and gathers them one by one where a vector could be loaded.

    Args:
        array: Of one dimension or two.
        place: The number of the element, or the row and the column.
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
    """Make what asks for the cache line of an element."""

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
"""Ask for the cache line of an element that is about to be changed; see ``read``."""

prefetch_to_read = _prefetch(_READ)
"""The same where it is only read."""


@intrinsic
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


@intrinsic
def assume(_typing: Any, condition: Any) -> Any:
    """Tell LLVM what always holds, such as how wide an array is: it then unrolls loops over it."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        builder.assume(arguments[0])
        return context.get_dummy_value()

    return types.void(condition), generate


def address_of(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
    """In LLVM's words, where an element of a C-contiguous array lies; see ``read``."""
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
