"""What one version has done, as one value that several processes can add up."""

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
        batch_rows: For each number of rows computed: how many batches, and their seconds.
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
        """What has been counted so far.

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
        """What both have done, of the same version; of the last request the later."""
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
    """One value a version, of what several processes have counted; by names and numbers."""
    found: dict[tuple[str, int], VersionCounts] = {}
    for one in counts:
        known = found.get((one.model, one.version))
        found[one.model, one.version] = one if known is None else known.plus(one)
    return [found[key] for key in sorted(found)]
