"""Statistics of one version as a message that can be summed over several processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import msgspec

from headrace.batching.statistics import VersionStatistics


class VersionCounts(msgspec.Struct, frozen=True):
    """Counts of one version, named as in ``VersionStatistics``.

    Attributes:
        model: The model's name.
        version: The version's number.
        batch_rows: Number of batches and their total seconds, by number of rows computed.
    """

    model: str
    version: int
    requests: int
    rows: int
    batches: int
    failures: int
    queue_seconds: float
    request_seconds: float
    failure_seconds: float
    last_request_unix_seconds: float
    batch_rows: dict[int, tuple[int, float]]

    @classmethod
    def of(cls, model: str, version: int, counted: VersionStatistics) -> Self:
        """Return the counts so far.

        Args:
            model: The model's name.
            version: The version's number.
            counted: The version's statistics.
        """
        return cls(
            model,
            version,
            counted.requests,
            counted.rows,
            counted.batches,
            counted.failures,
            counted.queue_seconds,
            counted.request_seconds,
            counted.failure_seconds,
            counted.last_request_unix_seconds,
            {rows: (int(count), seconds) for rows, (count, seconds) in counted.batch_rows.items()},
        )

    def plus(self, other: Self) -> VersionCounts:
        """Return the sum with another process's counts of the same version; the later last request wins."""
        batches = dict(self.batch_rows)
        for rows, (count, seconds) in other.batch_rows.items():
            counted, took = batches.get(rows, (0, 0.0))
            batches[rows] = counted + count, took + seconds
        return VersionCounts(
            self.model,
            self.version,
            self.requests + other.requests,
            self.rows + other.rows,
            self.batches + other.batches,
            self.failures + other.failures,
            self.queue_seconds + other.queue_seconds,
            self.request_seconds + other.request_seconds,
            self.failure_seconds + other.failure_seconds,
            max(self.last_request_unix_seconds, other.last_request_unix_seconds),
            batches,
        )


def added_up(counts: Iterable[VersionCounts]) -> list[VersionCounts]:
    """Sum the counts of several processes by version, and sort them by model name and version."""
    found: dict[tuple[str, int], VersionCounts] = {}
    for one in counts:
        known = found.get((one.model, one.version))
        found[one.model, one.version] = one if known is None else known.plus(one)
    return [found[key] for key in sorted(found)]
