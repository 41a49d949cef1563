"""What is kept of a stream's rows for any number of windows: nothing twice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from headrace.archive.windows.window import Window
from headrace.tensors import Array


class Measure(NamedTuple):
    """What is taken of a row: that it is there, and mostly a number.

    Attributes:
        column: The stream's column that is added up; "" where rows are only counted.
        where: Only rows whose column has this value; None for all.
    """

    column: str
    where: tuple[str, int | str] | None


class Total(NamedTuple):
    """A measure over a window.

    Attributes:
        measure: Its place in the plan.
        buckets: How long the window is.
    """

    measure: int
    buckets: int


@dataclass(frozen=True)
class Plan:
    """Distinct measures, and distinct totals of them.

    Attributes:
        measures: What is taken of each row.
        totals: What is kept by key.
        every_seconds: How long a bucket is.
    """

    measures: tuple[Measure, ...]
    totals: tuple[Total, ...]
    every_seconds: int

    @classmethod
    def of(cls, windows: Iterable[Window], every_seconds: int) -> Plan:
        """What windows need, of however many versions of a table they are."""
        wanted = list(windows)
        measures = tuple(dict.fromkeys(_measure(one) for one in wanted))
        totals = tuple(
            dict.fromkeys(
                Total(measures.index(_measure(one)), one.seconds // every_seconds) for one in wanted
            )
        )
        return cls(measures, totals, every_seconds)

    def key_of(self, total: Total) -> tuple[Measure, int]:
        """What a total is, whatever else a plan has."""
        return self.measures[total.measure], total.buckets

    @cached_property
    def longest(self) -> int:
        """How many buckets the longest window has."""
        return max(one.buckets for one in self.totals)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """The lengths that windows have, each once."""
        return tuple(sorted({one.buckets for one in self.totals}))

    @cached_property
    def sum_at(self) -> Array:
        """The place of each measure among those with a sum, int64; -1 for one without."""
        has_sum = np.array([bool(one.column) for one in self.measures])
        return np.where(has_sum, np.cumsum(has_sum) - 1, -1).astype(np.int64)

    @cached_property
    def sums(self) -> int:
        """How many measures have a sum."""
        return sum(bool(one.column) for one in self.measures)

    @cached_property
    def table(self) -> Array:
        """The totals as kernels read them, int64 ``[T, 3]``: measure, place of its sum or -1, buckets."""
        lines = [(one.measure, int(self.sum_at[one.measure]), one.buckets) for one in self.totals]
        return np.array(lines, np.int64).reshape(-1, 3)

    def values(self, windows: Mapping[str, Window], counts: Array, sums: Array) -> dict[str, Array]:
        """The values of columns.

        Args:
            windows: By column; the plan was made of these and maybe others.
            counts: Of rows, by total, int64 ``[N, T]``.
            sums: By total, float64 ``[N, T]``.

        Returns:
            By column, ``[N]`` in the column's dtype. A mean of no rows is 0; what is more than the dtype can
            hold is the largest that it can.
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
