"""The decision what to batch, as a truth table; tests/properties holds what is true of every queue."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from headrace.batching.plan import BatchLimits, Release, plan

NOW = 100.0


@dataclass(eq=False)
class Waiting:
    name: str
    rows: int = 1
    deadline: float = math.inf
    enqueued: float = NOW
    wanted: bool = True


def item(
    name: str, rows: int = 1, *, due: float = math.inf, waited: float = 0.0, gone: bool = False
) -> Waiting:
    return Waiting(name, rows, NOW + due, NOW - waited, not gone)


EAGER = BatchLimits(8)
PATIENT = BatchLimits(8, max_wait_seconds=0.010, run_seconds=0.004)

FULL, IDLE, WAITED, DEADLINE = Release.FULL, Release.IDLE, Release.WAITED, Release.DEADLINE
Row = tuple[str, list[Waiting], BatchLimits, str, Release | None, str, str, float | None]

# Intent; queue, limits; who runs, why; who expired, who left; seconds until the next look.
TABLE: list[Row] = [
    ("an empty queue asks for nothing", [], EAGER, "", None, "", "", None),
    ("an empty queue asks for nothing, even with a wait", [], PATIENT, "", None, "", "", None),
    ("a lone request goes at once", [item("a")], EAGER, "a", IDLE, "", "", None),
    ("what is there goes together", [item("a", 2), item("b", 3)], EAGER, "ab", IDLE, "", "", None),
    ("a batch that is exactly full says so", [item("a", 4), item("b", 4)], EAGER, "ab", FULL, "", "", None),
    ("what does not fit stays", [item("a", 5), item("b", 4)], EAGER, "a", FULL, "", "", None),
    (
        "nothing overtakes what does not fit, although it would fit itself",
        [item("a", 5), item("b", 4), item("c", 1)], EAGER, "a", FULL, "", "", None,
    ),
    ("one larger than the limit goes alone", [item("a", 20), item("b")], EAGER, "a", FULL, "", "", None),
    ("one larger than the limit joins nobody", [item("a"), item("b", 20)], EAGER, "a", FULL, "", "", None),
    ("an expired request is not run", [item("a", due=-1), item("b")], EAGER, "b", IDLE, "a", "", None),
    ("a deadline is over when it is reached", [item("a", due=0.0)], EAGER, "", None, "a", "", None),
    ("an abandoned request is not run", [item("a", gone=True), item("b")], EAGER, "b", IDLE, "", "a", None),
    (
        "one that left and expired counts as left",
        [item("a", due=-1, gone=True)], EAGER, "", None, "", "a", None,
    ),
    (
        "those dropped take no room in the batch",
        [item("a", 8, gone=True), item("b", 8, due=-1), item("c", 8)], EAGER, "c", FULL, "b", "a", None,
    ),
    (
        "behind the batch nobody is looked at",
        [item("a", 8), item("b", 8), item("c", due=-1)], EAGER, "a", FULL, "", "", None,
    ),
    (
        "with a wait, a young request is held back until it has waited",
        [item("a", waited=0.003)], PATIENT, "a", None, "", "", 0.007,
    ),
    (
        "the oldest decides how long",
        [item("a", waited=0.009), item("b", waited=0.001)], PATIENT, "ab", None, "", "", 0.001,
    ),
    ("who has waited long enough goes", [item("a", waited=0.010)], PATIENT, "a", WAITED, "", "", None),
    ("a full batch waits for nobody", [item("a", 8)], PATIENT, "a", FULL, "", "", None),
    (
        "a batch whose next request does not fit waits for nobody",
        [item("a", 7), item("b", 2)], PATIENT, "a", FULL, "", "", None,
    ),
    (
        "waiting ends where it would cost a deadline, the run included",
        [item("a"), item("b", due=0.006)], PATIENT, "ab", None, "", "", 0.002,
    ),
    ("no time to wait: it goes now", [item("a", due=0.004)], PATIENT, "a", DEADLINE, "", "", None),
    (
        "who has waited and is due has waited",
        [item("a", waited=0.010, due=0.001)], PATIENT, "a", WAITED, "", "", None,
    ),
    (
        "dropping the oldest lets the next one wait its own time",
        [item("a", waited=0.010, gone=True), item("b", waited=0.004)], PATIENT, "b", None, "", "a", 0.006,
    ),
]  # fmt: skip


def names(items: list[Waiting]) -> str:
    return "".join(item.name for item in items)


@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_the_plan(row: Row) -> None:
    _, queue, limits, run, release, expired, abandoned, look_again = row
    made = plan(queue, NOW, limits)
    assert (names(made.run), made.release) == (run, release)
    assert (names(made.expired), names(made.abandoned)) == (expired, abandoned)
    assert made.taken == len(made.run) + len(made.expired) + len(made.abandoned)
    assert made.rows == sum(item.rows for item in made.run)
    assert made.wake_at == (None if look_again is None else pytest.approx(NOW + look_again, abs=1e-12))


def test_a_batch_at_its_wake_time_is_released() -> None:
    """Whoever looks again when told to does not have to look a third time."""
    queue = [item("a", waited=0.003), item("b", due=0.006)]
    wake_at = plan(queue, NOW, PATIENT).wake_at
    assert wake_at is not None
    assert plan(queue, wake_at, PATIENT).release is Release.DEADLINE
