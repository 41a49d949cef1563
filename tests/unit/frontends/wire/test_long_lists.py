"""Long lists taken apart part by part."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from headrace.frontends.wire import long_lists
from headrace.frontends.wire.long_lists import used_up
from headrace.frontends.wire.time_slicer import TimeSlicer
from tests.unit.frontends.turns import CountingLane


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


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ([1, 2, 3], [[0, 1, 2]]),
        ([3, 4, 2], [[0], [1, 2]]),
        ([9, 1, 9, 0, 9], [[0], [1], [2], [3], [4]]),
        ([2, 2, 2, 0, 6], [[0, 1, 2, 3], [4]]),
        ([7, 0], [[0], [1]]),
        ([], [[]]),
    ],
)
def test_a_list_is_cut_by_the_sizes_of_its_values(sizes: list[int], parts: list[list[int]]) -> None:
    values: list[Any] = list(range(len(sizes)))
    assert list(long_lists.cut(values, sizes, 6)) == parts
    assert len(parts) == 1 or values == [None] * len(sizes)


def test_lists_are_given_back_by_the_number_of_values_in_them() -> None:
    lane, rows = CountingLane(), 20

    async def give_back() -> None:
        async with lane as slicer:
            await long_lists.given_back([[0] * long_lists.STEP for _ in range(rows)], slicer)

    asyncio.run(give_back())
    assert lane.steps >= rows + rows // 2  # to free the values of each row, and to take out those of two
