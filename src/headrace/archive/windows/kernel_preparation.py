"""Compiles or loads the kernels of counters before a feed needs them."""

from __future__ import annotations

import numpy as np

from headrace.archive.model.window_settings import Window
from headrace.archive.windows.bucket_plan import BucketPlan
from headrace.archive.windows.counters import Counters
from headrace.archive.windows.kernels import JUMP_ROWS, CountedRows


def run_once() -> None:
    """Count some rows and restore a state, which calls all kernels with all types of arguments."""
    plan = BucketPlan.of([Window(sum="x", seconds=1), Window(count=True, seconds=2)], 1)
    counters = Counters(plan, ahead_buckets=1, max_cells=10**6)
    for bucket in (1, 2, 9):
        rows = CountedRows(
            np.repeat(counters.slots_of(["key"]), JUMP_ROWS),
            np.full(JUMP_ROWS, bucket, np.int64),
            np.ones((JUMP_ROWS, len(plan.measures)), np.uint8),
            np.ones((JUMP_ROWS, plan.sums)),
        )
        list(counters.take(rows))
    again = Counters(plan, ahead_buckets=1, max_cells=10**6)
    again.restore(counters.state(), plan)
    list(again.finish())
