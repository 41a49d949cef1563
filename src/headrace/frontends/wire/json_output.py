"""Print responses as JSON: their cost, and the parts of a large one that are printed at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from headrace.base.tensors import STRING, Array
from headrace.frontends.wire.time_slicer import TimeSlicer, in_steps, joined

PRINTED_AT_ONCE = 4096
"""Cost, in numbers, up to which a response is printed at once."""

_TEXT_BYTES_A_NUMBER = 64


def row_slices(tensors: Sequence[Array]) -> Iterator[slice]:
    """Yield slices of the tensors' rows that are printed at once; a costlier row is a slice of its own.

    Args:
        tensors: One or more tensors with the same number of rows.
    """
    rows = len(tensors[0])
    most = step = max(1, PRINTED_AT_ONCE * rows // max(1, *[tensor.size for tensor in tensors]))
    start = 0
    while start < rows:
        while step > 1 and max(printing_cost(one[start : start + step]) for one in tensors) > PRINTED_AT_ONCE:
            step //= 2
        yield slice(start, start + step)
        start += step
        step = min(most, 2 * step)


def needs_slices(tensors: Iterable[Array]) -> bool:
    """Return whether printing tensors takes so long that it must be done in the time slicer."""
    cost = 0
    for tensor in tensors:
        cost += tensor.size
        if cost <= PRINTED_AT_ONCE and tensor.dtype.char == STRING.char:
            cost += _cost_of_texts(tensor)
    return cost > PRINTED_AT_ONCE


def printing_cost(tensor: Array) -> int:
    """Return the cost of printing a tensor, in numbers; texts cost by their lengths."""
    return tensor.size + (_cost_of_texts(tensor) if tensor.dtype == STRING else 0)


def _cost_of_texts(tensor: Array) -> int:
    return sum(map(len, tensor.flat)) // _TEXT_BYTES_A_NUMBER


async def joined_by_commas(start: bytes, parts: list[bytes], end: bytes, slicer: TimeSlicer) -> bytes:
    """Join printed parts with commas, in small steps.

    Args:
        start: Text before the first part.
        parts: Printed parts; the list is emptied.
        end: Text after the last part.
        slicer: Time slicer, entered by the caller.
    """
    between = [piece for part in parts for piece in (b",", part)]
    parts.clear()
    return await in_steps(joined([start, *between[1:], end]), slicer)
