"""However many calls end however: as many Outcomes as calls, told alike to all; and the metrics agree."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.serving.engine import Engine
from headrace.telemetry.outcomes import Outcome
from tests.outcome_doors import ASGI_DOORS, Ask, World, world
from tests.waiting import until_in_loop

HOW = st.sampled_from([*ASGI_DOORS, "in process", "callback", "thread"])
ASKS = st.builds(
    Ask,
    model=st.sampled_from(["m", "m", "slow", "other"]),
    value=st.sampled_from([1.0, 1.0, -1.0]),
    rows=st.sampled_from([1, 1, 2]),
    is_broken=st.booleans(),
    seconds=st.sampled_from([None, None, 0.0, 0.001]),
)
CALLS = st.lists(st.tuples(HOW, ASKS, st.integers(0, 12)), min_size=1, max_size=12)


@settings(max_examples=25)
@given(calls=CALLS, fails_at=st.integers(0, 12))
def test_outcomes_and_metrics_agree(calls: list[tuple[str, Ask, int]], fails_at: int) -> None:
    """Some callers leave after a few turns of the event loop; an observer in between fails now and then."""

    async def scenario() -> None:
        async with asyncio.timeout(20), world() as made:
            before, after = list[Outcome](), list[Outcome]()

            def observe(outcome: Outcome) -> None:
                before.append(outcome)
                if len(before) >= fails_at:
                    raise ValueError("no more")

            made.engine.outcomes.observe(observe)
            made.engine.outcomes.observe(after.append)
            made.gate.set()
            await asyncio.gather(*(ask(made, *one) for one in calls))
            for loaded in made.engine.manager.all_loaded():
                await until_in_loop(lambda: not loaded.outstanding)  # noqa: B023 - waited for right here
            assert before == after == made.given
            assert made.codes() == made.tally()
            assert len({one.id for one in before}) == len(before)
            assert sum(made.tally().values()) == len(before)
            check_versions(made.engine, before)

    asyncio.run(scenario())


async def ask(made: World, how: str, question: Ask, turns: int) -> None:
    asking = asyncio.create_task(made.ask(how, question))
    for _ in range(turns):
        await asyncio.sleep(0)
    if turns % 3 == 1 and how != "thread":
        asking.cancel()
    await asyncio.wait([asking])


def check_versions(engine: Engine, outcomes: list[Outcome]) -> None:
    """What the Batchers count of requests is what the outcomes say of the calls that were handed to them."""
    handed = Counter(one.asked.model for one in outcomes if one.asked is not None)
    for loaded in engine.manager.all_loaded():
        counted = loaded.statistics
        ended = counted.requests + counted.failures + counted.refused + counted.cancelled
        assert ended == handed[loaded.name]
