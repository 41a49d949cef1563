"""What a prediction cache holds: answers by exactly what was asked, in no more bytes than it may take.

Answers that were asked for again are kept before those that were not: a new one is on probation until it is
asked for a second time, and what is on probation makes room first. So a scan, of which nothing is asked
twice, never displaces what is.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from sys import getsizeof
from typing import NamedTuple

import numpy as np

from headrace.batching.request import Answer, Request
from headrace.packed.columns import PLACE, PackedColumns
from headrace.servable import RowLayout
from headrace.tensors import STRING, Array, Buffer, Tensors


class Key(NamedTuple):
    """What is asked: equal for equal inputs, however they came.

    Attributes:
        layout: The signature, and the shapes of a row.
        rows: How many rows.
        inputs: The bytes of each input; of texts, how long each is, then all of them.
    """

    layout: RowLayout
    rows: int
    inputs: tuple[bytes, ...]


MOST_KEY_BYTES = 1024 * 1024
"""Inputs of more are never kept: they are copied and hashed in the serving thread, in about a millisecond."""

_LARGEST_SHARE = 16
"""One answer, with what was asked, takes so small a part of the cache at the most."""

_MOST_KEPT_LONGER = 0.8
"""This part of the cache may be taken by answers that were asked for again."""

_BYTES_BYTES, _ARRAY_BYTES = getsizeof(b""), getsizeof(np.empty(()))
_ENTRY_BYTES = 560
"""What an entry takes beside the bytes of its inputs and outputs: its place in a dict, its tuple, itself."""


def key_of(request: Request, most_bytes: int) -> Key | None:
    """What a request asks, as bytes that nobody else can change.

    Args:
        request: The request, not settled yet.
        most_bytes: The most that its inputs may take.

    Returns:
        The key; None if its inputs take more.
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
    """An input of texts: how long each is, then all of them, one after the other."""
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
    """A request's inputs, where no caller can change them any more: what is computed is what was asked.

    Args:
        key: What the request asks.
        columns: Its inputs; in process these may be the caller's own arrays.
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
    """An answer that is kept.

    Attributes:
        tensors: Its rows of each output; nobody can write to them.
        size_bytes: What it takes, with its key.
        until: Until when it may be repeated, on the monotonic clock.
    """

    __slots__ = ("size_bytes", "tensors", "until")

    def __init__(self, tensors: Tensors, size_bytes: int, until: float) -> None:
        """Keep an answer's rows."""
        self.tensors = tensors
        self.size_bytes = size_bytes
        self.until = until


def copied(answer: Answer) -> dict[str, Array]:
    """An answer's rows of each output, not to be written to: a view would keep the whole batch's."""
    start, stop, found = answer.start, answer.stop, {}
    for name, tensor in answer.outputs.tensors.items():
        found[name] = own = tensor[start:stop].copy()
        own.setflags(write=False)
    return found


def size_of(key: Key, answer: Answer) -> int:
    """What an answer would take that is kept."""
    size, rows = _ENTRY_BYTES, answer.rows
    for own in key.inputs:
        size += len(own) + _BYTES_BYTES
    for name, tensor in answer.outputs.tensors.items():
        size += rows * math.prod(tensor.shape[1:]) * tensor.itemsize + _ARRAY_BYTES + 16 * tensor.ndim
        if tensor.dtype == STRING:
            size += sum(map(getsizeof, answer.tensor(name).flat))
    return size


class Answers:
    """The answers that are kept.

    Attributes:
        held_bytes: What they take, with their keys.
        most_key_bytes: The most that the inputs of one may take.
    """

    def __init__(self, size_bytes: int) -> None:
        """Start with none.

        Args:
            size_bytes: What all of them may take.
        """
        self.held_bytes = 0
        self._most_bytes = size_bytes
        self._largest = size_bytes // _LARGEST_SHARE
        self.most_key_bytes = min(self._largest, MOST_KEY_BYTES)
        self._most_again_bytes = int(size_bytes * _MOST_KEPT_LONGER)
        self._again_bytes = 0
        self._once: OrderedDict[Key, Kept] = OrderedDict()
        self._again: OrderedDict[Key, Kept] = OrderedDict()

    def __len__(self) -> int:
        """How many there are."""
        return len(self._once) + len(self._again)

    def find(self, key: Key, now: float) -> Kept | None:
        """The answer to what is asked, if it is there and may still be repeated.

        Args:
            key: What is asked.
            now: The time, on the monotonic clock.
        """
        found = self._again.get(key) or self._once.get(key)
        if found is None:
            return None
        if now >= found.until:
            self._drop(key)
            return None
        if key in self._again:
            self._again.move_to_end(key)
            return found
        self._again[key] = self._once.pop(key)
        self._again_bytes += found.size_bytes
        while self._again_bytes > self._most_again_bytes:
            other, demoted = self._again.popitem(last=False)
            self._again_bytes -= demoted.size_bytes
            self._once[other] = demoted
        return found

    def takes(self, size_bytes: int) -> bool:
        """Whether an answer of this size would be kept at all."""
        return size_bytes <= self._largest

    def keep(self, key: Key, kept: Kept) -> None:
        """Keep an answer, and let others go for it.

        Args:
            key: What was asked.
            kept: The answer; ``takes`` has said yes to its size.
        """
        self._drop(key)
        self._once[key] = kept
        self.held_bytes += kept.size_bytes
        while self.held_bytes > self._most_bytes:
            self._drop(next(iter(self._once or self._again)))

    def _drop(self, key: Key) -> None:
        kept = self._once.pop(key, None)
        if kept is None:
            kept = self._again.pop(key, None)
            if kept is None:
                return
            self._again_bytes -= kept.size_bytes
        self.held_bytes -= kept.size_bytes
