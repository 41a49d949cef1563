"""The lane: one at a time, in order, and others in between."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from itertools import pairwise
from time import perf_counter

import pytest

from headrace.frontends.lane import Lane
from headrace.frontends.oip.tensors import run
from headrace.frontends.slices import joined


def test_one_at_a_time_first_come_first_served() -> None:
    lane, events = Lane(), []

    async def heavy(name: str) -> None:
        async with lane:
            events.append(f"{name} begins")
            for _ in range(3):
                await lane.breathe()
                await asyncio.sleep(0)
            events.append(f"{name} ends")

    async def all_of_them() -> None:
        await asyncio.gather(*[heavy(name) for name in "abc"])

    asyncio.run(all_of_them())
    assert events == ["a begins", "a ends", "b begins", "b ends", "c begins", "c ends"]


def test_others_get_several_turns_after_each_slice_of_time() -> None:
    lane, turns, at_slices = Lane(), 0, []

    async def neighbour() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def heavy() -> None:
        beside = asyncio.create_task(neighbour())
        async with lane:
            for _ in range(5):
                until = perf_counter() + 0.002
                while perf_counter() < until:
                    pass
                await lane.breathe()
                at_slices.append(turns)
        beside.cancel()

    asyncio.run(heavy())
    assert all(after - before >= 3 for before, after in pairwise(at_slices))


def test_an_error_within_the_lane_frees_it() -> None:
    async def fails() -> None:
        lane = Lane()
        for _ in range(2):
            try:
                async with lane:
                    raise ValueError
            except ValueError:
                pass

    asyncio.run(asyncio.wait_for(fails(), 5))


def test_what_fails_leaves_at_once() -> None:
    """What it holds is given back before anybody else asks for it."""

    async def fails() -> None:
        lane, others_turns = Lane(), []

        async def neighbour() -> None:
            others_turns.append(1)

        try:
            async with lane:
                task = asyncio.create_task(neighbour())
                raise ValueError
        except ValueError:
            assert not others_turns
        await task

    asyncio.run(fails())


@pytest.mark.parametrize("sizes", [[], [0], [1, 0, 2], [3_000_000], [100_000] * 30, [300_000, 5, 600_000]])
def test_parts_are_joined_in_small_steps_and_given_back(sizes: list[int]) -> None:
    parts = [bytes([index % 251]) * size for index, size in enumerate(sizes)]
    given: list[bytes | memoryview] = [*parts]
    count = 0

    def counted() -> Generator[None, None, bytes]:
        nonlocal count
        for_count = joined(given)
        while True:
            try:
                yield next(for_count)
            except StopIteration as end:
                whole: bytes = end.value
                return whole
            count += 1

    assert run(counted()) == b"".join(parts)
    assert count >= sum(sizes) // (512 * 1024)
    assert not any(given)
