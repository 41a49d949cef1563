"""Plans which counts and sums of a stream's rows to keep for a set of windows, each once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from headrace.archive.model.window_settings import Window
from headrace.base.tensors import Array


class Measure(NamedTuple):
    """Data taken from a row: a count, and the number in a column, if any.

    Attributes:
        column: Column of the stream that is added up; "" if rows are only counted.
        where: Column and value that a row must have to count; None for all rows.
    """

    column: str
    where: tuple[str, int | str] | None


class Total(NamedTuple):
    """A measure over a window.

    Attributes:
        measure: Index of the measure in the plan.
        buckets: Length of the window in buckets.
    """

    measure: int
    buckets: int


@dataclass(frozen=True)
class BucketPlan:
    """Distinct measures, and distinct totals of them.

    Attributes:
        measures: Measures taken of each row.
        totals: Totals kept for each key.
        every_seconds: Length of a bucket in seconds.
    """

    measures: tuple[Measure, ...]
    totals: tuple[Total, ...]
    every_seconds: int

    @classmethod
    def of(cls, windows: Iterable[Window], every_seconds: int) -> BucketPlan:
        """Return the plan for windows, which may be of several versions of a table."""
        wanted = list(windows)
        measures = tuple(dict.fromkeys(_measure(one) for one in wanted))
        totals = tuple(
            dict.fromkeys(
                Total(measures.index(_measure(one)), one.seconds // every_seconds) for one in wanted
            )
        )
        return cls(measures, totals, every_seconds)

    def key_of(self, total: Total) -> tuple[Measure, int]:
        """Return a key that identifies a total across plans."""
        return self.measures[total.measure], total.buckets

    @cached_property
    def longest(self) -> int:
        """Length of the longest window in buckets."""
        return max(one.buckets for one in self.totals)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Distinct lengths of windows in buckets, ascending."""
        return tuple(sorted({one.buckets for one in self.totals}))

    @cached_property
    def sum_at(self) -> Array:
        """Index of each measure among those with a sum, int64; -1 for one without."""
        has_sum = np.array([bool(one.column) for one in self.measures])
        return np.where(has_sum, np.cumsum(has_sum) - 1, -1).astype(np.int64)

    @cached_property
    def sums(self) -> int:
        """Number of measures with a sum."""
        return sum(bool(one.column) for one in self.measures)

    @cached_property
    def table(self) -> Array:
        """Totals as kernels read them, int64 ``[T, 3]``: measure, index of its sum or -1, buckets."""
        lines = [(one.measure, int(self.sum_at[one.measure]), one.buckets) for one in self.totals]
        return np.array(lines, np.int64).reshape(-1, 3)

    def values(self, windows: Mapping[str, Window], counts: Array, sums: Array) -> dict[str, Array]:
        """Return the values of columns.

        Args:
            windows: Windows by column, all of them part of the plan.
            counts: Number of rows by total, int64 ``[N, T]``.
            sums: Sums by total, float64 ``[N, T]``.

        Returns:
            Values by column, ``[N]`` in the column's dtype. A mean of no rows is 0. Values are clipped to the
            range of the dtype.
        """
        return {name: self._value(one, counts, sums) for name, one in windows.items()}

    def _value(self, window: Window, counts: Array, sums: Array) -> Array:
        total = Total(self.measures.index(_measure(window)), window.seconds // self.every_seconds)
        at = self.totals.index(total)
        value: Array = counts[:, at] if window.count else sums[:, at]
        if window.mean:
            value = value / np.maximum(counts[:, at], 1)
        if window.per_seconds:
            value = value * (window.per_seconds / window.seconds)
        dtype = np.dtype(window.stored_as)
        most = np.iinfo(dtype).max if dtype.kind == "i" else np.finfo(dtype).max
        return np.clip(value, -most, most).astype(dtype)


def _measure(window: Window) -> Measure:
    return Measure(window.column, window.where)
