"""The p99 of right answers over time, and whether it grows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from benchmarks.soak.ledger import Ended, Outcome
from benchmarks.soak.memory import Trend, fitted

SLOT_SECONDS = 5.0
LEAST_SLOTS = 12
"""Of fewer slots no trend is told."""
LEAST_MS = 50.0
SHARE = 1.0
"""A p99 may double: see ``latency_trend``."""

Span = tuple[float, float]
"""From when until when, in seconds since the beginning."""


def p99s(ended: Iterable[Ended], server: str) -> list[tuple[float, float]]:
    """The p99 of a server's right answers in each slot of five seconds.

    Returns:
        When each slot begins, and its p99 in milliseconds, in the order of time; slots without answers are
        left out.
    """
    slots: dict[int, list[float]] = {}
    for one in ended:
        if one.place[0] == server and one.outcome is Outcome.RIGHT:
            slots.setdefault(int(one.at_seconds / SLOT_SECONDS), []).append(one.took_seconds * 1e3)
    return [(slot * SLOT_SECONDS, float(np.percentile(slots[slot], 99))) for slot in sorted(slots)]


def latency_trend(
    server: str, points: Sequence[tuple[float, float]], judged: Span, faults: Sequence[Span]
) -> Trend | None:
    """The trend of a server's p99, from slot to slot.

    The line is that of Theil and Sen, as for memory. A slot counts if no fault of the server touches it: a
    server that was suspended for two seconds has a p99 of two seconds, whatever its trend is. Between the
    remaining slots the p99 still varies by a factor of ten, because versions load and the clients compute on
    the same cores. With a hundred slots, the line's growth then has a standard deviation of a quarter of the
    median. So p99 may double, which is four times that, or grow by 50 ms where it is small. A server whose
    requests become slower with each version or fault grows by more, and so does one on a machine whose other
    work grows.

    Args:
        server: Its name.
        points: The p99 of its slots.
        judged: The time that is judged.
        faults: When something was done to the server.

    Returns:
        The trend; None if there are too few slots.
    """
    since, until = judged
    kept = [
        (at, p99)
        for at, p99 in points
        if since <= at
        and at + SLOT_SECONDS <= until
        and not any(began < at + SLOT_SECONDS and at < over for began, over in faults)
    ]
    if len(kept) < LEAST_SLOTS:
        return None
    return fitted(f"{server}: p99", "ms", kept, LEAST_MS, SHARE)
