"""The cache in front of a store: vectors by key, in a bounded part of this process's memory."""

from __future__ import annotations

import functools
import mmap
import secrets
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from headrace.archive.lookup import cache_kernels as kernels
from headrace.archive.lookup.cache_kernels import hash_texts
from headrace.archive.model.keys import wrong_key
from headrace.archive.model.records import HEAD, Form
from headrace.base.tensors import Array
from headrace.jit.packed_arguments import Standing

_MARKS_SHARE = 16
_MARK_BYTES = 24
_TAGS_A_ROW = 1.5  # leaves about 1 set in 5 full when all rows are in use


class Found(NamedTuple):
    """Result of looking up keys in a cache.

    Attributes:
        vectors: ``[N, dimension]``, in the answers' dtype; the OOV vector for misses.
        written: Write times in milliseconds of Unix time, uint64 ``[N]``; 0 for misses.
        asked: Indices of the keys to ask the store for, int32: those without a vector, unless they are marked
            as absent and as queued.
    """

    vectors: Array
    written: Array
    asked: Array


class Cache:
    """Vectors of one space version.

    Its kernels hold the GIL, so each call is atomic for other threads; it takes a few microseconds.
    """

    def __init__(self, form: Form, size_bytes: int) -> None:
        """Create an empty cache; memory is taken as it fills.

        Args:
            form: Layout of the records.
            size_bytes: Maximum size.
        """
        _compiled()
        self._form = form
        row_words = (kernels.ROW_HEAD_BYTES + form.record_bytes + 7) // 8
        marks = max(1, size_bytes // _MARKS_SHARE // (_MARK_BYTES * kernels.WAYS))
        row_bytes = row_words * 8 + _TAGS_A_ROW * 8
        rows = max(1, int((size_bytes - size_bytes // _MARKS_SHARE) / row_bytes))
        sets = -int(-rows * _TAGS_A_ROW // kernels.WAYS)
        self._secret = np.array([secrets.randbits(64) for _ in range(2)], np.uint64)
        self._table = _zeros(sets, kernels.WAYS), _zeros(rows, row_words)
        self._state = np.zeros(2, np.int64)
        self._marks = _zeros(marks, kernels.WAYS), np.zeros((marks, kernels.WAYS, 2), np.int64)
        self._is_scaled = form.dtype == "int8"
        self.set_oov(np.zeros(form.dimension, form.answered))

    def set_oov(self, vector: Array) -> None:
        """Set the vector returned for misses.

        Args:
            vector: ``[dimension]``.

        Raises:
            ValueError: Its shape is wrong; the kernels copy it unchecked.
        """
        if vector.shape != (self._form.dimension,):
            raise ValueError(f"expected {self._form.dimension} numbers, got {list(vector.shape)}")
        self.oov = vector.astype(self._form.answered)
        scaled = np.zeros(self._form.record_bytes, np.uint8)
        none = scaled if self._is_scaled else self.oov.view(np.uint8)
        # int8 needs the whole record, for the scale in its head; other types only need the numbers.
        skip = 0 if self._is_scaled else HEAD.itemsize
        self._held = Standing(kernels.Held(*self._table, *self._marks, none, skip))

    def count(self) -> int:
        """Return the number of vectors in the cache."""
        return int(np.count_nonzero(self._table[0] >> np.uint64(33)))

    def hashes(self, keys: list[str], longest: int, first: int = 0) -> Array:
        """Return the hashes of keys, uint64 ``[N, 2]``; see ``hashed``."""
        return self.hashed(keys, longest, first)[0]

    def hashed(self, keys: list[str], longest: int, first: int = 0) -> tuple[Array, int]:
        """Return the hashes of keys, uint64 ``[N, 2]``, and the bytes of UTF-8 of the longest key.

        Args:
            keys: The keys.
            longest: Maximum length of a key in bytes of UTF-8.
            first: Index of the first of them in the whole request, for errors.

        Raises:
            InvalidRequest: A key is not text, empty, or too long.
        """
        hashes = np.empty((len(keys), 2), np.uint64)
        found: int = hash_texts(id(keys), longest, self._secret, hashes)
        if found < 0:
            wrong = -1 - found
            key = keys[wrong] if wrong < len(keys) else None  # another thread has changed the list
            raise wrong_key(key, first + wrong, longest)
        return hashes, found

    def find(self, hashes: Array, since: tuple[int, int], now: int, out: Array | None = None) -> Found:
        """Look keys up.

        Args:
            hashes: From ``hashes``.
            since: Earliest write time (Unix) and caching time (monotonic) of a vector, in milliseconds.
            now: Monotonic time in milliseconds.
            out: Array to write the vectors to: C-contiguous, in the answers' dtype; None allocates one.
        """
        form, rows = self._form, len(hashes)
        written, asked = np.empty(rows, np.uint64), np.empty(rows, np.int32)
        vectors = np.empty((rows, form.dimension), form.answered) if out is None else out
        if self._is_scaled:
            copied = np.empty((rows, form.record_bytes), np.uint8)
        else:
            copied = vectors.view(np.uint8).reshape(rows, form.vector_bytes)
        asks = kernels.find(hashes, self._held, (*since, now), copied, written, asked)
        if self._is_scaled:
            vectors[:] = form.decode(copied)
            vectors[written == 0] = self.oov
        return Found(vectors, written, asked[:asks])

    def put(self, hashes: Array, records: Array, now: int, *, replaces: bool = False) -> None:
        """Cache records; a cached record that was written later is kept.

        Args:
            hashes: From ``hashes``.
            records: Addresses from ``check`` or ``where``; 0 for none.
            now: Monotonic time in milliseconds.
            replaces: Whether to replace later records too: these were just stored, whatever the clocks say.
        """
        if len(hashes) != len(records):
            raise ValueError(f"expected {len(hashes)} records, got {len(records)}")
        how = self._form.record_bytes, now, replaces
        kernels.put(hashes, self._table, self._state, records, how)

    def where(self, records: Array) -> Array:
        """Return the addresses of an array's records, valid as long as the array: int64 ``[N]``.

        Args:
            records: uint8 ``[N, record bytes]``, C-contiguous.
        """
        size = self._form.record_bytes
        if records.shape[1:] != (size,) or not records.flags.c_contiguous:
            raise ValueError(f"expected records of {size} bytes, got {list(records.shape)}")
        return np.arange(len(records), dtype=np.int64) * size + records.ctypes.data

    def check(self, values: list[bytes] | Array, written_since: int) -> tuple[Array, int]:
        """Return the addresses of values that are records with a vector, 0 for others; and their number.

        Args:
            values: Values from a store, which must outlive the addresses; or their addresses and sizes, int64
                ``[N, 2]``.
            written_since: Earliest accepted write time, in milliseconds of Unix time.

        Returns:
            The addresses, int64 ``[N]``, and the number of records.
        """
        records, form = np.empty(len(values), np.int64), self._form
        kind = form.type, form.record_bytes
        if isinstance(values, list):
            return records, kernels.check(id(values), kind, written_since, records)
        return records, kernels.check_in_place(values, kind, written_since, records)

    def give(self, records: Array, places: Array, vectors: Array, written: Array) -> None:
        """Copy the vectors of records into an answer.

        Args:
            records: Addresses from ``check``; 0 for none.
            places: Index of each in the answer, int32 ``[N]``.
            vectors: Receives the vectors, in the answers' dtype.
            written: Receives the write times, uint64.
        """
        if not self._is_scaled:
            answer = vectors.view(np.uint8).reshape(len(vectors), -1)
            kernels.give(records, HEAD.itemsize, places, answer, written)
            return
        there = np.flatnonzero(records)
        copied = np.empty((len(there), self._form.record_bytes), np.uint8)
        when = np.empty(len(there), np.uint64)
        kernels.give(records[there], 0, np.arange(len(there), dtype=np.int32), copied, when)
        vectors[places[there]] = self._form.decode(copied)
        written[places[there]] = when

    def remove(self, hashes: Array) -> None:
        """Remove the vectors and marks of keys."""
        kernels.remove(hashes, self._table)
        self.mark(hashes, 0, 0)

    def clear(self) -> None:
        """Remove everything."""
        self._table[0][:] = 0
        self._state[:] = 0
        self._marks[0][:] = 0
        self._marks[1][:] = 0

    def mark(self, hashes: Array, absent_until: int, queued_until: int) -> None:
        """Mark keys as absent from the store, and as queued.

        Args:
            hashes: From ``hashes``.
            absent_until: End of the mark in milliseconds; -1 leaves it unchanged, 0 removes it.
            queued_until: Likewise.
        """
        until = np.empty((len(hashes), 2), np.int64)
        until[:, 0], until[:, 1] = absent_until, queued_until
        kernels.mark(hashes, self._marks, until)

    def queued(self, hashes: Array, now: int) -> Array:
        """Return which keys are marked as queued, bool ``[N]``."""
        still = np.empty(len(hashes), np.bool_)
        kernels.queued(hashes, self._marks, now, still)
        return still


@functools.cache
def _compiled() -> None:
    """Compile the kernels or load them from disk, once per process, before a lookup needs them."""
    kernels.run_once()


def _zeros(rows: int, columns: int) -> Array:
    """Return zeros, aligned to a cache line, that take memory only as they are written.

    They use huge pages if available, since random access would otherwise miss the TLB as well.
    """
    size = rows * columns * 8
    # Private: a forked child gets its own cache, and huge pages are possible.
    room = mmap.mmap(-1, max(size, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        room.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(room, np.uint64, rows * columns).reshape(rows, columns)
