"""Long lists taken apart, and large answers put together, part by part."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import repeat
from typing import Any

from headrace.frontends.lane import Lane
from headrace.tensors import STRING, Array

PRINTED_AT_ONCE = 4096
"""Answers of up to so many numbers are printed at once."""

_TEXT_BYTES_A_NUMBER = 64

STEP = 2048
"""How many values are converted at once."""


async def used_up(values: list[Any], lane: Lane, step: int = 0) -> AsyncIterator[list[Any]]:
    """The parts of a list, which is emptied with them: to give back a million lists at once takes long, too.

    Args:
        values: The list.
        lane: Held by the caller.
        step: How many make a part; as many as ``STEP`` says if left out.
    """
    for part in parts(values, step):
        yield part
        del part
        await lane.breathe()


def parts(values: list[Any], step: int = 0) -> Iterator[list[Any]]:
    """The parts of a list, which is emptied with them.

    Args:
        values: The list.
        step: How many make a part; as many as ``STEP`` says if left out.
    """
    step = step or STEP
    for start in range(0, len(values), step):
        part = values[start : start + step]
        values[start : start + len(part)] = repeat(None, len(part))
        yield part
        del part


def row_slices(tensor: Array) -> Iterator[slice]:
    """Cut a tensor's rows into parts that are printed at once."""
    step = max(1, PRINTED_AT_ONCE * len(tensor) // max(1, printing_cost(tensor)))
    for start in range(0, len(tensor), step):
        yield slice(start, start + step)


def needs_slices(tensors: Iterable[Array]) -> bool:
    """Whether printing tensors takes so long that it is done in the lane."""
    return sum(map(printing_cost, tensors)) > PRINTED_AT_ONCE


def printing_cost(tensor: Array) -> int:
    """What printing a tensor costs, in numbers: texts by their lengths."""
    if tensor.dtype != STRING:
        return tensor.size
    return tensor.size + sum(map(len, tensor.flat)) // _TEXT_BYTES_A_NUMBER
