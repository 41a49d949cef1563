"""Contents of a prediction cache: answers keyed by the exact inputs, within a limit of bytes.

The cache is a segmented LRU. A new answer is on probation until it is requested a second time, and answers on
probation are evicted first. A scan, in which no request repeats, therefore evicts no answer of the protected
segment, which holds the repeatedly requested ones up to 80 % of the cache.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from sys import getsizeof
from typing import NamedTuple

import numpy as np

from headrace.base.tensors import STRING, Array, Buffer, Tensors
from headrace.batching.request import Answer, Request
from headrace.model.packed_columns import PLACE, PackedColumns
from headrace.model.servable import RowLayout


class Key(NamedTuple):
    """Cache key of a request; equal for equal inputs, whatever protocol they came by.

    Attributes:
        layout: The signature and the shapes of a row.
        rows: Number of rows.
        inputs: Bytes of each input; for a text input, the lengths of all texts, then the texts.
    """

    layout: RowLayout
    rows: int
    inputs: tuple[bytes, ...]


MOST_KEY_BYTES = 1024 * 1024
"""Limit on the inputs of a cached request; the serving thread copies and hashes 1 MiB in about 1 ms."""

_SIZE_DIVISOR = 16
"""An answer with its key may take at most the size of the cache divided by this."""

_PROTECTED_SHARE = 0.8
"""Share of the cache for answers that were requested again (the protected segment)."""

_BYTES_BYTES, _ARRAY_BYTES = getsizeof(b""), getsizeof(np.empty(()))
_ENTRY_BYTES = 560
"""Overhead of an entry besides the bytes of its inputs and outputs: dict slot, tuple and ``Kept``."""


def key_of(request: Request, most_bytes: int) -> Key | None:
    """Return the cache key of a request, with copies of its inputs: callers may change their arrays later.

    Args:
        request: The request, not settled yet.
        most_bytes: Limit on the size of the inputs in bytes.

    Returns:
        The key; None if the inputs are larger.
    """
    layout, columns, rows = request.layout, request.columns, request.rows
    size = sum(layout.row_bytes) * rows
    if size > most_bytes or (type(columns) is PackedColumns and columns.text_bytes > most_bytes):
        return None
    inputs = []
    for index, row_bytes in enumerate(layout.row_bytes):
        if row_bytes or layout.specs[index].dtype != STRING:
            column = columns[index]
            own = bytes(column) if isinstance(column, bytes | bytearray) else column.tobytes()
        else:
            texts = _texts(layout, columns, rows, index, most_bytes - size)
            if texts is None:
                return None
            size += len(texts)
            own = texts
        inputs.append(own)
    return Key(layout, rows, tuple(inputs))


def _texts(
    layout: RowLayout, columns: Sequence[Buffer], rows: int, index: int, most_bytes: int
) -> bytes | None:
    """Return a text input as bytes for a key: all lengths, then all texts; None if over the limit."""
    count = rows * math.prod(layout.shapes[index])
    if count * PLACE.itemsize > most_bytes:
        return None
    if type(columns) is PackedColumns:
        lengths, joined = columns.joined_texts(index)
    else:
        texts = np.ravel(columns[index]).tolist()
        lengths = np.fromiter(map(len, texts), PLACE, count).tobytes()
        joined = b"".join(texts)
    return lengths + joined if len(lengths) + len(joined) <= most_bytes else None


def own_columns(key: Key, columns: Sequence[Buffer]) -> Sequence[Buffer]:
    """Return a request's inputs in memory that no caller can change, so that they match the key.

    Args:
        key: The request's cache key.
        columns: The request's inputs; in process these may be the caller's own arrays.
    """
    if type(columns) is PackedColumns:
        return columns
    if all(key.layout.row_bytes):
        return key.inputs
    return tuple(
        np.copy(column) if spec.dtype == STRING else own
        for column, own, spec in zip(columns, key.inputs, key.layout.specs, strict=True)
    )


class Kept:
    """A cached answer.

    Attributes:
        tensors: The answer's rows of each output, read-only.
        size_bytes: Size with its key in bytes.
        until: Expiry time on the monotonic clock.
    """

    __slots__ = ("size_bytes", "tensors", "until")

    def __init__(self, tensors: Tensors, size_bytes: int, until: float) -> None:
        """Create the cache entry of an answer."""
        self.tensors = tensors
        self.size_bytes = size_bytes
        self.until = until


def copied(answer: Answer) -> dict[str, Array]:
    """Return read-only copies of an answer's outputs; views would keep the whole batch in memory."""
    start, stop, found = answer.start, answer.stop, {}
    for name, tensor in answer.outputs.tensors.items():
        found[name] = own = tensor[start:stop].copy()
        own.setflags(write=False)
    return found


def size_of(key: Key, answer: Answer) -> int:
    """Return the size in bytes that an answer with its key would take in the cache."""
    size, rows = _ENTRY_BYTES, answer.rows
    for own in key.inputs:
        size += len(own) + _BYTES_BYTES
    for name, tensor in answer.outputs.tensors.items():
        size += rows * math.prod(tensor.shape[1:]) * tensor.itemsize + _ARRAY_BYTES + 16 * tensor.ndim
        if tensor.dtype == STRING:
            size += sum(map(getsizeof, answer.tensor(name).flat))
    return size


class Answers:
    """The cached answers.

    Attributes:
        held_bytes: Size of all answers with their keys in bytes.
        most_key_bytes: Limit on the inputs of one request in bytes.
    """

    def __init__(self, size_bytes: int) -> None:
        """Create an empty cache.

        Args:
            size_bytes: Limit on the size of all answers with their keys.
        """
        self.held_bytes = 0
        self._most_bytes = size_bytes
        self._largest = size_bytes // _SIZE_DIVISOR
        self.most_key_bytes = min(self._largest, MOST_KEY_BYTES)
        self._most_protected_bytes = int(size_bytes * _PROTECTED_SHARE)
        self._protected_bytes = 0
        self._probation: OrderedDict[Key, Kept] = OrderedDict()
        self._protected: OrderedDict[Key, Kept] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of cached answers."""
        return len(self._probation) + len(self._protected)

    def find(self, key: Key, now: float) -> Kept | None:
        """Return the cached answer for a key; None if there is none or it has expired.

        Args:
            key: The cache key.
            now: Current time on the monotonic clock.
        """
        found = self._protected.get(key) or self._probation.get(key)
        if found is None:
            return None
        if now >= found.until:
            self._drop(key)
            return None
        if key in self._protected:
            self._protected.move_to_end(key)
            return found
        self._protected[key] = self._probation.pop(key)
        self._protected_bytes += found.size_bytes
        while self._protected_bytes > self._most_protected_bytes:
            other, demoted = self._protected.popitem(last=False)
            self._protected_bytes -= demoted.size_bytes
            self._probation[other] = demoted
        return found

    def takes(self, size_bytes: int) -> bool:
        """Return whether an answer of this size may be cached."""
        return size_bytes <= self._largest

    def keep(self, key: Key, kept: Kept) -> None:
        """Cache an answer, and evict others to make room.

        Args:
            key: The cache key.
            kept: The answer; ``takes`` must have returned True for its size.
        """
        self._drop(key)
        self._probation[key] = kept
        self.held_bytes += kept.size_bytes
        while self.held_bytes > self._most_bytes:
            self._drop(next(iter(self._probation or self._protected)))

    def _drop(self, key: Key) -> None:
        kept = self._probation.pop(key, None)
        if kept is None:
            kept = self._protected.pop(key, None)
            if kept is None:
                return
            self._protected_bytes -= kept.size_bytes
        self.held_bytes -= kept.size_bytes
