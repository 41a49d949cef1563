"""When a worker is started again, when all is given up, and when a worker is stuck."""

from __future__ import annotations

import pytest

from headrace.workers.restart_rules import End, Silence, alone, gives_up, pause_seconds, silence


@pytest.mark.parametrize(
    ("ages", "seconds"),
    [
        ([0], 0.1),
        ([1, 0], 0.2),
        ([3, 1, 0], 0.4),
        ([9] * 6 + [0], 6.4),
        ([9] * 7 + [0], 10.0),
        ([9] * 500 + [0], 10.0),
        ([70, 65, 0], 0.1),  # long ago
    ],
)
def test_restart_pauses_double_and_reset_after_a_minute(ages: list[float], seconds: float) -> None:
    ends = [End(1, 100.0 - age, ready=True) for age in ages]
    assert pause_seconds(ends, 1, 100.0) == pytest.approx(seconds)
    assert pause_seconds([*ends, End(0, 100.0, ready=True)], 0, 100.0) == 0.1, "another's are not its own"


@pytest.mark.parametrize(
    ("failed", "were_ready", "ago", "ready", "expected"),
    [
        (4, 0, 1.0, 0, False),
        (5, 0, 1.0, 0, True),
        (5, 0, 1.0, 1, False),  # somebody is ready: go on trying
        (5, 0, 61.0, 0, False),  # long ago
        (0, 50, 1.0, 0, False),  # they were ready before they ended
        (5, 50, 1.0, 0, True),
    ],
)
def test_when_the_server_gives_up(
    failed: int, were_ready: int, ago: float, ready: int, expected: bool
) -> None:
    at = 1000.0 - ago
    ends = [End(0, at, ready=False)] * failed + [End(1, at, ready=True)] * were_ready
    assert gives_up(ends, 1000.0, ready=ready) is expected


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        (0, Silence.NONE),
        (1, Silence.NONE),
        (9, Silence.NONE),
        (10, Silence.SUSPECT),
        (29, Silence.SUSPECT),
        (30, Silence.TIMED_OUT),
        (300, Silence.TIMED_OUT),
    ],
)
def test_a_silent_worker_is_suspect_then_timed_out(missed: int, expected: Silence) -> None:
    assert silence(missed, 1.0, 30.0) is expected


@pytest.mark.parametrize(
    ("starting", "answering", "hurried"),
    [
        ([True, True], [False, False], [0, 1]),
        ([True, False], [False, False], [0]),  # the other is stuck, or has ended
        ([True, False], [False, True], []),
        ([False, False], [False, False], []),
        ([False, False], [True, True], []),
    ],
)
def test_loading_workers_are_hurried_only_if_no_worker_answers(
    starting: list[bool], answering: list[bool], hurried: list[int]
) -> None:
    assert alone(starting, answering) == hurried
