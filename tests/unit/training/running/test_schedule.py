"""When something is due is a table of truth."""

from __future__ import annotations

import pytest

from headrace.training.running.schedule import Every, Mark, is_due, seconds_until


@pytest.mark.parametrize(
    ("every", "last", "now", "due"),
    [
        (Every(), Mark(0, 0.0), Mark(10**9, 1e9), False),
        (Every(rows=100), Mark(0, 0.0), Mark(99, 0.0), False),
        (Every(rows=100), Mark(0, 0.0), Mark(100, 0.0), True),
        (Every(rows=100), Mark(130, 0.0), Mark(199, 0.0), False),
        (Every(rows=100), Mark(130, 0.0), Mark(201, 0.0), True),
        (Every(seconds=5.0), Mark(1, 0.0), Mark(2, 4.9), False),
        (Every(seconds=5.0), Mark(1, 0.0), Mark(2, 5.0), True),
        (Every(seconds=5.0), Mark(2, 0.0), Mark(2, 99.0), False),
        (Every(rows=100, seconds=5.0), Mark(0, 0.0), Mark(1, 6.0), True),
        (Every(rows=100, seconds=5.0), Mark(0, 0.0), Mark(100, 0.1), True),
    ],
)
def test_rows_count_from_the_start_and_seconds_from_the_last_time(
    every: Every, last: Mark, now: Mark, due: bool
) -> None:
    assert is_due(every, last, now) is due


@pytest.mark.parametrize(
    ("every", "last", "now", "seconds"),
    [
        (Every(rows=100), Mark(0, 0.0), Mark(99, 9.0), None),
        (Every(seconds=5.0), Mark(1, 1.0), Mark(2, 2.0), 4.0),
        (Every(seconds=5.0), Mark(1, 1.0), Mark(2, 99.0), 0.0),
        (Every(seconds=5.0), Mark(2, 1.0), Mark(2, 99.0), None),
    ],
)
def test_without_more_rows_only_seconds_pass(
    every: Every, last: Mark, now: Mark, seconds: float | None
) -> None:
    assert seconds_until(every, last, now) == seconds
