"""grpcio's server behind a gate."""

from __future__ import annotations

import asyncio

from headrace.telemetry.outcomes import Outcome
from headrace.telemetry.tracing.tracer import ParentBased
from tests.outcome_doors import Ask, world
from tests.unit.access.keys_of_tests import entry, gate_of, key_of


def test_a_call_that_the_gate_refuses_takes_no_trace() -> None:
    async def run() -> None:
        async with world(by_grpcio=True) as made:
            made.application.gate = gate_of(entry("one"))
            sampler, traced = ParentBased(1.0, 10), list[Outcome]()
            made.engine.outcomes.observe_sampled(traced.append, sampler)
            await made.ask("grpcio", Ask())
            assert [one.code.name for one in made.given] == ["UNAUTHENTICATED"]
            assert traced == []
            made.metadata = (("authorization", f"Bearer {key_of('one').text}"),)
            await made.ask("grpcio", Ask())
            assert [one.code.name for one in traced] == ["OK"]

    asyncio.run(run())
