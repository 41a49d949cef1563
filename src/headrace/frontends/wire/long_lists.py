"""Take long lists, such as those of decoded JSON, apart, and free them part by part."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import repeat
from typing import Any

from headrace.frontends.wire.time_slicer import TimeSlicer

_CONTAINERS = frozenset((list, dict))

STEP = 2048
"""Number of values converted at once."""


async def used_up(values: list[Any], slicer: TimeSlicer, step: int = 0) -> AsyncIterator[list[Any]]:
    """Yield the parts of a list, freeing each: freeing a million lists at once takes long, too.

    If the caller fails, asyncio closes this generator, which frees the rest in its own iterations.

    Args:
        values: The list; its values are replaced by None.
        slicer: Time slicer, entered by the caller.
        step: Number of values in a part; ``STEP`` if 0.
    """
    try:
        for part in parts(values, step):
            yield part
            del part
            await slicer.breathe()
    except GeneratorExit:
        while values:
            del values[-STEP:]
            await asyncio.sleep(0)
        raise


async def given_back(document: Any, slicer: TimeSlicer) -> None:
    """Free a document in small steps: freeing a million objects at once takes long.

    Args:
        document: Decoded JSON; its lists and objects are emptied.
        slicer: Time slicer, entered by the caller.
    """
    left = [document]
    while left:
        part = left[-STEP:]
        del left[-STEP:]
        moved = 0
        for one in [one for one in part if one and type(one) in _CONTAINERS]:
            moved += len(one)
            if moved > STEP:
                moved = 0
                await slicer.breathe()
            if len(one) > STEP:
                left.append(one)
                left += _taken_out(one)
            else:
                left += one.values() if isinstance(one, dict) else one
                one.clear()
        await slicer.breathe()


def _taken_out(container: list[Any] | dict[str, Any]) -> list[Any]:
    """Remove and return the last members of a container."""
    if isinstance(container, dict):
        return [container.popitem()[1] for _ in range(STEP)]
    members = container[-STEP:]
    del container[-STEP:]
    return members


def parts(values: list[Any], step: int = 0) -> Iterator[list[Any]]:
    """Yield the parts of a list, freeing each.

    Args:
        values: The list; its values are replaced by None.
        step: Number of values in a part; ``STEP`` if 0.
    """
    step = step or STEP
    for start in range(0, len(values), step):
        part = values[start : start + step]
        values[start : start + len(part)] = repeat(None, len(part))
        yield part
        del part


def cut(values: list[Any], sizes: list[int], most: int) -> Iterator[list[Any]]:
    """Yield parts of a list by the sizes of its values; one that exceeds the limit is a part of its own.

    Args:
        values: The list; if it is cut, its values are replaced by None, which frees them part by part.
        sizes: Size of each value.
        most: Largest size of a part.
    """
    if sum(sizes) <= most:
        yield values
        return
    start = total = 0
    for index, size in enumerate([*sizes, most + 1]):
        if total + size > most and index > start:
            part = values[start:index]
            values[start:index] = repeat(None, len(part))
            yield part
            del part
            start, total = index, 0
        total += size
