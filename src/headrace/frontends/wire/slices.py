"""Long lists taken apart, and large answers put together, part by part."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Sequence
from io import BytesIO
from itertools import repeat
from typing import Any

from headrace.frontends.wire.lane import Lane
from headrace.tensors import STRING, Array

PRINTED_AT_ONCE = 4096
"""Answers of up to so many numbers are printed at once."""

_TEXT_BYTES_A_NUMBER = 64
_JOINED_BYTES = 256 * 1024

_CONTAINERS = frozenset((list, dict))

STEP = 2048
"""How many values are converted at once."""


async def used_up(values: list[Any], lane: Lane, step: int = 0) -> AsyncIterator[list[Any]]:
    """The parts of a list, which is emptied with them: to give back a million lists at once takes long, too.

    If the caller fails, asyncio ends this generator, and the rest is given back in turns of its own.

    Args:
        values: The list.
        lane: Held by the caller.
        step: How many make a part; as many as ``STEP`` says if left out.
    """
    try:
        for part in parts(values, step):
            yield part
            del part
            await lane.breathe()
    except GeneratorExit:
        while values:
            del values[-STEP:]
            await asyncio.sleep(0)
        raise


async def given_back(document: Any, lane: Lane) -> None:
    """Take a document apart in small steps: to give back a million objects at once takes long.

    Args:
        document: What JSON decodes to; its lists and objects are emptied.
        lane: Held by the caller.
    """
    left = [document]
    while left:
        part = left[-STEP:]
        del left[-STEP:]
        for one in [one for one in part if one and type(one) in _CONTAINERS]:
            if len(one) > STEP:
                left.append(one)
                left += _taken_out(one)
            else:
                left += one.values() if isinstance(one, dict) else one
                one.clear()
        await lane.breathe()


def _taken_out(container: list[Any] | dict[str, Any]) -> list[Any]:
    """The last members of a container, which has them no more."""
    if isinstance(container, dict):
        return [container.popitem()[1] for _ in range(STEP)]
    members = container[-STEP:]
    del container[-STEP:]
    return members


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


def joined(parts: list[bytes | memoryview]) -> Generator[None, None, bytes]:
    """Join parts in small steps, each of which is given back once it is copied: the list is emptied.

    Args:
        parts: The parts.
    """
    # What it is made with is written over, and becomes the bytes: nothing is copied again. Growing would copy
    # it several times where the system has no pages to move.
    whole, written = BytesIO(bytes(sum(map(len, parts)))), 0
    for index, part in enumerate(parts):
        view = memoryview(part)
        for start in range(0, len(view), _JOINED_BYTES):
            written += whole.write(view[start : start + _JOINED_BYTES])
            if written >= _JOINED_BYTES:
                written = 0
                yield
        parts[index] = b""
    return whole.getvalue()


def row_slices(tensors: Sequence[Array]) -> Iterator[slice]:
    """Cut tensors' rows into parts that are printed at once; a row may cost more, and is one then.

    Args:
        tensors: With the same number of rows, at least one.
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
    """Whether printing tensors takes so long that it is done in the lane."""
    cost = 0
    for tensor in tensors:
        cost += tensor.size if tensor.size > PRINTED_AT_ONCE else printing_cost(tensor)
        if cost > PRINTED_AT_ONCE:
            return True
    return False


def printing_cost(tensor: Array) -> int:
    """What printing a tensor costs, in numbers: texts by their lengths."""
    if tensor.dtype != STRING:
        return tensor.size
    return tensor.size + sum(map(len, tensor.flat)) // _TEXT_BYTES_A_NUMBER
