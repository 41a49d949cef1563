"""Read the metadata of Arrow IPC messages from their flatbuffers, before Arrow reads the messages."""

from __future__ import annotations

import struct
from collections import deque
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.base.tensors import Array

SCHEMA, DICTIONARY, ROWS = 1, 2, 3
"""Kinds of messages."""

_LENGTH_BYTES = 8


class Header(NamedTuple):
    """The header of a message.

    Attributes:
        kind: The kind of message.
        body_bytes: Size of the body that follows the metadata.
    """

    kind: int
    body_bytes: int


class Content(NamedTuple):
    """Properties of the body of rows or of a dictionary.

    Attributes:
        opened_bytes: Total size of its buffers, decompressed.
        dictionary: The id of the dictionary; -1 for rows.
        delta: Whether it extends the dictionary instead of replacing it.
    """

    opened_bytes: int
    dictionary: int = -1
    delta: bool = False


def header(metadata: memoryview) -> Header:
    """Return a message's kind and the size of its body.

    Raises:
        IndexError: The metadata is corrupt.
        struct.error: The metadata is corrupt.
    """
    message = _Table.root(metadata)
    return Header(message.number(1, "<B"), message.number(3, "<q"))


def content(metadata: memoryview, body: memoryview) -> Content:
    """Return the properties of a message of rows or of a dictionary.

    Raises:
        IndexError: The metadata is corrupt.
        struct.error: The metadata is corrupt.
    """
    message = _Table.root(metadata)
    batch = message.table(2)
    if batch is None:
        return Content(0)
    if message.number(1, "<B") == ROWS:
        return Content(_opened_bytes(batch, body))
    data = batch.table(1)
    opened = 0 if data is None else _opened_bytes(data, body)
    return Content(opened, batch.number(0, "<q"), bool(batch.number(2, "<B")))


def _opened_bytes(batch: _Table, body: memoryview) -> int:
    """Return the total size of all buffers; overlapping ones count separately, because each is read."""
    places = batch.structs(2, np.dtype("<i8"), 2)
    starts, lengths = places[:, 0], places[:, 1]
    sizes = np.maximum(lengths, 0)
    if batch.table(3) is not None:
        # Compressed: each buffer begins with its expanded length, or with -1 if it is not compressed itself.
        # Arrow refuses buffers outside of the body.
        known = (lengths >= _LENGTH_BYTES) & (starts >= 0) & (starts <= len(body) - _LENGTH_BYTES)
        at = starts[known, None] + np.arange(_LENGTH_BYTES)
        said = np.ascontiguousarray(np.frombuffer(body, np.uint8)[at]).view("<i8").reshape(-1)
        sizes[known] = np.where(said >= 0, said, sizes[known])
    return int(sizes.astype(np.float64).sum())  # A sum of corrupt lengths must not overflow.


class _Table(NamedTuple):
    """A table of a flatbuffer; an absent field is 0, or None."""

    data: memoryview
    at: int

    @classmethod
    def root(cls, data: memoryview) -> _Table:
        (at,) = struct.unpack_from("<I", data)
        return cls(data, at)

    def _place(self, field: int) -> int:
        (to_offsets,) = struct.unpack_from("<i", self.data, self.at)
        offsets = self.at - to_offsets
        if offsets < 0:
            raise IndexError(offsets)
        (size,) = struct.unpack_from("<H", self.data, offsets)
        if 4 + 2 * field + 2 > size:
            return 0
        (offset,) = struct.unpack_from("<H", self.data, offsets + 4 + 2 * field)
        return self.at + int(offset) if offset else 0

    def number(self, field: int, form: str) -> int:
        place = self._place(field)
        return int(struct.unpack_from(form, self.data, place)[0]) if place else 0

    def _followed(self, field: int) -> int:
        place = self._place(field)
        return place + int(struct.unpack_from("<I", self.data, place)[0]) if place else 0

    def table(self, field: int) -> _Table | None:
        place = self._followed(field)
        return _Table(self.data, place) if place else None

    def structs(self, field: int, dtype: np.dtype[np.int64], width: int) -> Array:
        """Return a vector of structs with ``width`` numbers each."""
        place = self._followed(field)
        if not place:
            return np.zeros((0, width), dtype)
        (count,) = struct.unpack_from("<I", self.data, place)
        if place + 4 + count * width * dtype.itemsize > len(self.data):
            raise IndexError(count)
        return np.frombuffer(self.data, dtype, count * width, place + 4).reshape(count, width)


class Messages:
    """A file for Arrow's reader, made of the queued buffers of whole messages; each is read once."""

    closed = False

    def __init__(self) -> None:
        """Start without messages."""
        self._waiting: deque[pa.Buffer] = deque()

    def add(self, buffer: pa.Buffer) -> None:
        """Append a buffer."""
        self._waiting.append(buffer)

    def read_buffer(self, count: int) -> pa.Buffer:
        """Return the next bytes, at most ``count`` and at most to the end of the current buffer."""
        if not self._waiting or not count:
            return pa.py_buffer(b"")
        buffer = self._waiting[0]
        if count < buffer.size:
            self._waiting[0] = buffer.slice(count)
            return buffer.slice(0, count)
        self._waiting.popleft()
        return buffer

    def read(self, count: int = -1) -> bytes:
        """Return the next ``count`` bytes, all if it is negative; fewer if no more are queued."""
        found = b""
        while self._waiting and (count < 0 or len(found) < count):
            rest = self._waiting[0].size if count < 0 else count - len(found)
            found += self.read_buffer(rest).to_pybytes()
        return found

    def readable(self) -> bool:
        """Return True."""
        return True

    def close(self) -> None:
        """Drop the buffers that have not been read."""
        self._waiting.clear()
