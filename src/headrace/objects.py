"""Python's texts and bytes where they lie, for kernels: nothing is joined or copied to get at them.

All of it is for code that keeps Python's lock.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic as _typed_intrinsic

from headrace.compiled import cached

_intrinsic: Any = _typed_intrinsic  # its own types want all arguments at every call, also the typing context
_cgutils: Any = cgutils

BLOCK = 64
"""How many keys are fetched ahead together."""

LINE = 64
"""How many bytes of memory come at once."""


@_intrinsic
def fetch(_context: Any, address: Any) -> Any:
    """Ask for the line of memory at an address, and do not wait for it."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer, number = _cgutils.voidptr_t, ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        asked = _cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        constants = [number(value) for value in (0, 3, 1)]  # to read, to keep, data
        builder.call(asked, [builder.inttoptr(arguments[0], pointer), *constants])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@_intrinsic
def item_of(_context: Any, texts: Any, place: Any) -> Any:
    """The address of an item of a Python list, by the list's own; 0 if the list has become shorter."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        api = context.get_python_api(builder)
        item = api.list_getitem(builder.inttoptr(arguments[0], api.pyobj), arguments[1])
        with builder.if_then(_cgutils.is_null(builder, item)):
            api.err_clear()
        return builder.ptrtoint(item, ir.IntType(64))

    return types.int64(types.int64, types.int64), generate


@_intrinsic
def text_of(_context: Any, text: Any) -> Any:
    """Where a Python text's UTF-8 lies, and how long it is; 0 for what is no Unicode text."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        api = context.get_python_api(builder)
        number = ir.IntType(64)
        is_text, buffer, size = api.string_as_string_and_size(builder.inttoptr(arguments[0], api.pyobj))
        with builder.if_then(builder.not_(is_text)):
            api.err_clear()
        found = builder.select(is_text, builder.ptrtoint(buffer, number), number(0))
        return context.make_tuple(builder, signature.return_type, [found, size])

    pair: Any = types.UniTuple
    return pair(types.int64, 2)(types.int64), generate


@_intrinsic
def bytes_of(_context: Any, item: Any) -> Any:
    """Where the bytes of a ``bytes`` object lie, and how many they are; 0 for what is none."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        api, number = context.get_python_api(builder), ir.IntType(64)
        start = _cgutils.alloca_once(builder, api.cstring)
        size = _cgutils.alloca_once(builder, api.py_ssize_t)
        is_bytes = api.bytes_as_string_and_size(builder.inttoptr(arguments[0], api.pyobj), start, size)
        with builder.if_then(builder.not_(is_bytes)):
            api.err_clear()
        found = builder.select(is_bytes, builder.ptrtoint(builder.load(start), number), number(0))
        return context.make_tuple(builder, signature.return_type, [found, builder.load(size)])

    pair: Any = types.UniTuple
    return pair(types.int64, 2)(types.int64), generate


@_intrinsic
def _set_bytes(_context: Any, items: Any, place: Any, start: Any, size: Any) -> Any:
    """Put a ``bytes`` object of what lies at an address into a list; whether that was possible."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        api = context.get_python_api(builder)
        made = api.bytes_from_string_and_size(builder.inttoptr(arguments[2], api.cstring), arguments[3])
        is_made = _cgutils.is_not_null(builder, made)
        with builder.if_else(is_made) as (there, none):
            with there:
                api.list_setitem(builder.inttoptr(arguments[0], api.pyobj), arguments[1], made)
            with none:
                api.err_clear()
        return is_made

    return types.boolean(types.int64, types.int64, types.int64, types.int64), generate


@cached()
def encode(texts: int, encoded: int, count: int) -> bool:
    """Make UTF-8 of texts.

    Args:
        texts: The address of a list of them.
        encoded: The address of a list of as many items, which gets them.
        count: How many there are.

    Returns:
        Whether all of them could be made.
    """
    for place in range(count):
        item = item_of(texts, place)
        if item == 0:
            return False
        start, size = text_of(item)
        if start == 0 or not _set_bytes(encoded, place, start, size):
            return False
    return True
