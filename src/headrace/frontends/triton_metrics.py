"""Triton's names for what headrace counts, so that the boards and alerts that read them go on working.

Names and labels are those of its documentation (``docs/user_guide/metrics.md``); docs/metrics.md says which
are not given, and why. Made only where the operator asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from headrace.batching.statistics import VersionStatistics

_MICROSECONDS = 1e6


class Counter(NamedTuple):
    """One of its counters.

    Attributes:
        name: As there.
        value: What it counts.
        reason: The label of a failure; "" for none.
        of_cache: Whether only versions with a prediction cache have it.
    """

    name: str
    value: Callable[[VersionStatistics], float]
    reason: str = ""
    of_cache: bool = False


def _microseconds(seconds: float) -> int:
    return int(seconds * _MICROSECONDS)


FAILURE = "nv_inference_request_failure"
COUNTERS = (
    Counter("nv_inference_request_success", lambda of: of.requests),
    # REJECTED is there what waited for too long in the scheduler. Nothing waits so long here: it is refused.
    Counter(FAILURE, lambda of: of.refused, "REJECTED"),
    Counter(FAILURE, lambda of: of.cancelled, "CANCELED"),
    Counter(FAILURE, lambda of: of.failures, "BACKEND"),
    Counter(FAILURE, lambda of: 0, "OTHER"),
    Counter("nv_inference_count", lambda of: of.rows),
    Counter("nv_inference_exec_count", lambda of: of.batches),
    Counter("nv_inference_request_duration_us", lambda of: _microseconds(of.request_seconds)),
    Counter("nv_inference_queue_duration_us", lambda of: _microseconds(of.queue_seconds)),
    # Summed over requests, as there: each of a batch has waited for the whole of it.
    Counter(
        "nv_inference_compute_infer_duration_us",
        lambda of: _microseconds(of.request_seconds) - _microseconds(of.queue_seconds),
    ),
    Counter("nv_cache_num_hits_per_model", lambda of: of.cache_hits + of.cache_joined, of_cache=True),
    Counter("nv_cache_num_misses_per_model", lambda of: of.cache_misses, of_cache=True),
)


def by_name() -> Iterator[tuple[str, list[Counter]]]:
    """The counters of each name, which come one after another in a scrape."""
    names = dict.fromkeys(one.name for one in COUNTERS)
    for name in names:
        yield name, [one for one in COUNTERS if one.name == name]
