"""Tables in 16 or 8 bits: whole numbers, and a scale for each small group of rows.

A weight is stored as ``rint(weight / scale)``, where the group's largest weight is the largest number. So it
comes back off by at most half a scale, which is the group's largest weight / 65534 (16 bits) or / 254
(8 bits), and by float32's own rounding. Groups are rows side by side with about 64 weights together: a scale
of four bytes costs 64 weights of 16 bits 3 %, and a large weight somewhere coarsens only its neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from headrace.ctr.model import Weights
from headrace.ctr.tables import Table
from headrace.tensors import Array

Bits = Literal[16, 8]
"""How many bits a weight may be stored in, besides 32."""

WEIGHTS_PER_SCALE = 64

_DTYPES: dict[Bits, type[np.signedinteger]] = {16: np.int16, 8: np.int8}
_CHUNK_ROWS = 2**15  # a multiple of every group's rows; what is worked on stays small


def group_shift(width: int) -> int:
    """The base-2 logarithm of the rows that share a scale, in a table with so many weights a row."""
    return max(0, (WEIGHTS_PER_SCALE // max(width, 1)).bit_length() - 1)


def quantize_table(table: Table, bits: Bits) -> Table:
    """Store a float32 table in fewer bits.

    Args:
        table: The table, of finite weights.
        bits: How many.

    Returns:
        A new table; zeros stay zero.
    """
    rows, width = table.values.shape
    shift = group_shift(width)
    group_rows = 1 << shift
    values = np.empty((rows, width), _DTYPES[bits])
    scales = np.empty(((rows - 1) >> shift) + 1, np.float32)
    for start in range(0, rows, _CHUNK_ROWS):
        chunk = table.values[start : start + _CHUNK_ROWS]
        groups = -(-len(chunk) // group_rows)
        padded = np.zeros((groups * group_rows, width), np.float32)
        padded[: len(chunk)] = chunk
        numbers, found = _quantize(padded.reshape(groups, group_rows * width), bits)
        values[start : start + len(chunk)] = numbers.reshape(padded.shape)[: len(chunk)]
        scales[start >> shift : (start >> shift) + groups] = found
    return Table(values, scales, shift)


def quantize(weights: Weights, bits: Bits) -> Weights:
    """Store a model's tables in fewer bits; all else, which is small, stays as it is."""
    tables: Mapping[str, Table] = {name: quantize_table(one, bits) for name, one in weights.tables.items()}
    return replace(weights, tables=tables)


def dequantize_table(table: Table) -> Array:
    """The weights that a table stands for: float32 ``[rows, width]``."""
    groups = np.arange(len(table.values), dtype=np.uint64) >> np.uint64(table.shift)
    return np.asarray(table.values * table.scales[groups][:, None], np.float32)


def _quantize(groups: Array, bits: Bits) -> tuple[Array, Array]:
    """Numbers and scales of groups of weights ``[groups, weights]``."""
    largest = (1 << (bits - 1)) - 1
    peaks = np.abs(groups).max(axis=1, initial=0.0)
    scales = (peaks / np.float32(largest)).astype(np.float32)
    divisors = np.where(scales > 0, scales, np.float32(1))  # all zero, or too small to tell from zero
    numbers = np.rint(groups / divisors[:, None])
    return np.clip(numbers, -largest, largest).astype(_DTYPES[bits]), scales
