"""Progressive validation: predictions made before learning from the rows, scored window by window.

Within a window the AUC is exact. That of a whole run, which may be unbounded, comes from a histogram of
probabilities. A pair of a clicked and an unclicked row counts half if both are in the same bin, so the error
is at most half the share of such pairs. The score reports this bound.

``trend_of`` detects trends in recent windows: a sudden jump in the loss, or a model that falls behind. The
measure is the normalized entropy, which a change of the click rate alone hardly affects. Steady drift that
the model follows is reported as neither.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

import msgspec
import numpy as np

from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.evaluation.tallies import RUN_DETAIL, Score, Scored, Tally, exact_areas
from headrace.stream.block import Slice


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A closed window.

    Attributes:
        number: Number of the window, from 1.
        last_row: Number of rows scored up to its end.
        score: Score of its rows.
        slices: Scores of its rows, by slice and then by value.
        trend: Trend of this window and those before it; None if there is no trend.
    """

    number: int
    last_row: int
    score: Score
    slices: dict[str, dict[str, Score]]
    trend: Trend | None = None


class Windows:
    """Scores of rows, window by window and in total."""

    def __init__(self, window_rows: int, slices: Sequence[str] = ()) -> None:
        """Start without rows.

        Args:
            window_rows: Number of rows in a window.
            slices: Columns by which metrics are split.

        Raises:
            ConfigError: ``window_rows`` is less than 1.
        """
        if window_rows < 1:
            raise ConfigError(f"window-rows: expected 1 row or more, got {window_rows}")
        self._window_rows = window_rows
        self._slices = tuple(slices)
        self._ids: dict[str, dict[str, int]] = {name: {} for name in self._slices}
        self._total = Tally(1, RUN_DETAIL)
        self._open: list[Scored] = []
        self._filled = 0
        self._closed = 0
        self._last: Window | None = None
        self._entropies: list[float] = []

    @property
    def rows(self) -> int:
        """Number of rows scored."""
        return int(self._total.sums[0, 0]) + self._filled

    @property
    def last(self) -> Window | None:
        """The last closed window; None if there is none."""
        return self._last

    def encode(self, slices: Mapping[str, Slice], rows: int) -> Array:
        """Encode a block's slice values as int32 ``[slices, rows]``; codes are the same in all blocks."""
        codes = np.full((len(self._slices), rows), -1, np.int32)
        for number, name in enumerate(self._slices):
            ids = self._ids[name]
            known = np.array([ids.setdefault(value, len(ids)) for value in slices[name].values], np.int32)
            codes[number] = np.append(known, np.int32(-1))[slices[name].codes]
        return codes

    def add(self, rows: Scored) -> list[Window]:
        """Score rows.

        Returns:
            The windows that these rows complete.
        """
        closed, start, count = [], 0, len(rows.labels)
        while start < count:
            stop = min(count, start + self._window_rows - self._filled)
            self._open.append(rows.part(start, stop))
            self._filled += stop - start
            start = stop
            if self._filled == self._window_rows:
                closed.append(self._close())
        return closed

    def finish(self) -> list[Window]:
        """Close the open window, if it has rows; a partial window has no trend."""
        return [self._close(is_whole=False)] if self._filled else []

    def total(self) -> Score:
        """Return the score of all rows."""
        total = self._total.copy()
        if self._open:
            rows = _joined(self._open)
            total.add(rows, _all_in_one(rows))
        return total.score(0)

    def state(self) -> tuple[dict[str, Array], dict[str, object]]:
        """Return the state needed to resume: arrays by name, and values for JSON."""
        arrays = {"windows.total.sums": self._total.sums, "windows.total.histogram": self._total.histogram}
        if self._open:
            self._open = [_joined(self._open)]
            found = {name: one for name, one in self._open[0]._asdict().items() if one is not None}
            arrays |= {f"windows.open.{name}": array for name, array in found.items()}
        return arrays, {
            "closed": self._closed,
            "with_truth": self._total.with_truth,
            "slices": {name: list(ids) for name, ids in self._ids.items()},
            "last": msgspec.to_builtins(self._last),
            "entropies": self._entropies,
        }

    def restore(self, arrays: Mapping[str, Array], meta: Mapping[str, object]) -> None:
        """Restore a state.

        Raises:
            ConfigError: The state has other slices.
        """
        saved = msgspec.convert(meta, _Saved)
        if tuple(saved.slices) != self._slices:
            raise ConfigError(
                f"slice: expected {list(saved.slices)}, as in the checkpoint, got {list(self._slices)}; "
                "give the same ones, or start without --resume"
            )
        self._ids = {
            name: {value: code for code, value in enumerate(one)} for name, one in saved.slices.items()
        }
        self._closed, self._last, self._entropies = saved.closed, saved.last, saved.entropies
        self._total.with_truth = saved.with_truth
        self._total.sums = np.array(arrays["windows.total.sums"])
        self._total.histogram = np.array(arrays["windows.total.histogram"])
        self._open, self._filled = [], 0
        if "windows.open.labels" in arrays:
            found = {name: arrays.get(f"windows.open.{name}") for name in Scored._fields}
            open_rows = Scored.of({n: None if a is None else np.array(a) for n, a in found.items()})
            self._open, self._filled = [open_rows], len(open_rows.labels)

    def _close(self, *, is_whole: bool = True) -> Window:
        rows = _joined(self._open)
        self._open, self._filled = [], 0
        self._closed += 1
        window = Tally(1, RUN_DETAIL)
        (score,) = _scores(window, rows, _all_in_one(rows))
        self._total.merge(window)
        slices = {name: self._by_value(rows, number) for number, name in enumerate(self._slices)}
        trend = None
        if is_whole and score.normalized_entropy is not None:
            self._entropies = [*self._entropies, score.normalized_entropy][-REMEMBERED:]
            trend = trend_of(self._entropies)
        self._last = Window(
            number=self._closed,
            last_row=self.rows,
            score=score,
            slices=slices,
            trend=trend,
        )
        return self._last

    def _by_value(self, rows: Scored, number: int) -> dict[str, Score]:
        """Return the score of each value of a slice that occurs in the rows."""
        values, codes = list(self._ids[self._slices[number]]), rows.codes[number]
        rows, codes = rows.chosen(codes >= 0), codes[codes >= 0]
        there, groups = np.unique(codes, return_inverse=True)
        scores = _scores(Tally(len(there), 0), rows, groups)
        return {values[code]: score for code, score in zip(there.tolist(), scores, strict=True)}


class _Saved(msgspec.Struct, kw_only=True):
    closed: int
    with_truth: bool
    slices: dict[str, list[str]]
    last: Window | None
    entropies: list[float] = []


def _joined(parts: Sequence[Scored]) -> Scored:
    if len(parts) == 1:
        return parts[0]

    def column(name: str) -> Array | None:
        found = [getattr(part, name) for part in parts]
        return None if any(one is None for one in found) else np.concatenate(found, axis=-1)

    return Scored.of({name: column(name) for name in Scored._fields})


def _all_in_one(rows: Scored) -> Array:
    """Return group numbers that put all rows in one group."""
    return np.zeros(len(rows.labels), np.int64)


def _scores(tally: Tally, rows: Scored, groups: Array) -> list[Score]:
    """Add a window's rows to an empty tally, and return the score of each group, with its exact AUC."""
    tally.add(rows, groups)
    groups = groups if rows.views is None else np.tile(groups, 2)
    rows = rows.split_views()
    areas = exact_areas(rows.predictions, rows.labels, rows.weights, groups, len(tally.sums))
    return [tally.score(group, float(area)) for group, area in enumerate(areas)]


Trend = Literal["jumped", "tired"]

REMEMBERED = 64
"""Number of windows considered, the newest included."""

_TOGETHER = 5
_JUMP_SPREADS = 4.0
_JUMP_SHARE = 0.01
_TIRED_SHARE = 0.02
_TIRED_DEVIATIONS = 3.0
_NORMAL_MEDIAN = 0.6745  # standard deviations within which half of a normal distribution lies


def trend_of(entropies: Sequence[float]) -> Trend | None:
    """Return the trend of the newest windows, or None.

    ``jumped``: the newest window is worse than the mean of the five before it by more than 1 % and by more
    than four times their spread. ``tired``: each of the newest five is worse than the best mean of five
    earlier consecutive windows, and their mean is worse by more than 2 %. The difference must also exceed
    four times (``jumped``) or three times (``tired``) the random standard deviation of windows, which is
    large for windows of few rows.

    Args:
        entropies: Normalized entropies of the windows, the newest last.
    """
    *before, newest = entropies[-_TOGETHER - 1 :] or (0.0,)
    chance = _chance(entropies[:-1])
    if len(before) == _TOGETHER:
        middle = statistics.fmean(before)
        spread = max(statistics.stdev(before), chance)
        if newest > middle + max(_JUMP_SPREADS * spread, _JUMP_SHARE * middle):
            return "jumped"
    recent, earlier = entropies[-_TOGETHER:], entropies[:-_TOGETHER]
    if len(earlier) < _TOGETHER:
        return None
    groups = range(len(earlier) - _TOGETHER + 1)
    best = min(statistics.fmean(earlier[start : start + _TOGETHER]) for start in groups)
    least = best + max(_TIRED_SHARE * best, _TIRED_DEVIATIONS * chance)
    return "tired" if min(recent) > best and statistics.fmean(recent) > least else None


def _chance(entropies: Sequence[float]) -> float:
    """Estimate the random standard deviation of windows, from differences of neighbours to ignore drift."""
    if len(entropies) < 2:
        return 0.0
    steps = [later - earlier for earlier, later in pairwise(entropies)]
    usual = statistics.median(steps)
    return statistics.median(abs(step - usual) for step in steps) / (_NORMAL_MEDIAN * math.sqrt(2))
