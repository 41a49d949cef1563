"""When a process is started again, and what its end is called."""

from __future__ import annotations

import signal

import pytest

from headrace.isolation.replica_restarts import (
    MOST_AT_ONCE,
    STEADY_SECONDS,
    WINDOW_SECONDS,
    Restarts,
    ending_of,
    pause_before,
)
from tests.virtual_clock import VirtualClock


@pytest.mark.parametrize(
    ("ends", "pause"),
    [
        ([100.0], 0.0),
        ([99.0, 100.0], 1.0),
        ([98.0, 99.0, 100.0], 2.0),
        ([97.0, 98.0, 99.0, 100.0], 4.0),
        ([96.0, 97.0, 98.0, 99.0, 100.0], 60.0),
        ([100.0 - WINDOW_SECONDS, 100.0], 0.0),
        ([100.0 - WINDOW_SECONDS + 1, 100.0], 1.0),
    ],
)
def test_pauses_double_up_to_the_longest(ends: list[float], pause: float) -> None:
    assert pause_before(ends, 100.0, 60.0) == pause


def test_no_pause_is_longer_than_the_longest() -> None:
    assert pause_before([1.0] * 4, 1.0, 1.5) == 1.5
    assert pause_before([1.0] * MOST_AT_ONCE, 1.0, 1.5) == 1.5


def test_the_ends_of_all_processes_of_a_version_count_together() -> None:
    restarts = Restarts(60.0, lambda: 100.0)
    assert [restarts.count(reason) for reason in ("killed", "crash", "crash")] == [0.0, 1.0, 2.0]
    assert restarts.counts == {"killed": 1, "crash": 2}
    assert restarts.lately == 3


def test_a_leak_is_replaced_without_a_pause_and_what_is_soon_too_large_with_one() -> None:
    restarts = Restarts(60.0, lambda: 100.0)
    assert [restarts.count_grown(STEADY_SECONDS) for _ in range(10)] == [0.0] * 10
    assert restarts.lately == 0
    soon = [restarts.count_grown(STEADY_SECONDS - 1) for _ in range(MOST_AT_ONCE)]
    assert soon == [0.0, 1.0, 2.0, 4.0, 60.0]
    assert restarts.count_grown(STEADY_SECONDS) == 0.0
    assert restarts.counts == {"memory": 16}


def test_only_ends_within_the_window_count_as_recent() -> None:
    clock = VirtualClock()
    restarts = Restarts(60.0, clock.now)
    for _ in range(2):
        restarts.count("crash")
    clock.advance(WINDOW_SECONDS - 1)
    restarts.count("crash")
    assert restarts.lately == 3
    clock.advance(1)
    assert restarts.lately == 1


@pytest.mark.parametrize(
    ("code", "reason", "said"),
    [
        (0, "exit", "ended by itself with exit code 0"),
        (3, "exit", "ended by itself with exit code 3"),
        (-signal.SIGSEGV, "crash", "was ended by SIGSEGV"),
        (
            -signal.SIGKILL,
            "killed",
            "was ended by SIGKILL (by a user, or by the system when out of memory)",
        ),
        (-63, "crash", "was ended by signal 63"),
    ],
)
def test_an_exit_code_says_how_it_ended(code: int, reason: str, said: str) -> None:
    assert ending_of(code) == (reason, said)
