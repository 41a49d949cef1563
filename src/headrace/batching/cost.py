"""Duration of a batch, learnt while serving: ``seconds = a + b * rows``.

The line is fitted by weighted least squares. Each observation weighs 3 % less with every later batch, so the
fit follows a machine that speeds up or slows down. Only batches of different sizes show the cost of a row: if
all have one size, the estimate of ``b`` is kept (directional forgetting) and ``a`` changes. BentoML's
dispatcher uses the same latency model to choose its waits. Here the model decides which requests are refused
at once, how large a batch may grow, and whether a batch is short enough to run in the serving thread.
"""

from __future__ import annotations

import math

_FORGETTING = 0.97
_OUTLIER = 8.0
_TRUSTED_AFTER = 16
_TOLD = 2.0
"""A batch whose size is 0.7 standard deviations off the mean makes the slope forget at the full rate."""

_ROUNDING = 1e-6
_OWN_SHARE = 0.2
_LEAST_TURN_SECONDS = 0.001


class BatchCost:
    """Fitted cost of a batch: ``a`` seconds per call and ``b`` seconds per row."""

    __slots__ = ("_n", "_rows", "_seconds", "_seen", "_xx", "_xy", "a", "b")

    def __init__(self) -> None:
        """Begin without observations: every batch is predicted to take 0 s."""
        self.a = 0.0
        self.b = 0.0
        self._seen = 0
        self._n = self._rows = self._seconds = 0.0  # weighted count and means
        self._xx = self._xy = 0.0  # weighted sums of squares and products around the means

    @property
    def known(self) -> bool:
        """Whether anything has been observed yet."""
        return self._seen > 0

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from one batch.

        Args:
            rows: Number of rows computed, including padding.
            seconds: Duration of the call of the Servable.
        """
        if self._seen >= _TRUSTED_AFTER:  # a batch whose thread lost its core says nothing about the model
            seconds = min(seconds, _OUTLIER * self.seconds(rows) + 1e-4)
        self._seen += 1
        self._n = self._n * _FORGETTING + 1.0
        off = rows - self._rows
        self._rows += off / self._n
        self._seconds += (seconds - self._seconds) / self._n
        # The estimate of a row's cost is forgotten only as far as this batch provides new information on it.
        told = min(_TOLD * off * off * self._n / self._xx, 1.0) if self._xx else 1.0
        kept = 1.0 - (1.0 - _FORGETTING) * told
        self._xx = kept * self._xx + off * (rows - self._rows)
        self._xy = kept * self._xy + off * (seconds - self._seconds)
        slope = self._xy / self._xx if self._xx > 0.0 else 0.0
        # Neither part of the cost can be negative: if the fit says so, the other part takes all of it.
        self.b = min(max(slope, 0.0), self._seconds / self._rows)
        self.a = max(self._seconds - self.b * self._rows, 0.0)

    def seconds(self, rows: int) -> float:
        """Return the predicted duration of a batch in seconds."""
        return self.a + self.b * rows

    @property
    def turn_seconds(self) -> float:
        """Shortest useful duration of a batch that others wait for, in seconds.

        The fixed cost ``a`` is at most a fifth of it, so at most a fifth of the throughput is lost. It is at
        least 1 ms, because below that the work around a batch takes as long as the batch.
        """
        return max(self.a / _OWN_SHARE, _LEAST_TURN_SECONDS)

    def wait_seconds(self, rows_ahead: int, max_rows: int, instances: int) -> float:
        """Return the predicted wait behind other rows if all instances run full batches, in seconds.

        Args:
            rows_ahead: Number of rows ahead that are queued or running.
            max_rows: The most rows of a batch.
            instances: Number of batches that run concurrently.
        """
        batches = math.ceil(rows_ahead / max_rows)
        return (batches * self.a + rows_ahead * self.b) / instances

    def rows_within(self, seconds: float, max_rows: int) -> int:
        """Return the most rows, from 1 to ``max_rows``, of a batch predicted to take at most ``seconds``.

        The result is never so small that the fixed cost ``a`` is most of the duration. Smaller batches would
        not shorten waits, because their total time grows.
        """
        if self.seconds(max_rows) <= seconds or self.b == 0.0:
            return max_rows
        within, worthwhile = (seconds - self.a) / self.b, self.a / self.b
        return max(1, int(min(max_rows, max(within, worthwhile) + _ROUNDING)))
