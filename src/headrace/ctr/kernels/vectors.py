"""Vectors as values in kernels: embeddings are loaded, scaled and added in registers.

LLVM vectorises a loop over an embedding only where it can prove that the loop's writes do not alias its
reads. It also cannot keep sums in a scratch array in registers from one field to the next.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.extending import register_model

from headrace.jit.intrinsics import address_of, intrinsic

_FLOAT = ir.FloatType()

Vector: TypeAlias = Any
"""A vector in compiled code."""


class VectorType(types.Type):
    """Numba type of a vector of float32 numbers."""

    def __init__(self, lanes: int) -> None:
        """Create the type of vectors of one length.

        Args:
            lanes: Number of elements.
        """
        self.lanes = lanes
        super().__init__(name=f"vector({lanes})")


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: VectorType) -> None:
        vector = ir.VectorType(_FLOAT, kind.lanes)
        super().__init__(manager, kind, vector)  # type: ignore[no-untyped-call]  # numba has no types


def _of(size: Any) -> VectorType:
    """Return the type of a vector as long as a tuple; one element for the empty tuple of lr."""
    return VectorType(max(1, len(size)))


@intrinsic
def zeros(_typing: Any, size: Any) -> Any:
    """Return a vector of zeros.

    Args:
        size: A tuple as long as the vector.
    """

    def generate(context: Any, _builder: Any, signature: Any, _arguments: Any) -> Any:
        return ir.Constant(context.get_value_type(signature.return_type), None)

    return _of(size)(size), generate


@intrinsic
def is_float(_typing: Any, array: Any) -> Any:
    """Return whether an array is float32, as a compile-time constant; a float32 table needs no scales."""

    def generate(context: Any, _builder: Any, signature: Any, _arguments: Any) -> Any:
        return ir.Constant(context.get_value_type(types.boolean), signature.args[0].dtype == types.float32)

    return types.boolean(array), generate


@intrinsic
def load(_typing: Any, array: Any, place: Any, size: Any) -> Any:
    """Load adjacent elements of a C-contiguous array, as float32.

    Args:
        array: A one-dimensional array of float32 or small integers.
        place: Index of the first element.
        size: A tuple as long as the vector.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        floats = context.get_value_type(signature.return_type)
        kept = ir.VectorType(context.get_data_type(array.dtype), floats.count)
        first = address_of(context, builder, signature.args[:2], arguments[:2])
        found = builder.load(builder.bitcast(first, kept.as_pointer()), align=array.dtype.bitwidth // 8)
        return found if kept == floats else builder.sitofp(found, floats)

    return _of(size)(array, place, size), generate


@intrinsic
def store(_typing: Any, array: Any, place: Any, vector: Any) -> Any:
    """Store a vector in a C-contiguous float32 array, starting at index ``place``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        first = address_of(context, builder, signature.args[:2], arguments[:2])
        to = builder.bitcast(first, arguments[2].type.as_pointer())
        builder.store(arguments[2], to, align=4)
        return context.get_dummy_value()

    return types.void(array, place, vector), generate


@intrinsic
def plus(_typing: Any, left: Any, right: Any) -> Any:
    """Return the sum of two vectors."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fadd(*arguments)

    return left(left, right), generate


@intrinsic
def minus(_typing: Any, left: Any, right: Any) -> Any:
    """Return the difference of two vectors."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fsub(*arguments)

    return left(left, right), generate


@intrinsic
def times(_typing: Any, vector: Any, factor: Any) -> Any:
    """Multiply a vector by a number, or elementwise by another vector."""

    def generate(_context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        given, by = arguments
        if not isinstance(signature.args[1], VectorType):
            by = _spread(builder, by, given.type)
        return builder.fmul(given, by, flags=("contract",))

    kind = factor if isinstance(factor, VectorType) else types.float32
    return vector(vector, kind), generate


@intrinsic
def times_plus(_typing: Any, left: Any, right: Any, added: Any) -> Any:
    """Return ``left * right + added`` elementwise, fused where the machine supports it."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        kind = arguments[0].type
        function = _function(builder, f"llvm.fmuladd.v{kind.count}f32", ir.FunctionType(kind, [kind] * 3))
        return builder.call(function, arguments)

    return left(left, right, added), generate


@intrinsic
def total(_typing: Any, vector: Any) -> Any:
    """Return the sum of a vector's elements, in an order that LLVM chooses."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        kind = arguments[0].type
        adds = ir.FunctionType(_FLOAT, [_FLOAT, kind])
        function = _function(builder, f"llvm.vector.reduce.fadd.v{kind.count}f32", adds)
        return builder.call(function, [ir.Constant(_FLOAT, 0.0), arguments[0]], fastmath=("reassoc",))

    return types.float32(vector), generate


def _function(builder: Any, name: str, kind: Any) -> Any:
    insert: Any = cgutils.get_or_insert_function
    return insert(builder.module, kind, name)


def _spread(builder: Any, value: Any, vector: Any) -> Any:
    """Return a vector filled with one value."""
    lane = ir.IntType(32)
    unknown = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(unknown, value, ir.Constant(lane, 0))
    return builder.shuffle_vector(
        one, unknown, ir.Constant(ir.VectorType(lane, vector.count), [0] * vector.count)
    )
