"""The numbers that operators see add up."""

from __future__ import annotations

import pytest

from headrace.batching.latencies import BOUNDS_SECONDS
from headrace.config import BatchingPolicy
from tests.unit.batching.stage import Stage


def test_time_is_counted_where_it_was_spent() -> None:
    with Stage(BatchingPolicy(max_batch_rows=2)) as stage:
        first = stage.ask([1.0])
        stage.turn(enter=1)
        stage.clock.advance(0.002)
        second, third = stage.ask([2.0]), stage.ask([3.0])
        stage.clock.advance(0.004)
        stage.finish(enter=1)
        stage.clock.advance(0.010)
        stage.finish()
        counted = stage.batcher.statistics
        assert (counted.requests, counted.rows, counted.batches) == (3, 3, 2)
        assert counted.compute_seconds == pytest.approx(0.006 + 0.010)
        assert counted.queue_seconds == pytest.approx(2 * 0.004)
        assert counted.request_seconds == pytest.approx(0.006 + 2 * 0.014)
        assert counted.batch_rows == {1: [1, pytest.approx(0.006)], 2: [1, pytest.approx(0.010)]}
        assert sum(counted.releases.values()) == counted.batches
        assert sum(counted.latencies.counts) == counted.requests
        timings = second.settlement.timings
        assert timings is third.settlement.timings
        assert timings.finished - timings.started == pytest.approx(0.010)
        assert first.settlement.timings.requests == 1


def test_the_parts_of_a_split_request_have_waited_since_it_came() -> None:
    with Stage(BatchingPolicy(max_batch_rows=2)) as stage:
        stage.occupy()
        stage.ask([1.0] * 4)
        stage.clock.advance(0.010)
        for enter in (1, 1, 0):
            stage.finish(enter=enter)
        assert stage.batcher.statistics.queue_seconds == pytest.approx(2 * 0.010)


def test_latencies_fall_into_the_buckets_that_end_at_or_above_them() -> None:
    with Stage() as stage:
        for seconds in (0.0004, 0.0006, 0.04, 11.0):
            stage.ask([1.0])
            stage.turn(enter=1)
            stage.clock.spend(seconds)
            stage.finish()
        counts = stage.batcher.statistics.latencies.by_bound()
        found = [BOUNDS_SECONDS[index] for index, count in enumerate(counts) if count]
        for seconds, end in zip((0.0004, 0.0006, 0.04, 11.0), found, strict=True):
            assert end / 2 ** (1 / 8) < seconds <= end


def test_each_ending_is_counted_once() -> None:
    with Stage(BatchingPolicy(max_queue_rows=4)) as stage:
        stage.occupy()
        late, gone, stays = stage.ask([1.0], within=0.010), stage.ask([2.0]), stage.ask([3.0])
        refused = stage.ask([4.0] * 9)
        gone.gone = True
        stage.clock.advance(0.020)
        stage.finish(enter=1)
        stage.finish()
        counted = stage.batcher.statistics
        assert (counted.requests, counted.failures, counted.cancelled, counted.refused) == (2, 1, 1, 1)
        assert counted.failure_seconds == pytest.approx(0.020)
        assert stays.sums == [3.0]
        assert late.error
        assert refused.error
