"""Triton's names for headrace's counters, so that existing dashboards and alerts keep working.

Names and labels are those of its documentation (``docs/user_guide/metrics.md``). docs/metrics.md lists those
that are missing, with the reasons. They are off unless the operator enables them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from headrace.batching.statistics import VersionStatistics

_MICROSECONDS = 1e6


class Counter(NamedTuple):
    """One of Triton's counters.

    Attributes:
        name: Name in Triton.
        value: Reads its value from the statistics.
        reason: Value of the label ``reason`` for a failure; "" for none.
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
    # Triton's REJECTED means a timeout in the scheduler's queue. Requests never wait that long here: they are
    # refused at once.
    Counter(FAILURE, lambda of: of.refused, "REJECTED"),
    Counter(FAILURE, lambda of: of.cancelled, "CANCELED"),
    Counter(FAILURE, lambda of: of.failures, "BACKEND"),
    Counter(FAILURE, lambda of: 0, "OTHER"),
    Counter("nv_inference_count", lambda of: of.rows),
    Counter("nv_inference_exec_count", lambda of: of.batches),
    Counter("nv_inference_request_duration_us", lambda of: _microseconds(of.request_seconds)),
    Counter("nv_inference_queue_duration_us", lambda of: _microseconds(of.queue_seconds)),
    # Summed over requests, as in Triton: each request waits for its whole batch.
    Counter(
        "nv_inference_compute_infer_duration_us",
        lambda of: _microseconds(of.request_seconds) - _microseconds(of.queue_seconds),
    ),
    Counter("nv_cache_num_hits_per_model", lambda of: of.cache_hits + of.cache_joined, of_cache=True),
    Counter("nv_cache_num_misses_per_model", lambda of: of.cache_misses, of_cache=True),
)


def by_name() -> Iterator[tuple[str, list[Counter]]]:
    """Yield each name with its counters, which must be adjacent in a scrape."""
    names = dict.fromkeys(one.name for one in COUNTERS)
    for name in names:
        yield name, [one for one in COUNTERS if one.name == name]
