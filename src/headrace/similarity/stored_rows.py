"""Rows: vectors as they are stored, converted to float32 a few at a time, and cells that group near ones.

The rows of a cell have the same nearest centre. Near rows are mostly in the same cell or in a neighbouring
one. The centres are found by k-means on a sample. Comparing each row only with the rows of its nearest cells
takes time proportional to N·√N, where comparing all pairs takes N².
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from headrace.base.errors import InvalidRequest
from headrace.base.tensors import Array

Metric = Literal["cosine", "dot", "l2"]
"""Metric: cosine of the angle, dot product (both larger for nearer vectors), or Euclidean distance."""

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]
Which = slice | Numbers

Progress = Callable[[str, int, int], None]
"""Called with the current step, the amount done, and the total amount."""

_BLOCK_NUMBERS = 4_000_000
_LARGEST = 1e15
_SMALLEST_NORM = 1e-300


def ignore_progress(what: str, done: int, total: int) -> None:
    """Ignore the progress."""


class Rows:
    """Vectors to compare; not copied.

    Attributes:
        count: Number of vectors.
        dimension: Length of a vector.
        metric: Metric to compare by.
        block: Number of vectors in a block, which is about 16 MB as float32.
        largest: Largest absolute value of all numbers.
    """

    def __init__(self, vectors: Array, metric: Metric = "cosine", *, scales: Array | None = None) -> None:
        """Check the vectors.

        Args:
            vectors: float32, float16 or int8 ``[N, D]``; may be a memory map.
            metric: Metric to compare by.
            scales: Scale of each int8 vector, ``[N]``; not needed for ``cosine``.

        Raises:
            InvalidRequest: The metric, shape or dtype is not supported, int8 vectors lack scales, or a number
                is not finite or too large to compute with (1e15 for ``dot`` and ``l2``).
        """
        if metric not in get_args(Metric):
            raise InvalidRequest(f"expected {', '.join(get_args(Metric))}, got {metric!r}", field="metric")
        if vectors.ndim != 2 or vectors.shape[1] == 0:
            raise InvalidRequest(f"expected the shape [N, D], got {list(vectors.shape)}", field="vectors")
        if vectors.dtype not in (np.float32, np.float16, np.int8):
            raise InvalidRequest(f"expected float32, float16 or int8, got {vectors.dtype}", field="vectors")
        if vectors.dtype == np.int8 and scales is None and metric != "cosine":
            raise InvalidRequest(f"int8 vectors need their scales for {metric}", field="scales")
        if scales is not None and scales.shape != vectors.shape[:1]:
            expected = f"expected one per vector, {vectors.shape[0]}"
            raise InvalidRequest(f"{expected}, got the shape {list(scales.shape)}", field="scales")
        self.count, self.dimension = int(vectors.shape[0]), int(vectors.shape[1])
        self.metric: Metric = metric
        self.block = max(1, _BLOCK_NUMBERS // self.dimension)
        self._vectors, self._scales = vectors, scales
        self._places: Numbers | None = None
        self.largest = 0.0
        self._check_finite()

    def take(self, which: Which) -> Floats:
        """Return some rows to compute with.

        Args:
            which: Numbers of the rows, or a slice.

        Returns:
            float32 ``[n, D]``; for ``cosine`` scaled to length 1, or all zeros for zero vectors.
        """
        places = self._placed(which)
        taken = self._scaled(self._vectors[places].astype(np.float32), places)
        if self.metric != "cosine":
            return taken
        return unit(taken, may_overflow=self._vectors.dtype == np.float32 or self._scales is not None)

    def doubles(self, which: Which) -> Doubles:
        """Return some rows in float64, not normalized."""
        places = self._placed(which)
        taken: Doubles = self._vectors[places].astype(np.float64)
        if self._scales is not None:
            taken *= self._scales[places][:, None]
        return taken

    def stored(self, which: Which) -> tuple[Array, Array | None]:
        """Return some rows as stored, and their scales, if there are any."""
        places = self._placed(which)
        return self._vectors[places], None if self._scales is None else self._scales[places]

    def only(self, which: Numbers) -> Rows:
        """Return a subset of the rows, renumbered; nothing is copied."""
        made = copy(self)
        made._places = self._placed(which)
        made.count = len(which)
        return made

    def like(self, vectors: Array, *, scales: Array | None = None) -> Rows:
        """Return other vectors as rows that can be compared with these.

        Raises:
            InvalidRequest: The vectors are invalid, or have another dimension.
        """
        if vectors.ndim == 1:
            vectors = vectors[None]
        others = Rows(vectors, self.metric, scales=scales)
        if others.dimension != self.dimension:
            raise InvalidRequest(
                f"expected {self.dimension} numbers a vector, got {others.dimension}", field="queries"
            )
        return others

    def blocks(self, rows: int | None = None) -> list[slice]:
        """Return slices that cover all rows, in order."""
        step = rows or self.block
        return [slice(start, min(start + step, self.count)) for start in range(0, self.count, step)]

    def at_once(self, others: int) -> int:
        """Return how many rows to compare with some others at a time.

        Neither these rows nor their scores are then larger than a block.

        Args:
            others: Number of vectors that each row is compared with.
        """
        return max(1, min(self.block, _BLOCK_NUMBERS // max(1, others)))

    def exactly(self, left: Numbers, right: Numbers) -> Doubles:
        """Return the similarities of pairs of rows in float64, as shown to users; distances for ``l2``.

        Args:
            left: First row of each pair.
            right: Second row of each pair.
        """
        made = np.empty(len(left), np.float64)
        for start in range(0, len(left), self.block):
            some = slice(start, start + self.block)
            made[some] = similarities(self.metric, self.doubles(left[some]), self.doubles(right[some]))
        return made

    def _placed(self, which: Which) -> Any:
        return which if self._places is None else self._places[which]

    def _check_finite(self) -> None:
        largest = np.finfo(np.float32).max if self.metric == "cosine" else _LARGEST
        for some in self.blocks():
            peaks = self._peaks(some)
            sound = peaks <= largest  # False for NaN
            if not sound.all():
                row = some.start + int(np.argmin(sound))
                came = f"expected finite numbers up to {largest:.3g}, got {peaks[row - some.start]}"
                raise InvalidRequest(came, field=f"vectors[{row}]")
            self.largest = max(self.largest, float(peaks.max(initial=0)))

    def _peaks(self, some: slice) -> Floats:
        """Return the largest absolute value of each row; not finite if any number of the row is not."""
        if self._vectors.dtype == np.float16:
            # Without the sign, the bits of float16 numbers sort like the numbers, so need no conversion.
            bits = self._vectors[some].view(np.uint16) & np.uint16(0x7FFF)
            peaks = bits.max(axis=1).view(np.float16).astype(np.float32)
        else:
            peaks = np.abs(self._vectors[some].astype(np.float32)).max(axis=1)
        return self._scaled(peaks[:, None], some)[:, 0]

    def _scaled(self, taken: Floats, places: Any) -> Floats:
        if self._scales is not None:
            taken *= self._scales[places].astype(np.float32)[:, None]
        return taken


def unit(vectors: Floats, *, may_overflow: bool = True) -> Floats:
    """Scale vectors to length 1 in place; zero vectors are unchanged.

    Args:
        vectors: float32 ``[n, D]``.
        may_overflow: Whether squares of numbers may overflow or underflow float32.
    """
    if may_overflow:  # scale them near 1 first
        peaks = np.abs(vectors).max(axis=1, keepdims=True, initial=0.0)
        vectors /= np.where(peaks > 0, peaks, 1)
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))[:, None]
    vectors /= np.where(norms > 0, norms, 1)
    return vectors


def scores(metric: Metric, one: Floats, other: Floats) -> Floats:
    """Return the score of each pair of vectors of two arrays; larger is nearer.

    Args:
        metric: Metric to compare by.
        one: ``[n, D]``, from ``Rows.take``.
        other: ``[m, D]``.

    Returns:
        float32 ``[n, m]``; for ``l2`` the negative squared distance.
    """
    with np.errstate(invalid="ignore"):  # OpenBLAS may read past small arrays, with spurious warnings
        made = one @ other.T
    if metric == "l2":
        made *= 2
        made -= np.einsum("ij,ij->i", one, one)[:, None]
        made -= np.einsum("ij,ij->i", other, other)[None]
        np.minimum(made, 0, out=made)
    return made


def similarities(metric: Metric, one: Doubles, other: Doubles) -> Doubles:
    """Return the similarities of two arrays of vectors, row by row, as shown to users.

    Args:
        metric: Metric to compare by.
        one: ``[n, D]``, or ``[1, D]`` to compare one vector with all.
        other: ``[n, D]``.

    Returns:
        float64 ``[n]``: the cosine (0 for zero vectors), the dot product, or the distance.
    """
    if metric == "l2":
        return np.asarray(np.linalg.norm(one - other, axis=1))
    product = np.asarray((one * other).sum(axis=1))
    if metric == "dot":
        return product
    # Take one root of the product, so that the cosine of equal vectors is exactly 1.
    norms = np.sqrt((one * one).sum(axis=1) * (other * other).sum(axis=1))
    return np.asarray(np.clip(product / np.maximum(norms, _SMALLEST_NORM), -1.0, 1.0))


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
    rows: Rows,
    count: int,
    probes: int,
    seed: int = 0,
    progress: Progress = ignore_progress,
    *,
    turns: int = _TURNS,
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
