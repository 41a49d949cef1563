"""Hash the keys of the archive's cache with SipHash; ``stream/hashing.py`` hashes fields.

The keys are texts in Python's memory, which are neither joined nor copied. The hash is SipHash-1-3 with 128
bits (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012) under a random key per process. So
clients cannot construct colliding keys, which would be answered with each other's vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from headrace.base.tensors import Array
from headrace.jit.intrinsics import read_uint8, read_uint64
from headrace.jit.kernel_cache import cached
from headrace.jit.python_objects import BLOCK, LINE, fetch, item_of, text_of


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
    """Return SipHash-1-3 of the bytes at an address, as two halves of 64 bits."""
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
    """Hash texts in Python's memory.

    Args:
        texts: Address of a list of texts.
        longest: Maximum length of a text in bytes of UTF-8.
        secret: The two halves of the process's key, uint64.
        hashes: Receives the two halves of each hash, uint64 ``[N, 2]``.

    Returns:
        Bytes of the longest text; or -1 - i, where i is the first index without a text of 1 to ``longest``
        bytes.
    """
    items, longest_found = np.empty(BLOCK, np.int64), 0
    for start in range(0, len(hashes), BLOCK):
        count = min(BLOCK, len(hashes) - start)
        for key in range(count):
            items[key] = item_of(texts, start + key)
            fetch(items[key])
            fetch(items[key] + LINE)
        for key in range(count):
            if items[key] == 0:
                return -1 - start - key
            address, length = text_of(items[key])
            if address == 0 or length == 0 or length > longest:
                return -1 - start - key
            longest_found = max(longest_found, length)
            first, second = siphash(address, length, secret[0], secret[1])
            hashes[start + key, 0], hashes[start + key, 1] = first, second
    return longest_found
