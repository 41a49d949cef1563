"""What a soak comes to: which part of it is judged, and how faults are counted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.soak.judging import Episode
from benchmarks.soak.ledger import Outcome
from benchmarks.soak.memory import MIB, Sample
from benchmarks.soak.report import fault_table, is_well, judged_trends
from benchmarks.soak.running import Course

SECONDS = 600.0


def course(threads: Callable[[float], float], took_seconds: Callable[[float], float]) -> Course:
    """A soak with one process whose threads, and answers, depend on the time like this."""
    made = Course(1, SECONDS)
    for at in map(float, range(0, 600, 2)):
        made.samples.append(Sample(at, "plain", "plain", 7, 100 * MIB, 50, int(threads(at))))
        number = made.ledger.open(("plain", "OIP gRPC"))
        made.ledger.close(number, Outcome.RIGHT, at, took_seconds(at))
    return made


@pytest.mark.parametrize(
    ("threads", "took_seconds", "grows"),
    [
        (lambda _: 20, lambda _: 0.01, []),
        (lambda at: 20 + at / 10, lambda _: 0.01, ["plain 7, threads"]),
        (lambda _: 20, lambda at: max(at - 280, 0) / 100, ["plain: p99"]),
        (lambda at: min(at, 300.0), lambda at: min(at, 300.0), []),
        # Until the faults end this is not too much; until the end of the soak it were.
        (lambda at: 20 + 0.015 * at, lambda _: 0.01, []),
        (lambda _: 20, lambda at: max(1.35 + (at - 300) / 100, 0.0), []),
    ],
    ids=[
        "steady",
        "threads grow",
        "p99 grows",
        "both grow before",
        "threads grow slowly",
        "p99 grows slowly",
    ],
)
def test_the_second_half_is_judged_until_the_faults_end(
    threads: Callable[[float], float], took_seconds: Callable[[float], float], grows: list[str]
) -> None:
    found = course(threads, took_seconds)
    assert [trend.what for trend in judged_trends(found) if not trend.is_flat] == grows
    assert len(judged_trends(found)) == 4
    assert is_well(found) is (not grows)


def test_faults_are_counted_as_they_were_done() -> None:
    found = course(lambda _: 20, lambda _: 0.01)
    found.episodes = [Episode("stop (worker)", "workers", 1.0, ()), Episode("kill server", "plain", 5.0, ())]
    found.done["publish"] = 3
    found.ledger.close(
        found.ledger.open(("plain", "OIP REST")), Outcome.LOST, 5.0, 0.1, "kill server: its process ended"
    )
    assert fault_table(found)[1:] == [
        ("kill server", "1", "1", "0", "0"),
        ("publish", "3", "0", "0", "0"),
        ("stop (worker)", "1", "0", "0", "0"),
    ]
