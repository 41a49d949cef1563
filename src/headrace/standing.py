"""Standing arguments: what a kernel is given at every call, laid out once as compiled code wants it.

Numba takes a tuple of arrays apart at each call, element by element, through Python's own interface: for a
model's forty, that takes longer than a row's prediction. Here only an address is passed.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import numba
import numpy as np
from numba import types
from numba.core.datamodel import models
from numba.core.pythonapi import NativeValue
from numba.core.registry import cpu_target
from numba.extending import intrinsic as _typed_intrinsic
from numba.extending import register_model
from numba.extending import unbox as _typed_unbox

_Value = TypeVar("_Value")
_WORD_BYTES = 8

_intrinsic: Any = _typed_intrinsic  # its own types want all arguments at every call, also the typing context
_unbox: Any = _typed_unbox
_native: Any = NativeValue
_typeof: Any = numba.typeof


class StandingType(types.Type):
    """What compilers know of a standing argument."""

    def __init__(self, of: Any) -> None:
        """Name it.

        Args:
            of: The type of the tuple.
        """
        self.of = of
        super().__init__(name=f"standing({of})")


class Standing(Generic[_Value]):
    """A tuple of arrays, integers and further tuples, to be passed to kernels, which ask for it by ``given``.

    Attributes:
        value: The tuple.
        address: Where it is laid out.
    """

    def __init__(self, value: _Value) -> None:
        """Lay it out.

        Args:
            value: The tuple; its arrays stay where they are.
        """
        kind = _typeof(value)
        self._words = np.array(_words(kind, value), np.uint64)
        room = cpu_target.target_context.get_abi_sizeof(cpu_target.target_context.get_value_type(kind))
        if room != self._words.nbytes:
            raise TypeError(f"{kind} is not laid out as this takes it to be: {room} bytes")
        self.value = value
        self.address = self._words.ctypes.data
        self._numba_type_ = StandingType(kind)


def _words(kind: Any, value: Any) -> list[int]:
    """A value as compiled code has it: each part of it takes whole words."""
    if isinstance(kind, types.Array):  # nobody counts references to it, nor asks whose it is
        return [0, 0, value.size, value.itemsize, value.ctypes.data, *value.shape, *value.strides]
    if isinstance(kind, types.BaseTuple):
        kinds: Any = kind  # its own types do not know that it has them
        return [word for part, one in zip(kinds, value, strict=True) for word in _words(part, one)]
    if isinstance(kind, types.NoneType):
        return [0]
    if kind == types.int64:
        return [value % 2**64]
    raise TypeError(f"cannot be passed by its address: {kind}")


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


@_intrinsic
def given(_typing: Any, standing: Any) -> Any:
    """In a kernel: the tuple that is laid out."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.load(arguments[0])

    return standing.of(standing), generate
