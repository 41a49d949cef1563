"""The load as a truth table: what is asked, what it costs, what there is of it."""

from __future__ import annotations

import pytest

from headrace.batching.capacity import (
    Fit,
    LoadReport,
    ModelDemand,
    ServerDemand,
    batch_in_time,
    report_of_workers,
    server_load,
)

IDLE = ServerDemand(serving=0.0, working=0.0, processors=2.0)
# 1,000 rows a second in batches of 10 that take 4 ms: 0.4 of an instance.
MODEL = ModelDemand(1000.0, 10.0, 0.004, instances=2)
INLINE = ModelDemand(1000.0, 10.0, 0.004, instances=2, is_inline=True)
ALONE = ModelDemand(1000.0, 10.0, 0.004, instances=1)
THREADED = ModelDemand(1000.0, 10.0, 0.004, instances=2, threads=2)


@pytest.mark.parametrize(
    ("models", "server", "load"),
    [
        ([], IDLE, 0.0),
        ([MODEL], IDLE, 0.2),  # of two processors
        ([ALONE], IDLE, 0.4),  # of one instance
        ([INLINE], IDLE, 0.4),  # of the serving thread
        ([THREADED], IDLE, 0.4),  # both processors while it runs
        ([MODEL, MODEL, MODEL], IDLE, 0.6),  # models share the processors
        ([INLINE, INLINE], IDLE, 0.8),  # and the serving thread
        ([ALONE, MODEL], IDLE, 0.4),
        ([], ServerDemand(0.7, 0.9, 2.0), 0.7),  # decoding
        ([], ServerDemand(0.5, 1.8, 2.0), 0.9),  # other threads
        ([INLINE], ServerDemand(0.5, 0.5, 2.0), 0.9),
        ([MODEL], ServerDemand(0.5, 1.4, 2.0), 0.9),
        ([ModelDemand(10_000.0, 10.0, 0.004, instances=4)], IDLE, 2.0),  # twice what can be answered
    ],
)
def test_the_load_is_that_of_what_runs_out_first(
    models: list[ModelDemand], server: ServerDemand, load: float
) -> None:
    assert server_load(models, server) == pytest.approx(load)


FITTED = Fit(0.001, 0.0001)
LONE = Fit(0.0011, 0.0)  # only batches of one row were seen


@pytest.mark.parametrize(
    ("now", "warmed", "usual_rows", "objective", "rows", "seconds"),
    [
        # 10 ms are two batches of 5 ms: 40 rows.
        (FITTED, None, 4.0, 0.010, 40.0, 0.005),
        (FITTED, FITTED, 4.0, 0.010, 40.0, 0.005),
        # All that is allowed fits.
        (FITTED, None, 4.0, 10.0, 256.0, 0.0266),
        # Not even the call itself fits: one row at a time is the best there is.
        (FITTED, None, 4.0, 0.001, 1.0, 0.0011),
        # Nobody knows what a second row costs: none is believed to be free.
        (LONE, None, 1.0, 0.010, 1.0, 0.0011),
        (LONE, None, 0.0, 0.010, 1.0, 0.0011),
        # The warm-up knows it.
        (LONE, FITTED, 1.0, 0.010, 40.0, 0.005),
        # The machine is half as fast as it was then.
        (Fit(0.0022, 0.0), FITTED, 1.0, 0.010, 15.0, 0.005),
        # What batches cost now is more than the warm-up says: that counts.
        (Fit(0.001, 0.0004), FITTED, 10.0, 0.010, 10.0, 0.005),
        # A warm-up that took no time says nothing.
        (LONE, Fit(0.0, 0.0), 2.0, 0.010, 2.0, 0.0011),
    ],
)
def test_batches_are_as_large_as_leaves_requests_in_time(
    now: Fit, warmed: Fit | None, usual_rows: float, objective: float, rows: float, seconds: float
) -> None:
    found = batch_in_time(now, warmed, usual_rows, 256, objective)
    assert found == (pytest.approx(rows), pytest.approx(seconds))


@pytest.mark.parametrize(
    ("reports", "whole"),
    [
        ([], None),
        ([None, None], None),
        ([LoadReport(0.5, 10.0, 1.0)], LoadReport(0.5, 10.0, 1.0)),
        ([None, LoadReport(0.5, 10.0, 1.0)], LoadReport(0.5, 10.0, 1.0)),
        ([LoadReport(0.5, 10.0, 1.0), LoadReport(0.9, 20.0, 0.0)], LoadReport(0.9, 30.0, 1.0)),
    ],
)
def test_a_server_of_workers_is_as_loaded_as_the_busiest(
    reports: list[LoadReport | None], whole: LoadReport | None
) -> None:
    assert report_of_workers(reports) == whole
