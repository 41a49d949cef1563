"""Cells: rows by which of some centres is nearest; what is near is in the same cell mostly, or one beside it.

The centres are found by k-means on a sample. Work that compares a row with its nearest cells only grows with
N·√N where comparing all with all grows with N².
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.archive.similarity.rows import Floats, Numbers, Progress, Rows, scores, unit, unwatched

_SAMPLED_A_CELL = 16
_TURNS = 5


@dataclass(frozen=True, slots=True)
class Cells:
    """Which cells rows are in.

    Attributes:
        centres: float32 ``[C, D]``.
        nearest: int32 ``[N, P]``: the nearest cells of each row, the one that it is in first.
    """

    centres: Floats
    nearest: npt.NDArray[np.int32]

    @property
    def home(self) -> npt.NDArray[np.int32]:
        """The cell that each row is in."""
        return self.nearest[:, 0]

    def members(self) -> tuple[Numbers, Numbers]:
        """The rows, cell by cell, and where each cell begins; one place more at the end."""
        return _grouped(self.home, len(self.centres))

    def visitors(self) -> tuple[Numbers, Numbers]:
        """The rows that one of their nearest cells is this, likewise."""
        places, starts = _grouped(self.nearest.ravel(), len(self.centres))
        return places // self.nearest.shape[1], starts


def make_cells(
    rows: Rows, count: int, probes: int, seed: int = 0, progress: Progress = unwatched, *, turns: int = _TURNS
) -> Cells:
    """Put rows into cells.

    Args:
        rows: Which.
        count: How many cells; there are no more than rows.
        probes: How many nearest cells of each row to find.
        seed: What the sample depends on.
        progress: Told how far it is.
        turns: How often the centres move.
    """
    count = max(1, min(count, rows.count))
    centres = _centres(rows, count, np.random.default_rng(seed), turns, progress)
    probes = min(probes, count)
    nearest = np.empty((rows.count, probes), np.int32)
    for some in rows.blocks(_at_once(rows, count)):
        nearest[some] = _nearest_cells(rows, rows.take(some), centres, probes)
        progress("sorting into cells", some.stop, rows.count)
    return Cells(centres, nearest)


def _centres(rows: Rows, count: int, random: np.random.Generator, turns: int, progress: Progress) -> Floats:
    if count == 1:
        return np.zeros((1, rows.dimension), np.float32)
    size = min(rows.count, max(_SAMPLED_A_CELL * count, 4096))
    sample = rows.take(np.sort(random.choice(rows.count, size, replace=False)))
    centres = sample[random.choice(size, count, replace=False)]
    step = _at_once(rows, count)
    for turn in range(turns):
        home = np.concatenate(
            [
                _nearest_cells(rows, sample[start : start + step], centres, 1)[:, 0]
                for start in range(0, size, step)
            ]
        )
        order, starts = _grouped(home, count)
        filled = np.flatnonzero(np.diff(starts))
        sums = np.add.reduceat(sample[order], starts[:-1][filled], axis=0)
        if rows.metric == "l2":
            centres[filled] = sums / np.diff(starts)[filled][:, None]
        else:
            centres[filled] = unit(sums)
        progress("finding cells", turn + 1, turns)
    return centres


def _nearest_cells(rows: Rows, taken: Floats, centres: Floats, probes: int) -> npt.NDArray[np.int32]:
    made = scores(rows.metric, taken, centres)
    if probes == 1:
        return np.asarray(made.argmax(axis=1)[:, None], np.int32)
    kept = np.argpartition(-made, probes - 1, axis=1)[:, :probes]
    order = np.argsort(-np.take_along_axis(made, kept, axis=1), axis=1, kind="stable")
    return np.asarray(np.take_along_axis(kept, order, axis=1), np.int32)


def _at_once(rows: Rows, count: int) -> int:
    """How many rows at once: neither they nor their scores are more than a block."""
    return max(1, min(rows.block, rows.block * rows.dimension // count))


def _grouped(cell: npt.NDArray[np.int32], count: int) -> tuple[Numbers, Numbers]:
    order = np.argsort(cell, kind="stable")
    starts = np.searchsorted(cell[order], np.arange(count + 1))
    return order.astype(np.int64), starts.astype(np.int64)
