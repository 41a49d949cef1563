"""The supervisor asks all workers but one what they have counted, and waits for none that is gone."""

from __future__ import annotations

import asyncio

from headrace.workers.messages import Count, Counted
from headrace.workers.shared_state import Counting
from tests.unit.batching.test_version_counts import counted


def test_counts_of_others_are_summed_without_workers_that_end() -> None:
    asked: list[tuple[Count, int]] = []

    def ask(message: Count, but: int) -> list[int]:
        asked.append((message, but))
        return [1, 2, 3]

    async def run() -> Counted:
        counting = Counting(ask)
        answer = asyncio.ensure_future(counting.others(0, Count(77, ("m",), None)))
        await asyncio.sleep(0)
        ((message, but),) = asked
        assert (message.models, message.version, but) == (("m",), None, 0)
        counting.told(1, Counted(message.number, (counted("m", 1),)))
        counting.told(1, Counted(message.number, (counted("m", 1),)))  # told twice: heard once
        counting.told(2, Counted(message.number, (counted("m", 1),)))
        assert not answer.done()
        counting.pass_over(3)
        return await answer

    found = asyncio.run(run())
    assert found.number == 77
    assert [one.requests for one in found.counts] == [2]


def test_a_lone_worker_gets_no_counts_and_does_not_wait() -> None:
    counting = Counting(lambda message, but: [])
    assert asyncio.run(counting.others(0, Count(5, (), None))) == Counted(5, ())
    counting.told(1, Counted(0, ()))  # of a question that is over
