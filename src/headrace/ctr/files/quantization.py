"""Quantization of tables to 16 or 8 bits: integers, and a scale for each small group of rows.

A weight is stored as ``rint(weight / scale)``; the largest weight of a group, by magnitude, maps to the
largest integer. The error is at most half a scale, plus float32 rounding. Half a scale is the group's largest
weight / 65534 (16 bits) or / 254 (8 bits). A group is a run of rows with about 64 weights in total. A scale
of four bytes adds 3 % to 64 weights of 16 bits, and a large weight reduces the precision of its group only.

A table may be quantized like an earlier one: groups that still fit keep their scale. The integers of
unchanged rows then stay the same, and a patch can omit them. A kept scale is at most a quarter larger than
the group needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from headrace.base.tensors import Array
from headrace.ctr.click_model import Table, Weights

Bits = Literal[16, 8]
"""Bits per weight of a quantized table."""

WEIGHTS_PER_SCALE = 64

LOOSEST_SCALE = 1.25
"""An earlier table's scale is kept if it is at most this multiple of the needed one."""

_DTYPES: dict[Bits, type[np.signedinteger]] = {16: np.int16, 8: np.int8}
_CHUNK_ROWS = 2**15  # a multiple of every group's rows; bounds temporary memory


def group_shift(width: int) -> int:
    """Return the base-2 logarithm of the rows that share a scale, given a row's number of weights."""
    return max(0, (WEIGHTS_PER_SCALE // max(width, 1)).bit_length() - 1)


def quantize_table(table: Table, bits: Bits, like: Table | None = None) -> Table:
    """Quantize a float32 table.

    Args:
        table: The table, of finite weights.
        bits: Bits per weight.
        like: An earlier table of the same shape, whose scales are kept where they fit.

    Returns:
        A new table; zeros stay zero.
    """
    rows, width = table.values.shape
    shift = group_shift(width)
    group_rows = 1 << shift
    values = np.empty((rows, width), _DTYPES[bits])
    scales = np.zeros(((rows - 1) >> shift) + 1, np.float32)
    if like is not None and like.scales.shape == scales.shape:
        scales[:] = like.scales
    for start in range(0, rows, _CHUNK_ROWS):
        chunk = table.values[start : start + _CHUNK_ROWS]
        groups = -(-len(chunk) // group_rows)
        padded = np.zeros((groups * group_rows, width), np.float32)
        padded[: len(chunk)] = chunk
        found = scales[start >> shift : (start >> shift) + groups]
        numbers = _quantize(padded.reshape(groups, group_rows * width), bits, found)
        values[start : start + len(chunk)] = numbers.reshape(padded.shape)[: len(chunk)]
    return Table(values, scales, shift)


def quantize(weights: Weights, bits: Bits, like: Weights | None = None) -> Weights:
    """Quantize a model's tables; the other arrays, which are small, stay as they are.

    Args:
        weights: The model's weights.
        bits: Bits per weight.
        like: Weights of an earlier model of the same settings, whose scales are kept where they fit.
    """
    earlier: Mapping[str, Table] = {} if like is None else like.tables
    tables = {name: quantize_table(one, bits, earlier.get(name)) for name, one in weights.tables.items()}
    return replace(weights, tables=tables)


def dequantize_table(table: Table) -> Array:
    """Return the weights that a table represents: float32 ``[rows, width]``."""
    groups = np.arange(len(table.values), dtype=np.uint64) >> np.uint64(table.shift)
    return np.asarray(table.values * table.scales[groups][:, None], np.float32)


def _quantize(groups: Array, bits: Bits, scales: Array) -> Array:
    """Quantize groups of weights ``[groups, weights]``; keep or replace their scales in place."""
    largest = (1 << (bits - 1)) - 1
    peaks = np.abs(groups).max(axis=1, initial=0.0)
    needed = (peaks / np.float32(largest)).astype(np.float32)
    fits = (scales >= needed) & (scales <= needed * np.float32(LOOSEST_SCALE))
    np.copyto(scales, needed, where=~fits)
    divisors = np.where(scales > 0, scales, np.float32(1))  # scale 0: weights are zero, or it underflowed
    numbers = np.rint(groups / divisors[:, None])
    return np.asarray(np.clip(numbers, -largest, largest).astype(_DTYPES[bits]))
