"""What is true of every plan, whatever the queue."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from headrace.batching.plan import BatchLimits, Release, plan

NOW = 50.0


@dataclass
class Waiting:
    rows: int
    deadline: float
    enqueued: float
    wanted: bool


near = st.floats(NOW - 1, NOW + 1)
queues = st.lists(
    st.builds(Waiting, st.integers(1, 12), near | st.just(math.inf), st.floats(NOW - 1, NOW), st.booleans())
).map(lambda queue: sorted(queue, key=lambda item: item.enqueued))
limits = st.builds(BatchLimits, st.integers(1, 16), st.just(0.0) | st.floats(0.0, 1.0), st.floats(0.0, 0.5))


@given(queues, limits)
def test_a_plan_is_pure(queue: list[Waiting], limits: BatchLimits) -> None:
    before = copy.deepcopy(queue)
    made = plan(queue, NOW, limits)
    again = plan(queue, NOW, limits)
    assert made == again
    assert queue == before


@given(queues, limits)
def test_every_item_of_the_head_has_exactly_one_fate(queue: list[Waiting], limits: BatchLimits) -> None:
    made = plan(queue, NOW, limits)
    head = [id(item) for item in queue[: made.taken]]
    fates = [id(item) for item in (*made.run, *made.expired, *made.abandoned)]
    assert sorted(fates) == sorted(head)
    assert all(item.wanted and item.deadline > NOW for item in made.run)
    assert all(item.wanted and item.deadline <= NOW for item in made.expired)
    assert not any(item.wanted for item in made.abandoned)
    for fate in (made.run, made.expired, made.abandoned):
        order = [head.index(id(item)) for item in fate]
        assert order == sorted(order)


@given(queues, limits)
def test_nothing_overtakes_and_nothing_is_left_that_fits(queue: list[Waiting], limits: BatchLimits) -> None:
    made = plan(queue, NOW, limits)
    assert made.rows == sum(item.rows for item in made.run)
    assert made.rows <= limits.max_rows or len(made.run) == 1
    rest = queue[made.taken :]
    if rest:
        assert made.run
        assert rest[0].wanted
        assert rest[0].deadline > NOW
        assert made.rows + rest[0].rows > limits.max_rows


@given(queues, limits)
def test_a_batch_goes_now_or_is_looked_at_later_never_neither(
    queue: list[Waiting], limits: BatchLimits
) -> None:
    made = plan(queue, NOW, limits)
    if not made.run:
        assert made.release is None
        assert made.wake_at is None
    elif made.release is None:
        assert limits.max_wait_seconds > 0
        assert made.wake_at is not None
        assert NOW < made.wake_at <= made.run[0].enqueued + limits.max_wait_seconds
        assert made.taken == len(queue)
        later = plan(queue, made.wake_at, limits)
        assert later.release is not None or later.expired
    else:
        assert made.wake_at is None
        assert (made.release is Release.FULL) == (made.rows >= limits.max_rows or made.taken < len(queue))


@given(queues, st.integers(1, 16))
def test_without_a_wait_in_the_policy_what_can_run_runs(queue: list[Waiting], max_rows: int) -> None:
    made = plan(queue, NOW, BatchLimits(max_rows))
    assert (made.release is not None) == any(item.wanted and item.deadline > NOW for item in queue)
