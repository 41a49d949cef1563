"""Cells: rows grouped by their nearest centre.

Near rows are mostly in the same cell or in a neighbouring one. The centres are found by k-means on a sample.
Comparing each row only with the rows of its nearest cells takes time proportional to N·√N, where comparing
all pairs takes N².
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.similarity.stored_rows import Floats, Numbers, Progress, Rows, scores, unit, unwatched

_SAMPLED_A_CELL = 16
_TURNS = 5


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of rows.

    Attributes:
        centres: float32 ``[C, D]``.
        nearest: int32 ``[N, P]``: the nearest cells of each row, starting with the cell that it is in.
    """

    centres: Floats
    nearest: npt.NDArray[np.int32]

    @property
    def home(self) -> npt.NDArray[np.int32]:
        """The cell of each row."""
        return self.nearest[:, 0]

    def members(self) -> tuple[Numbers, Numbers]:
        """Return the rows ordered by cell, and the start of each cell, ``[C + 1]``."""
        return _grouped(self.home, len(self.centres))

    def visitors(self) -> tuple[Numbers, Numbers]:
        """Return, cell by cell, the rows that have it among their nearest cells.

        Also return the start of each cell, ``[C + 1]``.
        """
        places, starts = _grouped(self.nearest.ravel(), len(self.centres))
        return places // self.nearest.shape[1], starts


def make_cells(
    rows: Rows, count: int, probes: int, seed: int = 0, progress: Progress = unwatched, *, turns: int = _TURNS
) -> Cells:
    """Assign rows to cells.

    Args:
        rows: The rows.
        count: Number of cells, limited by the number of rows.
        probes: Number of nearest cells to find for each row.
        seed: Seed of the sample and of the initial centres.
        progress: Called with the progress.
        turns: Number of k-means iterations.
    """
    count = max(1, min(count, rows.count))
    centres = _centres(rows, count, np.random.default_rng(seed), turns, progress)
    probes = min(probes, count)
    nearest = np.empty((rows.count, probes), np.int32)
    for some in rows.blocks(rows.at_once(count)):
        nearest[some] = _nearest_cells(rows, rows.take(some), centres, probes)
        progress("sorting into cells", some.stop, rows.count)
    return Cells(centres, nearest)


def _centres(rows: Rows, count: int, random: np.random.Generator, turns: int, progress: Progress) -> Floats:
    if count == 1:
        return np.zeros((1, rows.dimension), np.float32)
    size = min(rows.count, max(_SAMPLED_A_CELL * count, 4096))
    sample = rows.take(np.sort(random.choice(rows.count, size, replace=False)))
    centres = sample[random.choice(size, count, replace=False)]
    step = rows.at_once(count)
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


def _grouped(cell: npt.NDArray[np.int32], count: int) -> tuple[Numbers, Numbers]:
    order = np.argsort(cell, kind="stable")
    starts = np.searchsorted(cell[order], np.arange(count + 1))
    return order.astype(np.int64), starts.astype(np.int64)
