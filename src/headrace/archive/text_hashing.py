"""Hashing keys where Python has them: no text is joined or copied for it.

The hash is SipHash-1-3 with 128 bits (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012)
under a key that each process draws: keys that collide, and would be answered with another's vector, cannot be
found from outside.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic as _typed_intrinsic

from headrace.compiled import cached
from headrace.stream.hashing import read_uint8, read_uint64
from headrace.tensors import Array

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
def _item(_context: Any, texts: Any, place: Any) -> Any:
    """The address of an item of a Python list, by the list's own; 0 if the list has become shorter."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        api = context.get_python_api(builder)
        item = api.list_getitem(builder.inttoptr(arguments[0], api.pyobj), arguments[1])
        with builder.if_then(_cgutils.is_null(builder, item)):
            api.err_clear()
        return builder.ptrtoint(item, ir.IntType(64))

    return types.int64(types.int64, types.int64), generate


@_intrinsic
def _text(_context: Any, text: Any) -> Any:
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


@njit(inline="always")
def _turned(value: np.uint64, by: int) -> np.uint64:
    return (value << np.uint64(by)) | (value >> np.uint64(64 - by))


@njit(inline="always")
def _round(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
    v0 += v1
    v1 = _turned(v1, 13) ^ v0
    v0 = _turned(v0, 32)
    v2 += v3
    v3 = _turned(v3, 16) ^ v2
    v0 += v3
    v3 = _turned(v3, 21) ^ v0
    v2 += v1
    v1 = _turned(v1, 17) ^ v2
    v2 = _turned(v2, 32)
    return v0, v1, v2, v3


@njit
def siphash(address: int, length: int, key0: np.uint64, key1: np.uint64) -> Any:
    """SipHash-1-3 of bytes at an address, as two halves of 64 bits."""
    v0 = key0 ^ np.uint64(0x736F6D6570736575)
    v1 = key1 ^ np.uint64(0x646F72616E646F6D) ^ np.uint64(0xEE)
    v2 = key0 ^ np.uint64(0x6C7967656E657261)
    v3 = key1 ^ np.uint64(0x7465646279746573)
    place = 0
    while place + 8 <= length:
        word = read_uint64(address + place, 0)
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
        place += 8
    word = np.uint64(length) << np.uint64(56)
    for rest in range(length - place):
        word |= np.uint64(read_uint8(address + place, rest)) << np.uint64(8 * rest)
    v3 ^= word
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= np.uint64(0xEE)
    for _ in range(3):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= np.uint64(0xDD)
    for _ in range(3):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return first, v0 ^ v1 ^ v2 ^ v3


@cached()
def hash_texts(texts: int, longest: int, secret: Array, hashes: Array) -> int:
    """Hash texts where Python has them.

    Args:
        texts: The address of a list of them.
        longest: How many bytes of UTF-8 one may have.
        secret: The two halves of the process's key, uint64.
        hashes: Gets the two halves of each hash, uint64 ``[N, 2]``.

    Returns:
        How many bytes the longest has; or -1 and less the first place of what is no text of 1 to ``longest``.
    """
    items, longest_found = np.empty(BLOCK, np.int64), 0
    for start in range(0, len(hashes), BLOCK):
        count = min(BLOCK, len(hashes) - start)
        for key in range(count):
            items[key] = _item(texts, start + key)
            fetch(items[key])
            fetch(items[key] + LINE)
        for key in range(count):
            if items[key] == 0:
                return -1 - start - key
            address, length = _text(items[key])
            if address == 0 or length == 0 or length > longest:
                return -1 - start - key
            longest_found = max(longest_found, length)
            first, second = siphash(address, length, secret[0], secret[1])
            hashes[start + key, 0], hashes[start + key, 1] = first, second
    return longest_found
