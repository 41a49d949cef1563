"""Whatever comes, leaves, fails and expires: each request is settled once, and right, and nothing stays."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.batching.request import NO_DEADLINE, Answer
from headrace.config import BatchingPolicy
from headrace.errors import DeadlineExceeded, ModelError, Overloaded, TooLarge
from headrace.tensors import Tensors
from tests.unit.batching.stage import Asked, Model, Stage

POISON = -666.0
CALL_SECONDS, ROW_SECONDS = 0.001, 0.0005


def answer(inputs: Tensors) -> Tensors:
    if (inputs["x"] == POISON).any():
        raise ValueError("poison")
    return {"y": inputs["x"].sum(axis=1, dtype=np.float32)}


class BatcherMachine(RuleBasedStateMachine):
    """Random callers against one Batcher; time passes only when a rule says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Asked] = []
        self.unseen: set[float] = set()  # marks of requests that left before they were in a batch
        self.marks = iter(range(1, 1 << 20))
        self.entered = 0

    @initialize(
        instances=st.integers(1, 3),
        inline=st.booleans(),
        max_wait=st.sampled_from([0.0, 0.004]),
        allowed=st.sampled_from([(), (8,), (2, 5, 8)]),
        pads=st.booleans(),
    )
    def build(
        self, instances: int, inline: bool, max_wait: float, allowed: tuple[int, ...], pads: bool
    ) -> None:
        policy = BatchingPolicy(
            max_batch_rows=8,
            max_batch_seconds=0.003,
            max_wait_seconds=max_wait,
            allowed_batch_rows=allowed,
            max_queue_rows=30,
            pad_variable_length=pads,
        )
        self.inline = inline
        self.stage = Stage(policy, model=Model(answer=answer), instances=instances, inline=inline)
        if inline:
            # A batch that runs where it stands takes its time from the serving thread.
            self.stage.model.spend = lambda rows: self.stage.clock.spend(CALL_SECONDS + ROW_SECONDS * rows)

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

    # --- what may happen ---

    @rule(
        rows=st.integers(1, 32),
        length=st.integers(1, 3),
        within=st.sampled_from([NO_DEADLINE, NO_DEADLINE, 0.0, 0.002, 0.010]),
        poisoned=st.integers(0, 5).map(lambda drawn: drawn == 0),
        again=st.integers(0, 5).map(lambda drawn: drawn == 0),
        turn=st.booleans(),
    )
    def ask(self, rows: int, length: int, within: float, poisoned: bool, again: bool, turn: bool) -> None:
        values = np.full((rows, length), float(next(self.marks)), np.float32)
        values[:, 1:] = np.arange(rows).reshape(-1, 1) / 2  # so that rows in another order are noticed
        if poisoned:
            values[-1, -1] = POISON

        def then() -> None:
            if again:
                self.asked.append(self.stage.ask([float(next(self.marks))], within=within))

        self.asked.append(self.stage.ask(values, within=within, then=then))
        if turn:
            self.settle()

    @precondition(lambda self: any(not asked.settlements and not asked.gone for asked in self.asked))
    @rule(data=st.data(), politely=st.booleans())
    def leave(self, data: st.DataObject, politely: bool) -> None:
        waiting = [asked for asked in self.asked if not asked.settlements and not asked.gone]
        asked = data.draw(st.sampled_from(waiting))
        mark = float(asked.values[0, 0])
        asked.gone = True
        if politely:
            asked.request.abandon()
        if mark != POISON and not self.stage.model.ran(mark):
            self.unseen.add(mark)

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

    # --- what must be true ---

    @invariant()
    def nobody_is_settled_twice(self) -> None:
        assert all(len(asked.settlements) <= 1 for asked in self.asked)

    @invariant()
    def who_left_before_it_ran_never_runs(self) -> None:
        if self.unseen:
            ran = {float(mark) for call in self.stage.model.calls for mark in call[:, 0]}
            assert not self.unseen & ran

    @invariant()
    def no_batch_is_larger_than_allowed(self) -> None:
        if self.asked:
            sizes = set(self.stage.model.rows)
            assert all(rows <= 8 for rows in sizes)
            assert not self.stage.batcher._policy.allowed_batch_rows or sizes <= set(
                self.stage.batcher._policy.allowed_batch_rows
            )

    @invariant()
    def rows_are_counted_right(self) -> None:
        if self.asked:
            lanes = list(self.stage.batcher._lanes.values())
            queued = sum(request.rows for lane in lanes for request in lane.queue)
            following = sum(
                part.rows for lane in lanes for parts in lane.following.values() for part in parts
            )
            assert self.stage.batcher.queued_rows == queued + following
            assert all(set(lane.following) <= set(lane.queue) for lane in lanes)

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
            assert isinstance(asked.settlement, TooLarge if len(asked.values) > 30 else Overloaded)

    def check_statistics(self) -> None:
        counted = self.stage.batcher.statistics
        refused = [
            asked for asked in self.asked if asked.settlements and isinstance(asked.settlement, Overloaded)
        ]
        assert counted.refused >= len(refused)
        assert sum(counted.latency_counts) == counted.requests
        assert sum(counted.releases.values()) == counted.batches
        assert sum(calls for calls, _ in counted.batch_rows.values()) == counted.batches
        small = [asked for asked in self.asked if len(asked.values) <= 8]
        if len(small) == len(self.asked):  # parts of larger ones count as requests of their own
            ended = counted.requests + counted.failures + counted.refused + counted.cancelled
            assert ended == len(self.asked)


TestBatcher = BatcherMachine.TestCase
TestBatcher.settings = settings(max_examples=120, stateful_step_count=40)
