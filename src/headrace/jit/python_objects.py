"""Access to Python strings and bytes from kernels, in place and without copies.

Callers must hold the GIL.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from headrace.jit.intrinsics import intrinsic
from headrace.jit.kernel_cache import cached

_cgutils: Any = cgutils

BLOCK = 64
"""Number of keys that are prefetched together."""

LINE = 64
"""Size of a cache line in bytes."""


@intrinsic
def fetch(_context: Any, address: Any) -> Any:
    """Prefetch the cache line at an address, without waiting for it."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer, number = _cgutils.voidptr_t, ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        asked = _cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        constants = [number(value) for value in (0, 3, 1)]  # read, keep in cache, data
        builder.call(asked, [builder.inttoptr(arguments[0], pointer), *constants])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def item_of(_context: Any, texts: Any, place: Any) -> Any:
    """Return the address of an item of the Python list at ``texts``; 0 if the index is out of range."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        api = context.get_python_api(builder)
        item = api.list_getitem(builder.inttoptr(arguments[0], api.pyobj), arguments[1])
        with builder.if_then(_cgutils.is_null(builder, item)):
            api.err_clear()
        return builder.ptrtoint(item, ir.IntType(64))

    return types.int64(types.int64, types.int64), generate


@intrinsic
def text_of(_context: Any, text: Any) -> Any:
    """Return the address and size of a string's UTF-8; address 0 for other objects, or lone surrogates."""

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


@intrinsic
def bytes_of(_context: Any, item: Any) -> Any:
    """Return the address and size of the contents of a ``bytes`` object; address 0 for other objects."""

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


@intrinsic
def _set_bytes(_context: Any, items: Any, place: Any, start: Any, size: Any) -> Any:
    """Store a new ``bytes`` object, copied from an address, in a list; return whether this succeeded."""

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
    """Encode strings as UTF-8.

    Args:
        texts: Address of a list of strings.
        encoded: Address of a list of the same length, which receives the ``bytes`` objects.
        count: Number of strings.

    Returns:
        Whether all items were strings and could be encoded.
    """
    for place in range(count):
        item = item_of(texts, place)
        if item == 0:
            return False
        start, size = text_of(item)
        if start == 0 or not _set_bytes(encoded, place, start, size):
            return False
    return True
