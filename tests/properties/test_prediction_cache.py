"""Whatever is asked again, at once, too late or by who leaves: who is answered gets what the model says."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from headrace.base.errors import HeadraceError, Overloaded
from headrace.base.tensors import Array
from headrace.batching.request import NO_DEADLINE, Origin, Request
from headrace.config import BatchingPolicy, CachePolicy
from headrace.predictors.cached_predictor import Cached
from tests.unit.batching.machine import CALL_SECONDS, POISON, ROW_SECONDS, CallersMachine, answer
from tests.unit.batching.stage import Asked, Model, Stage

MOST_BYTES = 65536


class CacheMachine(CallersMachine):
    """Random callers who ask few different things; time passes only when a rule says so."""

    @initialize(
        instances=st.integers(1, 3),
        inline=st.booleans(),
        seconds=st.sampled_from([0.0, 0.003]),
        pads=st.booleans(),
    )
    def build(self, instances: int, inline: bool, seconds: float, pads: bool) -> None:
        policy = BatchingPolicy(
            max_batch_rows=8, max_batch_seconds=0.003, max_queue_rows=30, pad_variable_length=pads
        )
        self.inline = inline
        self.stage = Stage(policy, model=Model(answer=answer), instances=instances, inline=inline)
        if inline:
            self.stage.model.spend = lambda rows: self.stage.clock.spend(CALL_SECONDS + ROW_SECONDS * rows)
        self.cache = Cached(
            self.stage.batcher,
            CachePolicy(size_bytes=MOST_BYTES, seconds=seconds),
            origin=Origin(self.stage.name, 1),
            statistics=self.stage.batcher.statistics,
            clock=self.stage.clock,
            most_waiting_rows=30,
        )

    def submit(self, values: Array, within: float, again: bool) -> None:
        asked = Asked(values, then=lambda: again and self.submit(values, NO_DEADLINE, False))
        (signature,) = self.stage.model.signatures.values()
        deadline = self.stage.clock.now() + within
        own = values.copy()
        asked.request = Request(*signature.check({"x": own}), asked.respond, deadline=deadline, waiter=asked)
        self.asked.append(asked)
        self.cache.submit(asked.request)
        own[:] = np.nan  # a caller who uses its array for something else: nobody else's answer changes

    # --- what may happen ---

    @rule(
        value=st.sampled_from([1.0, 2.0, 3.0, POISON]),
        rows=st.sampled_from([1, 1, 2, 12]),
        length=st.integers(1, 2),
        within=st.sampled_from([NO_DEADLINE, NO_DEADLINE, 0.0, 0.002, 0.010]),
        again=st.integers(0, 5).map(lambda drawn: drawn == 0),
        turn=st.booleans(),
    )
    def ask(self, value: float, rows: int, length: int, within: float, again: bool, turn: bool) -> None:
        values = np.full((rows, length), value, np.float32)
        self.submit(values, within, again)
        if turn:
            self.settle()

    @precondition(lambda self: any(not asked.settlements and not asked.gone for asked in self.asked))
    @rule(data=st.data(), politely=st.booleans())
    def leave(self, data: st.DataObject, politely: bool) -> None:
        waiting = [asked for asked in self.asked if not asked.settlements and not asked.gone]
        asked = data.draw(st.sampled_from(waiting))
        asked.gone = True
        if politely:
            asked.request.abandon()

    @rule(seconds=st.sampled_from([0.0005, 0.002, 0.006]))
    def time_passes(self, seconds: float) -> None:
        super().time_passes(seconds)
        if (
            not self.inline
        ):  # nobody was busy, so nobody waits beyond its deadline, but for the Batcher's slack
            waiting = [asked for asked in self.asked if not asked.settlements and not asked.gone]
            assert all(asked.request.deadline + 0.001 > self.stage.clock.now() for asked in waiting)

    # --- what must be true ---

    @invariant()
    def no_more_is_held_than_may_be(self) -> None:
        if hasattr(self, "cache"):
            assert self.cache.held_bytes <= MOST_BYTES
            assert self.cache._waiting_rows <= 30

    def refusal(self, asked: Asked) -> type[HeadraceError]:
        return Overloaded

    def check_end(self) -> None:
        super().check_end()
        assert not self.cache._shared_requests
        assert self.cache._waiting_rows == 0


TestPredictionCache = CacheMachine.TestCase
TestPredictionCache.settings = settings(max_examples=120, stateful_step_count=40)
