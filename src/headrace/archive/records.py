"""A vector as a store keeps it: a head of 16 bytes, then its numbers.

::

    0   uint8    the format: 1
    1   uint8    the numbers' type: 0 for no vector, 1 float32, 2 float16, 3 int8, 4 a row of columns
    2   uint16   0
    4   float32  what int8 numbers are multiplied by; else 1
    8   uint64   when it was written, in milliseconds of Unix time
    16           the numbers, little-endian
         …       the key, where it is so long that the store has it by a digest
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from headrace.archive.cache_kernels import FORMAT
from headrace.errors import InvalidRequest
from headrace.tensors import Array

HEAD = np.dtype([("format", "u1"), ("type", "u1"), ("zero", "<u2"), ("scale", "<f4"), ("written", "<u8")])
"""What a record begins with."""

NO_VECTOR = 0
"""The type of a record that stands for a missing vector."""

ROW = "row"
"""The dtype of a feature table's rows: bytes, whose columns say what they mean."""

_TYPES = {"float32": 1, "float16": 2, "int8": 3, ROW: 4}
_NUMBERS = {"float32": "<f4", "float16": "<f2", "int8": "i1", ROW: "u1"}
_LARGEST_INT8 = 127

DTYPES = tuple(_TYPES)
"""What numbers may be stored as."""


@dataclass(frozen=True)
class Form:
    """How the vectors of one space version lie in its records, and how they are answered.

    Attributes:
        dimension: How many numbers a vector has; how many bytes a row has.
        dtype: How they are stored: ``float32``, ``float16``, or ``int8`` with a scale a vector. An int8
            number is off by half of the scale at the most, which is the vector's largest number through 254.
            ``row`` is a row of a feature table: its bytes as they are.
    """

    dimension: int
    dtype: str

    @cached_property
    def type(self) -> int:
        """The numbers' type, as records say it."""
        return _TYPES[self.dtype]

    @cached_property
    def answered(self) -> np.dtype[np.generic]:
        """The dtype of answers: int8 is answered as float32."""
        return np.dtype({"int8": np.float32, ROW: np.uint8}.get(self.dtype, self.dtype))

    @cached_property
    def vector_bytes(self) -> int:
        """How long a stored vector is."""
        return self.dimension * np.dtype(_NUMBERS[self.dtype]).itemsize

    @cached_property
    def record_bytes(self) -> int:
        """How long a record is, without a key behind it."""
        return HEAD.itemsize + self.vector_bytes

    @cached_property
    def missing(self) -> bytes:
        """A record that stands for no vector."""
        return bytes(self.record_bytes)

    def encode(self, vectors: Array, written: int | Array) -> Array:
        """Make records of vectors.

        Args:
            vectors: float32 or float16 ``[N, dimension]``, finite; rows as uint8.
            written: When that is, in milliseconds of Unix time, also uint64 ``[N]``.

        Returns:
            uint8 ``[N, record_bytes]``.

        Raises:
            InvalidRequest: A number is larger than float16 can be, where that is stored.
        """
        records = np.zeros((len(vectors), self.record_bytes), np.uint8)
        heads = records[:, : HEAD.itemsize].view(HEAD)[:, 0]
        heads["format"], heads["type"], heads["written"] = FORMAT, self.type, written
        if self.dtype == "int8":
            largest = np.abs(vectors).max(axis=1, initial=0).astype(np.float32)
            scale = np.where(largest > 0, largest / np.float32(_LARGEST_INT8), np.float32(1))
            # The smallest numbers that float32 has make a scale of 0.
            scale = np.maximum(scale, np.finfo(np.float32).tiny)
            numbers = np.rint(vectors / scale[:, None]).astype("i1")
        else:
            scale = np.ones(len(vectors), np.float32)
            with np.errstate(over="ignore"):
                numbers = vectors.astype(_NUMBERS[self.dtype])
            if self.dtype != ROW and not np.isfinite(numbers).all():
                row = int(np.argmin(np.isfinite(numbers).all(axis=1)))
                raise InvalidRequest(
                    f"row {row}: a number is larger than {self.dtype} can be; store the space as float32",
                    field="vectors",
                )
        heads["scale"] = scale
        records[:, HEAD.itemsize :] = np.ascontiguousarray(numbers).view(np.uint8)
        return records

    def fits(self, vectors: Array) -> Array:
        """Which vectors can be stored, bool ``[N]``: those of finite numbers, also in this dtype."""
        with np.errstate(over="ignore", invalid="ignore"):
            stored = vectors.astype(np.float32 if self.dtype == "int8" else self.dtype)
        fits: Array = np.isfinite(stored).all(axis=1)
        return fits

    def are_records(self, values: Array) -> Array:
        """Which of some values are records of this form.

        Args:
            values: uint8 ``[N, record_bytes]``.

        Returns:
            bool ``[N]``.
        """
        heads = values[:, : HEAD.itemsize].view(HEAD)[:, 0]
        sound: Array = (heads["format"] == FORMAT) & (heads["type"] == self.type) & (heads["written"] > 0)
        return sound

    def written(self, records: Array) -> Array:
        """When records were written, in milliseconds of Unix time, uint64 ``[N]``."""
        written: Array = records[:, : HEAD.itemsize].view(HEAD)[:, 0]["written"]
        return written

    def decode(self, records: Array) -> Array:
        """The vectors of records.

        Args:
            records: uint8 ``[N, record_bytes]``, all of this form.

        Returns:
            ``answered`` ``[N, dimension]``; a view where it can be.
        """
        numbers = records[:, HEAD.itemsize :].view(_NUMBERS[self.dtype])
        if self.dtype != "int8":
            return numbers
        scales = records[:, : HEAD.itemsize].view(HEAD)["scale"]
        answered: Array = numbers * scales
        return answered


def joined(values: Sequence[bytes], form: Form) -> Array:
    """What a store gave, as one array; a value that cannot be a record becomes one of no vector.

    Args:
        values: What stands for each key.
        form: What they should be.

    Returns:
        uint8 ``[N, record_bytes]``; not to be written to.
    """
    size = form.record_bytes
    together = b"".join(values)
    if set(map(len, values)) - {size}:
        together = b"".join(value[:size] if len(value) >= size else form.missing for value in values)
    return np.frombuffer(together, np.uint8).reshape(len(values), size)
