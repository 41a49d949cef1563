"""The lane: one at a time, in order, and others in between."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from itertools import pairwise
from time import perf_counter

import pytest

from headrace.frontends.wire.time_slicer import TimeSlicer, joined, run
from tests.unit.frontends.turns import Turns


def busy(seconds: float) -> None:
    until = perf_counter() + seconds
    while perf_counter() < until:
        pass


def test_one_at_a_time_in_the_order_in_which_they_came() -> None:
    slicer, events = TimeSlicer(), []

    async def light(name: str) -> None:
        async with slicer:
            events.append(f"{name} begins")
            await asyncio.sleep(0)
            events.append(f"{name} ends")

    async def all_of_them() -> None:
        await asyncio.gather(*[light(name) for name in "abc"])

    asyncio.run(all_of_them())
    assert events == ["a begins", "a ends", "b begins", "b ends", "c begins", "c ends"]


def test_who_needs_little_does_not_wait_for_the_end_of_who_needs_much() -> None:
    slicer, ended = TimeSlicer(), []

    async def heavy(name: str, steps: int) -> None:
        async with slicer:
            for _ in range(steps):
                busy(0.002)
                await slicer.breathe()
            ended.append(name)

    async def all_of_them() -> None:
        await asyncio.gather(heavy("a", 20), heavy("b", 10), heavy("c", 2))

    asyncio.run(all_of_them())
    assert ended == ["c", "b", "a"]


def test_bodies_of_one_step_that_come_together_have_turns_of_others_between_them() -> None:
    slicer, others, begun = TimeSlicer(), Turns(), list[int]()

    async def body() -> None:
        await slicer.step()
        begun.append(others.count)

    async def all_of_them() -> None:
        bodies = [asyncio.create_task(body()) for _ in range(4)]
        async with others:
            await asyncio.gather(*bodies)

    asyncio.run(all_of_them())
    assert begun[0] == 0, "who is alone waits for nothing"
    assert all(later - sooner >= 4 for sooner, later in pairwise(begun)), begun


def test_who_leaves_while_it_waits_for_its_step_holds_up_nobody() -> None:
    slicer = TimeSlicer()

    async def one_leaves() -> None:
        first, leaving, last = (asyncio.create_task(slicer.step()) for _ in range(3))
        await first
        leaving.cancel()
        await asyncio.wait_for(last, 120)
        await asyncio.wait([leaving])
        assert leaving.cancelled()

    asyncio.run(one_leaves())


def test_of_those_who_need_much_one_goes_on_at_a_time() -> None:
    slicer, begun, ended = TimeSlicer(), [], []

    async def heavy(name: str) -> None:
        async with slicer:
            for step in range(60):
                busy(0.0012)
                if step == 40:
                    begun.append(name)
                await slicer.breathe()
            ended.append(name)

    async def all_of_them() -> None:
        await asyncio.gather(*[heavy(name) for name in "abc"])
        async with slicer:
            pass

    asyncio.run(all_of_them())
    assert begun == ended == ["a", "b", "c"]


def test_who_is_cancelled_while_it_is_anothers_turn_does_not_end_that_turn() -> None:
    slicer, inside, most = TimeSlicer(), 0, 0

    async def heavy() -> None:
        nonlocal inside, most
        async with slicer:
            for _ in range(50):
                inside += 1
                most = max(most, inside)
                busy(0.0012)
                inside -= 1
                await slicer.breathe()

    async def all_of_them() -> None:
        tasks = [asyncio.create_task(heavy()) for _ in range(4)]
        for task in tasks[:3]:
            await asyncio.sleep(0.01)
            task.cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 120)
        async with slicer:  # it is free again
            pass
        assert not tasks[3].cancelled()

    asyncio.run(all_of_them())
    assert most == 1


def test_others_get_several_turns_after_each_slice_of_time() -> None:
    slicer, others, at_slices = TimeSlicer(), Turns(), []

    async def heavy() -> None:
        async with others, slicer:
            for _ in range(5):
                busy(0.002)
                await slicer.breathe()
                at_slices.append(others.count)

    asyncio.run(heavy())
    assert all(after - before >= 3 for before, after in pairwise(at_slices))


def test_an_error_within_the_lane_frees_it() -> None:
    async def fails() -> None:
        slicer = TimeSlicer()
        for _ in range(2):
            try:
                async with slicer:
                    raise ValueError
            except ValueError:
                pass

    asyncio.run(asyncio.wait_for(fails(), 120))


def test_what_fails_leaves_at_once() -> None:
    """What it holds is given back before anybody else asks for it."""

    async def fails() -> None:
        slicer, others_turns = TimeSlicer(), []

        async def neighbour() -> None:
            others_turns.append(1)

        try:
            async with slicer:
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
