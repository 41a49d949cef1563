"""Stored form of a vector: a head of 16 bytes, then its numbers.

The layout::

    0   uint8    format: 1
    1   uint8    type of the numbers: 0 for no vector, 1 float32, 2 float16, 3 int8, 4 a row of columns
    2   uint16   0
    4   float32  scale that int8 numbers are multiplied by; else 1
    8   uint64   write time in milliseconds of Unix time
    16           the numbers, little-endian
         …       the key, if the store has only its digest
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from headrace.base.errors import InvalidRequest
from headrace.base.tensors import Array

HEAD = np.dtype([("format", "u1"), ("type", "u1"), ("zero", "<u2"), ("scale", "<f4"), ("written", "<u8")])
"""Layout of a record's head."""

HEAD_BYTES = HEAD.itemsize
"""Bytes of a record before its vector."""

FORMAT = 1
"""The first byte of every record."""

ROW = "row"
"""Dtype of a feature table's rows: bytes, whose layout the columns define."""

_TYPES = {"float32": 1, "float16": 2, "int8": 3, ROW: 4}
_NUMBERS = {"float32": "<f4", "float16": "<f2", "int8": "i1", ROW: "u1"}
_LARGEST_INT8 = 127

DTYPES = tuple(_TYPES)
"""Possible stored dtypes."""


@dataclass(frozen=True)
class Form:
    """Layout of a space version's vectors in records, and their form in answers.

    Attributes:
        dimension: Numbers per vector; bytes per row.
        dtype: Stored dtype: ``float32``, ``float16``, or ``int8`` with a scale per vector. The error of an
            int8 number is at most half the scale, that is 1/254 of the vector's largest absolute number.
            ``row`` is a row of a feature table, stored as it is.
    """

    dimension: int
    dtype: str

    @cached_property
    def type(self) -> int:
        """Type of the numbers, as in records."""
        return _TYPES[self.dtype]

    @cached_property
    def answered(self) -> np.dtype[np.generic]:
        """Dtype of answers: float32 for int8."""
        return np.dtype({"int8": np.float32, ROW: np.uint8}.get(self.dtype, self.dtype))

    @cached_property
    def vector_bytes(self) -> int:
        """Bytes of a stored vector."""
        return self.dimension * np.dtype(_NUMBERS[self.dtype]).itemsize

    @cached_property
    def record_bytes(self) -> int:
        """Bytes of a record, without a key after it."""
        return HEAD.itemsize + self.vector_bytes

    @cached_property
    def missing(self) -> bytes:
        """A record that stands for no vector."""
        return bytes(self.record_bytes)

    def encode(self, vectors: Array, written: int | Array) -> Array:
        """Make records of vectors.

        Args:
            vectors: Finite float32 or float16 ``[N, dimension]``; rows as uint8.
            written: Write time in milliseconds of Unix time, or uint64 ``[N]``.

        Returns:
            uint8 ``[N, record_bytes]``.

        Raises:
            InvalidRequest: A number is out of range for the stored dtype.
        """
        records = np.zeros((len(vectors), self.record_bytes), np.uint8)
        heads = records[:, : HEAD.itemsize].view(HEAD)[:, 0]
        heads["format"], heads["type"], heads["written"] = FORMAT, self.type, written
        if self.dtype == "int8":
            largest = np.abs(vectors).max(axis=1, initial=0).astype(np.float32)
            scale = np.where(largest > 0, largest / np.float32(_LARGEST_INT8), np.float32(1))
            # The scale of the smallest float32 numbers would underflow to 0.
            scale = np.maximum(scale, np.finfo(np.float32).tiny)
            numbers = np.rint(vectors / scale[:, None]).astype("i1")
        else:
            scale = np.ones(len(vectors), np.float32)
            with np.errstate(over="ignore"):
                numbers = vectors.astype(_NUMBERS[self.dtype])
            if self.dtype != ROW and not np.isfinite(numbers).all():
                row = int(np.argmin(np.isfinite(numbers).all(axis=1)))
                raise InvalidRequest(
                    f"row {row}: a number is too large for {self.dtype}; store the space as float32",
                    field="vectors",
                )
        heads["scale"] = scale
        records[:, HEAD.itemsize :] = np.ascontiguousarray(numbers).view(np.uint8)
        return records

    def fits(self, vectors: Array) -> Array:
        """Return which vectors are finite in the stored dtype, bool ``[N]``."""
        with np.errstate(over="ignore", invalid="ignore"):
            stored = vectors.astype(np.float32 if self.dtype == "int8" else self.dtype)
        fits: Array = np.isfinite(stored).all(axis=1)
        return fits

    def are_records(self, values: Array) -> Array:
        """Return which values are records of this form.

        Args:
            values: uint8 ``[N, record_bytes]``.

        Returns:
            bool ``[N]``.
        """
        heads = values[:, : HEAD.itemsize].view(HEAD)[:, 0]
        sound: Array = (heads["format"] == FORMAT) & (heads["type"] == self.type) & (heads["written"] > 0)
        return sound

    def written(self, records: Array) -> Array:
        """Return the write times of records, in milliseconds of Unix time, uint64 ``[N]``."""
        written: Array = records[:, : HEAD.itemsize].view(HEAD)[:, 0]["written"]
        return written

    def decode(self, records: Array) -> Array:
        """Return the vectors of records.

        Args:
            records: uint8 ``[N, record_bytes]``, all of this form.

        Returns:
            ``answered`` ``[N, dimension]``; a view where possible.
        """
        numbers = records[:, HEAD.itemsize :].view(_NUMBERS[self.dtype])
        if self.dtype != "int8":
            return numbers
        scales = records[:, : HEAD.itemsize].view(HEAD)["scale"]
        answered: Array = numbers * scales
        return answered


def joined(values: Sequence[bytes], form: Form) -> Array:
    """Return a store's values as one array; a value too short for a record becomes one without a vector.

    Args:
        values: Value of each key.
        form: Expected form.

    Returns:
        uint8 ``[N, record_bytes]``; read-only.
    """
    size = form.record_bytes
    together = b"".join(values)
    if set(map(len, values)) - {size}:
        together = b"".join(value[:size] if len(value) >= size else form.missing for value in values)
    return np.frombuffer(together, np.uint8).reshape(len(values), size)
