"""Long lists taken apart part by part."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from headrace.frontends.wire import long_lists
from headrace.frontends.wire.long_lists import used_up
from headrace.frontends.wire.time_slicer import TimeSlicer


def test_a_list_is_given_back_in_several_turns_when_its_reader_fails() -> None:
    """Giving back a million lists takes a while, in which nobody would be answered."""
    values: list[list[int]] = [[] for _ in range(10 * long_lists.STEP)]
    left: list[int] = []

    async def fails() -> None:
        async with TimeSlicer() as slicer:
            async for _ in used_up(values, slicer):
                raise ValueError("wrong")

    async def both() -> None:
        with pytest.raises(ValueError, match="wrong"):
            await fails()
        while values:
            left.append(len(values))
            await asyncio.sleep(0)

    asyncio.run(both())
    assert len(left) > 5
    assert max(before - after for before, after in pairwise(left)) <= 2 * long_lists.STEP
