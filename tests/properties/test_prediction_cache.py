"""Whatever is asked again, at once, too late or by who leaves: who is answered gets what the model says."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.batching.request import NO_DEADLINE, Answer, Origin, Request
from headrace.config import BatchingPolicy, CachePolicy
from headrace.errors import DeadlineExceeded, ModelError, Overloaded
from headrace.predictors.cached import Cached
from headrace.tensors import Array, Tensors
from tests.unit.batching.stage import Asked, Model, Stage

POISON = -666.0
CALL_SECONDS, ROW_SECONDS = 0.001, 0.0005
MOST_BYTES = 65536


def answer(inputs: Tensors) -> Tensors:
    if (inputs["x"] == POISON).any():
        raise ValueError("poison")
    return {"y": inputs["x"].sum(axis=1, dtype=np.float32)}


class CacheMachine(RuleBasedStateMachine):
    """Random callers who ask few different things; time passes only when a rule says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Asked] = []
        self.entered = 0

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

    def settle(self) -> None:
        """One turn, and until every batch that was given to a thread has reached the model."""
        self.stage.turn()
        running = len(self.stage.batcher._running)
        for _ in range(running - self.entered):
            self.stage.model.await_entered()
        self.entered = running

    def finish(self) -> None:
        self.entered -= 1
        self.stage.model.let_pass()
        assert self.stage.clock.arrived.acquire(timeout=10)
        self.settle()

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
        self.stage.clock.advance(seconds)
        self.settle()
        if (
            not self.inline
        ):  # nobody was busy, so nobody waits beyond its deadline, but for the Batcher's slack
            waiting = [asked for asked in self.asked if not asked.settlements and not asked.gone]
            assert all(asked.request.deadline + 0.001 > self.stage.clock.now() for asked in waiting)

    @rule(seconds=st.sampled_from([0.002, 0.006]))
    def the_serving_thread_is_busy(self, seconds: float) -> None:
        self.stage.clock.spend(seconds)

    @precondition(lambda self: not self.inline and self.entered)
    @rule()
    def a_batch_comes_back(self) -> None:
        self.finish()

    # --- what must be true ---

    @invariant()
    def nobody_is_settled_twice(self) -> None:
        assert all(len(asked.settlements) <= 1 for asked in self.asked)

    @invariant()
    def no_more_is_held_than_may_be(self) -> None:
        if hasattr(self, "cache"):
            assert self.cache.held_bytes <= MOST_BYTES
            assert self.cache._waiting_rows <= 30

    def teardown(self) -> None:
        if not hasattr(self, "stage"):
            return
        with self.stage as stage:
            self.settle()
            while self.entered:
                self.finish()
            for _ in range(1000):
                if not stage.batcher.queued_rows and not self.entered:
                    break
                stage.clock.advance(0.005)
                self.settle()
                while self.entered:
                    self.finish()
            stage.clock.advance(1.0)
            assert stage.idle()
            assert stage.clock.timers == 0
            assert not self.cache._asked
            assert self.cache._waiting_rows == 0
            for asked in self.asked:
                self.check(asked)
            self.check_statistics()

    def check(self, asked: Asked) -> None:
        if asked.gone:
            assert asked.settlements == []
        elif isinstance(asked.settlement, Answer):
            assert POISON not in asked.values
            assert asked.answered_right
        elif isinstance(asked.settlement, ModelError):
            assert POISON in asked.values
        elif isinstance(asked.settlement, DeadlineExceeded):
            assert asked.request.deadline <= self.stage.clock.now()
        else:
            assert isinstance(asked.settlement, Overloaded)

    def check_statistics(self) -> None:
        counted = self.stage.batcher.statistics
        assert sum(counted.latency_counts) == counted.requests
        if all(len(asked.values) <= 8 for asked in self.asked):  # parts of larger ones count themselves
            ended = counted.requests + counted.failures + counted.refused + counted.cancelled
            assert ended == len(self.asked)


TestPredictionCache = CacheMachine.TestCase
TestPredictionCache.settings = settings(max_examples=120, stateful_step_count=40)
