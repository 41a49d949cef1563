"""Recognise columns of plain numbers quickly, because nearly all numeric columns contain nothing else.

Regular expressions take ten times as long as the conversion. Cells that are recognised here can be cast;
others are examined in ``text_cells``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.base.tensors import Array

_LONGEST_INTEGER, _LONGEST_BEFORE_POINT = 18, 15
_MINUS, _POINT, _SLASH, _ZERO, _NINE = b"-./09"


class _Plain(NamedTuple):
    """Properties of cells that consist of digits, a sign and a point.

    Attributes:
        longest: Maximum number of digits before the point.
        has_point: Whether some cell has a point.
        has_negative_zero: Whether some cell is ``-0``.
    """

    longest: int
    has_point: bool
    has_negative_zero: bool


def are_plain_integers(texts: pa.Array) -> bool:
    """Whether all cells are missing, or plain integers that int64 holds.

    Args:
        texts: The cells.
    """
    found = _plain(texts)
    return (
        found is not None
        and found.longest <= _LONGEST_INTEGER
        and not (found.has_point or found.has_negative_zero)
    )


def are_plain_numbers(texts: pa.Array) -> bool:
    """Whether all cells are missing, or plain numbers without an exponent whose digits float64 holds.

    Args:
        texts: The cells.
    """
    found = _plain(texts)
    return found is not None and found.longest <= _LONGEST_BEFORE_POINT


def may_hold_words(texts: pa.Array) -> bool:
    """Whether some cell has a letter or another character above the digits; True for other types.

    Args:
        texts: The cells.
    """
    found = _bytes_of(texts)
    return found is None or (len(found[0]) > 0 and bool(found[0].max() > _NINE))


def _bytes_of(texts: pa.Array) -> tuple[Array, Array, Array] | None:
    """Return the bytes of all cells (uint8), the length and the start of each; None for other types."""
    if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
        return None
    _, places, content = texts.buffers()
    kind = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    offsets = np.frombuffer(places, kind)[texts.offset : texts.offset + len(texts) + 1]
    if content is None or not len(offsets):
        return np.empty(0, np.uint8), np.empty(0, kind), np.empty(0, kind)
    body = np.frombuffer(content, np.uint8)[offsets[0] : offsets[-1]]
    return body, np.diff(offsets), offsets[:-1] - offsets[0]


def _plain(texts: pa.Array) -> _Plain | None:
    """Return the cells' properties; None if one is not a plain number, is empty, or has a leading zero."""
    found = _bytes_of(texts)
    if found is None:
        return None
    body, lengths, begins = found
    is_there = lengths > 0
    if not is_there.any():
        return _Plain(0, False, False) if texts.null_count == len(texts) else None
    if len(texts) - texts.null_count != np.count_nonzero(is_there):
        return None
    lengths, begins = lengths[is_there], begins[is_there]
    if body.max() > _NINE or body.min() < _MINUS or bool((body == _SLASH).any()):
        return None
    is_signed = body[begins] == _MINUS
    if np.count_nonzero(body == _MINUS) != np.count_nonzero(is_signed):
        return None
    points = np.flatnonzero(body == _POINT)
    before = lengths - is_signed
    if len(points):
        cells = np.searchsorted(begins, points, "right") - 1
        if bool((cells[1:] == cells[:-1]).any()):
            return None
        before[cells] = points - begins[cells] - is_signed[cells]
        if bool((lengths - is_signed < 1 + np.bincount(cells, minlength=len(lengths))).any()):
            return None
    elif bool((before < 1).any()):
        return None
    is_zero = body[begins + is_signed] == _ZERO
    if bool((is_zero & (before > 1)).any()):
        return None
    is_negative_zero = is_signed & is_zero & (lengths == len(b"-0"))
    return _Plain(int(before.max()), len(points) > 0, bool(is_negative_zero.any()))
