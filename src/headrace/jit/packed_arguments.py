"""Standing arguments: kernel arguments that never change, converted once to the native layout.

Numba unpacks a tuple of arrays at each call, element by element, through Python's C API. For a model, this
takes longer than predicting a row. Here only an address is passed.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import numba
import numpy as np
from numba import types
from numba.core.datamodel import models
from numba.core.pythonapi import NativeValue
from numba.core.registry import cpu_target
from numba.extending import register_model
from numba.extending import unbox as _typed_unbox

from headrace.jit.intrinsics import intrinsic

_Value = TypeVar("_Value")

_unbox: Any = _typed_unbox
_native: Any = NativeValue
_typeof: Any = numba.typeof


class StandingType(types.Type):
    """The numba type of a standing argument."""

    def __init__(self, of: Any) -> None:
        """Create the type.

        Args:
            of: The type of the tuple.
        """
        self.of = of
        super().__init__(name=f"standing({of})")


class Standing(Generic[_Value]):
    """A tuple of arrays, integers and further tuples, passed to kernels, which read it with ``given``.

    Attributes:
        value: The tuple.
        address: Address of its native layout.
    """

    def __init__(self, value: _Value) -> None:
        """Lay the tuple out.

        Args:
            value: The tuple; its arrays are not copied.
        """
        kind = _typeof(value)
        self._words = np.array(_words(kind, value), np.uint64)
        room = cpu_target.target_context.get_abi_sizeof(cpu_target.target_context.get_value_type(kind))
        if room != self._words.nbytes:
            raise TypeError(f"{kind}: expected a layout of {self._words.nbytes} bytes, got {room}")
        self.value = value
        self.address = self._words.ctypes.data
        self._numba_type_ = StandingType(kind)


def _words(kind: Any, value: Any) -> list[int]:
    """Return the native layout of a value in 64-bit words; each part takes whole words."""
    if isinstance(kind, types.Array):  # meminfo and parent are null: no reference counting, no owner
        return [0, 0, value.size, value.itemsize, value.ctypes.data, *value.shape, *value.strides]
    if isinstance(kind, types.BaseTuple):
        kinds: Any = kind  # numba's annotations do not make it iterable
        return [word for part, one in zip(kinds, value, strict=True) for word in _words(part, one)]
    if isinstance(kind, types.NoneType):
        return [0]
    if kind == types.int64:
        return [value % 2**64]
    raise TypeError(f"expected arrays, int64, None or tuples of them, got {kind}")


@register_model(StandingType)
class _StandingModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: StandingType) -> None:
        address = manager.lookup(kind.of).get_value_type().as_pointer()
        super().__init__(manager, kind, address)  # type: ignore[no-untyped-call]  # numba has no types


@_unbox(StandingType)
def _unboxed(kind: StandingType, standing: Any, compiling: Any) -> Any:
    number = compiling.pyapi.object_getattr_string(standing, "address")
    address = compiling.pyapi.long_as_longlong(number)
    compiling.pyapi.decref(number)
    return _native(compiling.builder.inttoptr(address, compiling.context.get_value_type(kind)))


@intrinsic
def given(_typing: Any, standing: Any) -> Any:
    """Return the standing tuple, inside a kernel."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.load(arguments[0])

    return standing.of(standing), generate
