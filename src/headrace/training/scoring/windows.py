"""Progressive validation: what was predicted before the label was looked at, scored window by window.

Within a window the AUC is exact. That of a whole run comes of a histogram of probabilities, since a run may
have no end: pairs of rows in the same bin count half, so it is off by at most half their share, which is said
beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from headrace.errors import ConfigError
from headrace.stream.block import Slice
from headrace.tensors import Array
from headrace.training.scoring.tallies import RUN_DETAIL, SLICE_DETAIL, Score, Scored, Tally, exact_areas


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A window that is over.

    Attributes:
        number: Which one, from 1.
        last_row: How many rows had been scored at its end.
        score: That of its rows.
        slices: Those of the rows with each value of each slice.
    """

    number: int
    last_row: int
    score: Score
    slices: dict[str, dict[str, Score]]


class Windows:
    """Scores rows window by window, and all of them together."""

    def __init__(self, window_rows: int, slices: Sequence[str] = ()) -> None:
        """Start with no rows.

        Args:
            window_rows: How many rows a window has.
            slices: The columns by which metrics are split.
        """
        if window_rows < 1:
            raise ConfigError(f"window: expected 1 row or more, got {window_rows}")
        self._window_rows = window_rows
        self._slices = tuple(slices)
        self._ids: dict[str, dict[str, int]] = {name: {} for name in self._slices}
        self._total = Tally(1, RUN_DETAIL)
        self._parts = {name: Tally(0, SLICE_DETAIL) for name in self._slices}
        self._open: list[Scored] = []
        self._filled = 0
        self._closed = 0
        self._last: Window | None = None

    @property
    def rows(self) -> int:
        """How many rows have been scored."""
        return int(self._total.sums[0, 0]) + self._filled

    @property
    def last(self) -> Window | None:
        """The window that closed last."""
        return self._last

    def encode(self, slices: Mapping[str, Slice], rows: int) -> Array:
        """Number a block's values of the slices: int32 ``[slices, rows]``, the same for all blocks."""
        codes = np.full((len(self._slices), rows), -1, np.int32)
        for number, name in enumerate(self._slices):
            ids = self._ids[name]
            known = np.array([ids.setdefault(value, len(ids)) for value in slices[name].values], np.int32)
            codes[number] = np.append(known, np.int32(-1))[slices[name].codes]
        return codes

    def add(self, rows: Scored) -> list[Window]:
        """Score rows.

        Returns:
            The windows that are over with them.
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
        """Close the window that is open, if it has rows."""
        return [self._close()] if self._filled else []

    def total(self) -> Score:
        """The score of all rows."""
        return self._with_open(self._total, None).score(0)

    def totals_by_slice(self) -> dict[str, dict[str, Score]]:
        """The scores of all rows with each value of each slice."""
        found = {}
        for number, name in enumerate(self._slices):
            self._parts[name].grow(len(self._ids[name]))
            tally = self._with_open(self._parts[name], number)
            found[name] = {value: tally.score(code) for value, code in self._ids[name].items()}
        return found

    def state(self) -> tuple[dict[str, Array], dict[str, object]]:
        """What scoring goes on from: arrays by name, and what JSON can hold."""
        arrays = {"windows.total.sums": self._total.sums, "windows.total.histogram": self._total.histogram}
        for number, name in enumerate(self._slices):
            self._parts[name].grow(len(self._ids[name]))
            arrays[f"windows.slice{number}.sums"] = self._parts[name].sums
            arrays[f"windows.slice{number}.histogram"] = self._parts[name].histogram
        if self._open:
            self._open = [_joined(self._open)]
            found = {name: one for name, one in self._open[0]._asdict().items() if one is not None}
            arrays |= {f"windows.open.{name}": array for name, array in found.items()}
        return arrays, {
            "closed": self._closed,
            "with_truth": self._total.with_truth,
            "slices": {name: list(ids) for name, ids in self._ids.items()},
            "last": msgspec.to_builtins(self._last),
        }

    def restore(self, arrays: Mapping[str, Array], meta: Mapping[str, object]) -> None:
        """Go on from a state.

        Raises:
            ConfigError: It was split by other slices.
        """
        saved = msgspec.convert(meta, _Saved)
        if tuple(saved.slices) != self._slices:
            raise ConfigError(
                f"slice: the checkpoint has {list(saved.slices)}, now {list(self._slices)} are wanted; "
                "give the same ones, or start without --resume"
            )
        self._ids = {
            name: {value: code for code, value in enumerate(one)} for name, one in saved.slices.items()
        }
        self._closed, self._last = saved.closed, saved.last
        names = {"total": self._total, **{f"slice{n}": self._parts[s] for n, s in enumerate(self._slices)}}
        for name, tally in names.items():
            tally.with_truth = saved.with_truth
            tally.sums = np.array(arrays[f"windows.{name}.sums"])
            tally.histogram = np.array(arrays[f"windows.{name}.histogram"])
        self._open, self._filled = [], 0
        if "windows.open.labels" in arrays:
            found = {name: arrays.get(f"windows.open.{name}") for name in Scored._fields}
            open_rows = Scored.of({n: None if a is None else np.array(a) for n, a in found.items()})
            self._open, self._filled = [open_rows], len(open_rows.labels)

    def _with_open(self, tally: Tally, slice_number: int | None) -> Tally:
        """A copy of a tally with the rows of the open window."""
        copy = tally.copy()
        if self._open:
            copy.add(*_chosen(_joined(self._open), slice_number))
        return copy

    def _close(self) -> Window:
        rows = _joined(self._open)
        self._open, self._filled = [], 0
        self._closed += 1
        score = _close_groups(self._total, rows, None)[0]
        slices = {}
        for number, name in enumerate(self._slices):
            self._parts[name].grow(len(self._ids[name]))
            found = _close_groups(self._parts[name], rows, number)
            slices[name] = {value: found[code] for value, code in self._ids[name].items() if code in found}
        self._last = Window(number=self._closed, last_row=self.rows, score=score, slices=slices)
        return self._last


class _Saved(msgspec.Struct, kw_only=True):
    closed: int
    with_truth: bool
    slices: dict[str, list[str]]
    last: Window | None


def _joined(parts: Sequence[Scored]) -> Scored:
    if len(parts) == 1:
        return parts[0]

    def column(name: str) -> Array | None:
        found = [getattr(part, name) for part in parts]
        return None if any(one is None for one in found) else np.concatenate(found, axis=-1)

    return Scored.of({name: column(name) for name in Scored._fields})


def _chosen(rows: Scored, slice_number: int | None) -> tuple[Scored, Array]:
    """The rows that are in any group, and their groups."""
    if slice_number is None:
        return rows, np.zeros(len(rows.labels), np.int64)
    groups = rows.codes[slice_number].astype(np.int64)
    there = groups >= 0
    if there.all():
        return rows, groups
    found = {name: None if one is None else one[..., there] for name, one in rows._asdict().items()}
    return Scored.of(found), groups[there]


def _close_groups(tally: Tally, rows: Scored, slice_number: int | None) -> dict[int, Score]:
    """Add a window's rows to a tally; the scores of the groups that have any, with exact areas."""
    rows, groups = _chosen(rows, slice_number)
    window = tally.fresh()
    window.add(rows, groups)
    tally.merge(window)
    count = len(window.sums)
    areas = exact_areas(rows.predictions, rows.labels, rows.weights, groups, count)
    there = np.flatnonzero(window.sums[:, 0]).tolist()
    return {group: window.score(group, float(areas[group])) for group in there}
