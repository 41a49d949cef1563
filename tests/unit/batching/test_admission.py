"""Whom the queue takes: how far predicted waits are believed, and what is refused before it is read."""

from __future__ import annotations

import pytest

from headrace.base.errors import Overloaded
from headrace.batching.admission import Caution, never_fits, queue_full, too_late
from headrace.batching.request import NO_DEADLINE, Request
from headrace.config import BatchingPolicy
from tests.unit.batching.stage import SUMS, Stage


def waited(begun: float, deadline: float) -> Request:
    layout, columns, rows = SUMS.check({"x": [[1.0]]})
    request = Request(layout, columns, rows, lambda _: True, deadline=deadline)
    request.enqueued = begun
    return request


@pytest.mark.parametrize(
    ("deadline", "started", "ended", "grows"),
    [
        (10.0, 6.0, 8.5, True),  # most of its time was waiting, and it was late
        (10.0, 6.0, 7.5, False),  # it was in time
        (10.0, 1.0, 8.5, False),  # it took long because it was computed for long
        (10.0, 11.0, 11.0, True),  # it waited until nobody wanted it any more
        (NO_DEADLINE, 6.0, 8.5, False),
    ],
)
def test_only_waits_that_were_too_long_make_cautious(
    deadline: float, started: float, ended: float, grows: bool
) -> None:
    caution = Caution()
    caution.learn([waited(0.0, deadline)], started, ended)
    assert (caution.factor > 1.0) is grows


def test_caution_has_bounds_and_passes() -> None:
    caution = Caution()
    late, timely = waited(0.0, 10.0), waited(0.0, 10.0)
    caution.learn([late] * 1000, 9.0, 9.5)
    assert caution.factor == 8.0
    caution.learn([timely] * 10_000, 1.0, 2.0)
    assert caution.factor == 1.0


def test_one_late_request_of_fifty_keeps_it_where_it_is() -> None:
    caution = Caution()
    caution.learn([waited(0.0, 10.0)] * 10, 9.0, 9.5)
    before = caution.factor
    caution.learn([waited(0.0, 10.0)], 9.0, 9.5)
    caution.learn([waited(0.0, 10.0)] * 50, 1.0, 2.0)
    assert caution.factor == pytest.approx(before)


def test_reasons_name_what_came_and_what_is_allowed() -> None:
    assert too_late(0.02, 0.02) is None
    late = too_late(0.03, 0.02)
    assert isinstance(late, Overloaded)
    assert "30.0 ms" in late.message
    assert "20.0 ms" in late.message
    assert late.retry_after_seconds == pytest.approx(0.01)
    assert "max_queue_rows = 8" in queue_full(7, 2, 8, 1.0).message
    assert "max_queue_rows = 8" in never_fits(9, 8).message


def test_a_queue_whose_requests_come_too_late_takes_fewer_from_then_on() -> None:
    """What it predicts is half of what it takes: requests let in at the edge of their deadline miss it."""
    with Stage(BatchingPolicy(max_batch_rows=1)) as stage:
        stage.knows_cost(0.010, 0.0)
        stage.occupy()
        admitted = [stage.ask([1.0], within=0.050) for _ in range(3)]
        assert [one.settlements for one in admitted] == [[], [], []]
        stage.clock.advance(0.051)
        assert all(one.error is not None for one in admitted)
        stage.finish(1)
        assert stage.batcher.outstanding == 0
        stage.occupy()
        before = stage.batcher.cost.seconds(1)
        assert isinstance(stage.ask([2.0], within=2.1 * before).error, Overloaded), "two would be in time"
        assert stage.ask([2.0], within=4 * before).settlements == []
        stage.finish(1, enter=1)
        stage.finish(1)


def test_what_would_be_refused_whatever_it_has_need_not_be_read() -> None:
    with Stage(BatchingPolicy(max_batch_rows=10)) as stage:
        stage.knows_cost(0.010, 0.001)
        batcher, now = stage.batcher, stage.clock.now
        assert batcher.refusal_unread(now() + 0.001) is None, "nothing is ahead: every request is taken"
        stage.occupy()
        stage.ask([1.0] * 9)
        refused = batcher.statistics.refused
        # Ten rows ahead cost 20 ms, and one row 11 ms.
        assert isinstance(batcher.refusal_unread(now() + 0.030), Overloaded)
        assert batcher.statistics.refused == refused + 1
        assert batcher.refusal_unread(now() + 0.032) is None
        assert batcher.statistics.refused == refused + 1
        stage.finish(1, enter=1)
        stage.finish(1)
