"""Long lists, such as JSON is decoded to, taken apart and given back part by part."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import repeat
from typing import Any

from headrace.frontends.wire.lane import Lane

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
