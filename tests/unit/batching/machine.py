"""What state machines of random callers share: batches that come and go, and how all ends."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.base.errors import DeadlineExceeded, HeadraceError, ModelError
from headrace.base.tensors import Tensors
from headrace.batching.request import Answer
from tests.unit.batching.stage import Asked, Stage

POISON = -666.0
CALL_SECONDS, ROW_SECONDS = 0.001, 0.0005


def answer(inputs: Tensors) -> Tensors:
    if (inputs["x"] == POISON).any():
        raise ValueError("poison")
    return {"y": inputs["x"].sum(axis=1, dtype=np.float32)}


class CallersMachine(RuleBasedStateMachine):
    """Random callers; time passes only when a rule says so."""

    stage: Stage
    inline: bool

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Asked] = []
        self.entered = 0

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
        assert self.stage.clock.arrived.acquire(timeout=30)
        self.settle()

    @rule(seconds=st.sampled_from([0.0005, 0.002, 0.006]))
    def time_passes(self, seconds: float) -> None:
        self.stage.clock.advance(seconds)
        self.settle()

    @rule(seconds=st.sampled_from([0.002, 0.006]))
    def the_serving_thread_is_busy(self, seconds: float) -> None:
        self.stage.clock.spend(seconds)

    @precondition(lambda self: not self.inline and self.entered)
    @rule()
    def a_batch_comes_back(self) -> None:
        self.finish()

    @invariant()
    def nobody_is_settled_twice(self) -> None:
        assert all(len(asked.settlements) <= 1 for asked in self.asked)

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
            for asked in self.asked:
                self.check(asked)
            self.check_end()

    def refusal(self, asked: Asked) -> type[HeadraceError]:
        """What a request is refused with."""
        raise NotImplementedError

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
            assert isinstance(asked.settlement, self.refusal(asked))

    def check_end(self) -> None:
        """What must be true when all is over."""
        counted = self.stage.batcher.statistics
        assert sum(counted.latencies.counts) == counted.requests
        if all(len(asked.values) <= 8 for asked in self.asked):  # parts of larger ones count themselves
            ended = counted.requests + counted.failures + counted.refused + counted.cancelled
            assert ended == len(self.asked)
