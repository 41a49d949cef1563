"""The cache before a store: vectors by key in a bounded part of this process's memory."""

from __future__ import annotations

import functools
import mmap
import secrets
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from headrace.archive import cache_kernels as kernels
from headrace.archive.keys import wrong_key
from headrace.archive.records import HEAD, Form
from headrace.archive.text_hashing import hash_texts
from headrace.standing import Standing
from headrace.tensors import Array

_MARKS_SHARE = 16
_MARK_BYTES = 24
_TAGS_A_ROW = 1.5  # then fewer than one set in a hundred is full when the rows are


class Found(NamedTuple):
    """What a cache knows of some keys.

    Attributes:
        vectors: ``[N, dimension]`` as they are answered; the out-of-vocabulary vector where there is none.
        written: When each was written, in milliseconds of Unix time, uint64 ``[N]``; 0 where there is none.
        asked: The places of those that are to be asked for, int32: neither a vector is here, nor a mark that
            there is none and it is queued.
    """

    vectors: Array
    written: Array
    asked: Array


class Cache:
    """Vectors of one space version.

    Its calls are kernels that keep Python's lock: each is whole for all threads, and a few microseconds long.
    """

    def __init__(self, form: Form, size_bytes: int) -> None:
        """Make an empty one; memory is taken as it fills.

        Args:
            form: How records lie.
            size_bytes: How much it may take.
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
        """Say what is answered for keys without a vector.

        Args:
            vector: ``[dimension]``.

        Raises:
            ValueError: It is of another length: kernels copy it without a look.
        """
        if vector.shape != (self._form.dimension,):
            raise ValueError(f"expected {self._form.dimension} numbers, got {list(vector.shape)}")
        self.oov = vector.astype(self._form.answered)
        scaled = np.zeros(self._form.record_bytes, np.uint8)
        none = scaled if self._is_scaled else self.oov.view(np.uint8)
        # Of an int8 record all is needed, as its scale is in its head; of others just the numbers.
        skip = 0 if self._is_scaled else HEAD.itemsize
        self._held = Standing(kernels.Held(*self._table, *self._marks, none, skip))

    @property
    def capacity(self) -> int:
        """How many vectors have a place."""
        return len(self._table[1])

    def held(self) -> int:
        """How many vectors there are."""
        return int(np.count_nonzero(self._table[0] >> np.uint64(33)))

    def hashes(self, keys: list[str], longest: int, first: int = 0) -> Array:
        """What keys go by here: uint64 ``[N, 2]``; see ``hashed``."""
        return self.hashed(keys, longest, first)[0]

    def hashed(self, keys: list[str], longest: int, first: int = 0) -> tuple[Array, int]:
        """What keys go by here, uint64 ``[N, 2]``, and how many bytes of UTF-8 the longest has.

        Args:
            keys: Texts.
            longest: How many bytes one may have.
            first: The place of the first of them among all that were asked for, for errors.

        Raises:
            InvalidRequest: One is no text, empty, or too long.
        """
        hashes = np.empty((len(keys), 2), np.uint64)
        found: int = hash_texts(id(keys), longest, self._secret, hashes)
        if found < 0:
            wrong = -1 - found
            key = keys[wrong] if wrong < len(keys) else None  # somebody else changes the list
            raise wrong_key(key, first + wrong, longest)
        return hashes, found

    def find(self, hashes: Array, since: tuple[int, int], now: int, out: Array | None = None) -> Found:
        """Look for keys.

        Args:
            hashes: From ``hashes``.
            since: The earliest times, in milliseconds, that a vector may have been written, and put here.
            now: The time in milliseconds.
            out: Where to put the vectors: C-contiguous, as they are answered; a new array if there is none.
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
        """Put records where ``find`` finds them; one that is there and was written later stays.

        Args:
            hashes: From ``hashes``.
            records: Where each lies, from ``check`` or ``where``; 0 for none.
            now: The time in milliseconds.
            replaces: Whether they replace what is there in any case: it was stored just now, whatever clocks
                say.
        """
        if len(hashes) != len(records):
            raise ValueError(f"expected {len(hashes)} records, got {len(records)}")
        how = self._form.record_bytes, now, replaces
        kernels.put(hashes, self._table, self._state, records, how)

    def where(self, records: Array) -> Array:
        """Where each record of an array lies, for as long as that does: int64 ``[N]``.

        Args:
            records: uint8 ``[N, record bytes]``, C-contiguous.
        """
        size = self._form.record_bytes
        if records.shape[1:] != (size,) or not records.flags.c_contiguous:
            raise ValueError(f"expected records of {size} bytes, got {list(records.shape)}")
        return np.arange(len(records), dtype=np.int64) * size + records.ctypes.data

    def check(self, values: list[bytes] | Array, written_since: int) -> tuple[Array, int]:
        """Where each value's record with a vector lies, int64 ``[N]``, 0 for none; and how many that are.

        Args:
            values: What a store gave, in which the records lie; or where it says that they do, and how long
                they are, int64 ``[N, 2]``.
            written_since: The earliest time that one may have been written, in milliseconds.
        """
        records, form = np.empty(len(values), np.int64), self._form
        kind = form.type, form.record_bytes
        if isinstance(values, list):
            return records, kernels.check(id(values), kind, written_since, records)
        return records, kernels.check_in_place(values, kind, written_since, records)

    def give(self, records: Array, places: Array, vectors: Array, written: Array) -> None:
        """Put the vectors of records into an answer.

        Args:
            records: Where each lies, from ``check``; 0 for none.
            places: Where in the answer each belongs, int32 ``[N]``.
            vectors: Gets the vectors, as they are answered.
            written: Gets when they were written, uint64.
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
        """Forget vectors and marks of keys."""
        kernels.remove(hashes, self._table)
        self.mark(hashes, 0, 0)

    def clear(self) -> None:
        """Forget everything."""
        self._table[0][:] = 0
        self._state[:] = 0
        self._marks[0][:] = 0
        self._marks[1][:] = 0

    def mark(self, hashes: Array, absent_until: int, queued_until: int) -> None:
        """Say of keys until when they are not looked for in the store, and until when they are queued.

        Args:
            hashes: From ``hashes``.
            absent_until: In milliseconds; -1 leaves what was said, 0 takes it back.
            queued_until: The same.
        """
        until = np.empty((len(hashes), 2), np.int64)
        until[:, 0], until[:, 1] = absent_until, queued_until
        kernels.mark(hashes, self._marks, until)

    def queued(self, hashes: Array, now: int) -> Array:
        """Which keys are queued already, bool ``[N]``."""
        still = np.empty(len(hashes), np.bool_)
        kernels.queued(hashes, self._marks, now, still)
        return still


@functools.cache
def _compiled() -> None:
    """Have the kernels compiled, or read from disk, before anybody waits for them: once a process."""
    kernels.run_once()


def _zeros(rows: int, columns: int) -> Array:
    """Zeroes that begin with a line of the processor's cache, and take memory only as they are written.

    They are in large pages where there are some: what lies anywhere costs a look at the page's place, too.
    """
    size = rows * columns * 8
    # Private: a child that is forked has a cache of its own, and large pages are to be had.
    room = mmap.mmap(-1, max(size, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        room.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(room, np.uint64, rows * columns).reshape(rows, columns)
