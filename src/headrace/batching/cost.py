"""What a batch costs, learnt while serving: ``seconds = a + b * rows``.

The line is fitted by least squares in which each observation weighs 3 % less with every batch after it, so it
follows a machine that speeds up or slows down. What a row costs is told by batches of different sizes only:
where all are of one, what was known of it stays (directional forgetting), and what changes is the call's.
BentoML's dispatcher uses the same model of latency to choose its waits; here it decides what to refuse at
once, how large a batch may grow and whether a batch is small enough to run where it stands.
"""

from __future__ import annotations

import math

_FORGETTING = 0.97
_OUTLIER = 8.0
_TRUSTED_AFTER = 16
_TOLD = 2.0
"""A batch whose size is off the mean by 0.7 of the usual deviation tells all that one can of a row."""

_ROUNDING = 1e-6
_OWN_SHARE = 0.2
_LEAST_TURN_SECONDS = 0.001


class BatchCost:
    """The fitted cost of a batch: ``a`` seconds for the call and ``b`` seconds for each row."""

    __slots__ = ("_n", "_rows", "_seconds", "_seen", "_xx", "_xy", "a", "b")

    def __init__(self) -> None:
        """Start knowing nothing: every batch is predicted to cost nothing."""
        self.a = 0.0
        self.b = 0.0
        self._seen = 0
        self._n = self._rows = self._seconds = 0.0  # the means of both, and how many they are of
        self._xx = self._xy = 0.0  # sums of squares and of products, around the means

    @property
    def known(self) -> bool:
        """Whether anything has been observed yet."""
        return self._seen > 0

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from one batch.

        Args:
            rows: How many rows it computed, padding included.
            seconds: How long the Servable took.
        """
        if (
            self._seen >= _TRUSTED_AFTER
        ):  # a batch that lost its core for a while says nothing about the model
            seconds = min(seconds, _OUTLIER * self.seconds(rows) + 1e-4)
        self._seen += 1
        self._n = self._n * _FORGETTING + 1.0
        off = rows - self._rows
        self._rows += off / self._n
        self._seconds += (seconds - self._seconds) / self._n
        # What is known of a row is forgotten as far as this batch tells of it anew.
        told = min(_TOLD * off * off * self._n / self._xx, 1.0) if self._xx else 1.0
        kept = 1.0 - (1.0 - _FORGETTING) * told
        self._xx = kept * self._xx + off * (rows - self._rows)
        self._xy = kept * self._xy + off * (seconds - self._seconds)
        slope = self._xy / self._xx if self._xx > 0.0 else 0.0
        # Neither part of a cost is negative: where the line says so, all of it is the other part.
        self.b = min(max(slope, 0.0), self._seconds / self._rows)
        self.a = max(self._seconds - self.b * self._rows, 0.0)

    def seconds(self, rows: int) -> float:
        """The predicted cost of one batch."""
        return self.a + self.b * rows

    @property
    def turn_seconds(self) -> float:
        """How short batches may be that others wait for: no more than a fifth of one is the call's own.

        So at the most a fifth of what could be computed is lost. Below a millisecond, what is around a batch
        takes as long as the batch.
        """
        return max(self.a / _OWN_SHARE, _LEAST_TURN_SECONDS)

    def wait_seconds(self, rows_ahead: int, max_rows: int, instances: int) -> float:
        """How long rows wait behind others, when full batches run on all instances.

        Args:
            rows_ahead: Rows that are queued or running before them.
            max_rows: The largest batch.
            instances: How many batches run side by side.
        """
        batches = math.ceil(rows_ahead / max_rows)
        return (batches * self.a + rows_ahead * self.b) / instances

    def rows_within(self, seconds: float, max_rows: int) -> int:
        """The most rows, up to ``max_rows`` and at least one, that a batch may have to stay within a time.

        But not so few that most of the cost is the call's own: smaller batches would come no sooner, because
        the time of all of them together grows.
        """
        if self.seconds(max_rows) <= seconds or self.b == 0.0:
            return max_rows
        within, worthwhile = (seconds - self.a) / self.b, self.a / self.b
        return max(1, int(min(max_rows, max(within, worthwhile) + _ROUNDING)))
