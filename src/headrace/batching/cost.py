"""What a batch costs, learnt while serving: ``seconds = a + b * rows``.

The line is fitted by least squares in which each observation weighs 3 % less with every batch after it, so it
follows a machine that speeds up or slows down. BentoML's dispatcher uses the same model of latency to choose
its waits; here it decides what to refuse at once, how large a batch may grow and whether a batch is small
enough to run where it stands.
"""

from __future__ import annotations

import math

_FORGETTING = 0.97
_OUTLIER = 8.0
_TRUSTED_AFTER = 16


class BatchCost:
    """The fitted cost of a batch: ``a`` seconds for the call and ``b`` seconds for each row."""

    __slots__ = ("_n", "_seen", "_x", "_xx", "_xy", "_y", "a", "b")

    def __init__(self) -> None:
        """Start knowing nothing: every batch is predicted to cost nothing."""
        self.a = 0.0
        self.b = 0.0
        self._seen = 0
        self._n = self._x = self._y = self._xx = self._xy = 0.0

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
        self._x = self._x * _FORGETTING + rows
        self._y = self._y * _FORGETTING + seconds
        self._xx = self._xx * _FORGETTING + rows * rows
        self._xy = self._xy * _FORGETTING + rows * seconds
        spread = self._n * self._xx - self._x * self._x
        slope = (
            (self._n * self._xy - self._x * self._y) / spread if spread > 1e-9 * self._xx * self._n else 0.0
        )
        # Neither part of a cost is negative: where the line says so, all of it is the other part.
        self.b = min(max(slope, 0.0), self._y / self._x)
        self.a = max((self._y - self.b * self._x) / self._n, 0.0)

    def seconds(self, rows: int) -> float:
        """The predicted cost of one batch."""
        return self.a + self.b * rows

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
        return max(1, int(min(max_rows, max(within, worthwhile))))
