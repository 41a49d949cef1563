"""Whatever comes, leaves, fails and expires: each request is settled once, and right, and nothing stays."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from headrace.base.errors import HeadraceError, Overloaded, TooLarge
from headrace.batching.request import NO_DEADLINE
from headrace.config import BatchingPolicy
from tests.unit.batching.machine import CALL_SECONDS, POISON, ROW_SECONDS, CallersMachine, answer
from tests.unit.batching.stage import Asked, Model, Stage


class BatcherMachine(CallersMachine):
    """Random callers against one Batcher; time passes only when a rule says so."""

    def __init__(self) -> None:
        super().__init__()
        self.unseen: set[float] = set()  # marks of requests that left before they were in a batch
        self.marks = iter(range(1, 1 << 20))

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

    # --- what must be true ---

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

    def refusal(self, asked: Asked) -> type[HeadraceError]:
        return TooLarge if len(asked.values) > 30 else Overloaded

    def check_end(self) -> None:
        super().check_end()
        counted = self.stage.batcher.statistics
        refused = [
            asked for asked in self.asked if asked.settlements and isinstance(asked.settlement, Overloaded)
        ]
        assert counted.refused >= len(refused)
        assert sum(counted.releases.values()) == counted.batches
        assert sum(calls for calls, _ in counted.batch_rows.values()) == counted.batches


TestBatcher = BatcherMachine.TestCase
TestBatcher.settings = settings(max_examples=120, stateful_step_count=40)
