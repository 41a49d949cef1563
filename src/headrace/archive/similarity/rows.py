"""Rows: vectors as they are stored, of which only a few at a time are float32."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from headrace.errors import InvalidRequest
from headrace.tensors import Array

Metric = Literal["cosine", "dot", "l2"]
"""What near means: the angle's cosine, the product (both larger where nearer), or the distance."""

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]
Which = slice | Numbers

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""

_BLOCK_NUMBERS = 4_000_000
_LARGEST = 1e15
_SMALLEST_NORM = 1e-300


def unwatched(what: str, done: int, total: int) -> None:
    """Progress that nobody looks at."""


class Rows:
    """Vectors to be compared; they are not copied.

    Attributes:
        count: How many.
        dimension: How many numbers each has.
        metric: How they are compared.
        block: How many make a block: about 16 MB as float32.
        largest: The largest number of all, whatever its sign.
    """

    def __init__(self, vectors: Array, metric: Metric = "cosine", *, scales: Array | None = None) -> None:
        """Check the vectors.

        Args:
            vectors: float32, float16 or int8 ``[N, D]``; a memory map will do.
            metric: How to compare them.
            scales: Of int8, what each row is multiplied with, ``[N]``; a cosine does not need it.

        Raises:
            InvalidRequest: The shape or dtype is another one, or a number is not finite, or too large to
                compute with (products and distances: 1e15).
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
            expected = f"expected one a vector, {vectors.shape[0]}"
            raise InvalidRequest(f"{expected}, got the shape {list(scales.shape)}", field="scales")
        self.count, self.dimension = int(vectors.shape[0]), int(vectors.shape[1])
        self.metric: Metric = metric
        self.block = max(1, _BLOCK_NUMBERS // self.dimension)
        self._vectors, self._scales = vectors, scales
        self._places: Numbers | None = None
        self.largest = 0.0
        self._check_finite()

    def take(self, which: Which) -> Floats:
        """Some rows to compute with.

        Args:
            which: Their numbers, or a slice.

        Returns:
            float32 ``[n, D]``; for ``cosine`` of length 1, or all zeros where there is no direction.
        """
        places = self._placed(which)
        taken = self._scaled(self._vectors[places].astype(np.float32), places)
        if self.metric != "cosine":
            return taken
        return unit(taken, may_overflow=self._vectors.dtype == np.float32 or self._scales is not None)

    def doubles(self, which: Which) -> Doubles:
        """Some rows in float64, with their own lengths."""
        places = self._placed(which)
        taken: Doubles = self._vectors[places].astype(np.float64)
        if self._scales is not None:
            taken *= self._scales[places][:, None]
        return taken

    def stored(self, which: Which) -> tuple[Array, Array | None]:
        """Some rows as they are stored, and their scales, if there are any."""
        places = self._placed(which)
        return self._vectors[places], None if self._scales is None else self._scales[places]

    def only(self, which: Numbers) -> Rows:
        """Some of the rows, by new numbers; nothing is copied."""
        made = copy(self)
        made._places = self._placed(which)
        made.count = len(which)
        return made

    def like(self, vectors: Array, *, scales: Array | None = None) -> Rows:
        """Other vectors that are compared with these.

        Raises:
            InvalidRequest: They are none, or have another number of numbers.
        """
        if vectors.ndim == 1:
            vectors = vectors[None]
        others = Rows(vectors, self.metric, scales=scales)
        if others.dimension != self.dimension:
            raise InvalidRequest(
                f"expected {self.dimension} numbers a vector, got {others.dimension}", field="vectors"
            )
        return others

    def blocks(self, rows: int | None = None) -> list[slice]:
        """Slices that cover all rows, in order."""
        step = rows or self.block
        return [slice(start, min(start + step, self.count)) for start in range(0, self.count, step)]

    def exactly(self, left: Numbers, right: Numbers) -> Doubles:
        """How similar pairs of rows are, in float64, as people are told: the distance for ``l2``.

        Args:
            left: The one row of each pair.
            right: The other one.
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
            sound = peaks <= largest  # NaN is not
            if not sound.all():
                row = some.start + int(np.argmin(sound))
                came = f"expected finite numbers up to {largest:.3g}, got {peaks[row - some.start]}"
                raise InvalidRequest(came, field=f"vectors[{row}]")
            self.largest = max(self.largest, float(peaks.max(initial=0)))

    def _peaks(self, some: slice) -> Floats:
        """The largest number of each row, without its sign; no finite one where there is one that is not."""
        if self._vectors.dtype == np.float16:
            # Without their signs, the bits of halves are in the order of the numbers: no conversion.
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
    """Make vectors one long, in place; what has no direction stays all zeros.

    Args:
        vectors: float32 ``[n, D]``.
        may_overflow: Whether there may be numbers whose square is no float32, or 0.
    """
    if may_overflow:  # brought near 1 first
        peaks = np.abs(vectors).max(axis=1, keepdims=True, initial=0.0)
        vectors /= np.where(peaks > 0, peaks, 1)
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))[:, None]
    vectors /= np.where(norms > 0, norms, 1)
    return vectors


def scores(metric: Metric, one: Floats, other: Floats) -> Floats:
    """How near every vector of one array is to every one of another: larger is nearer.

    Args:
        metric: How they are compared.
        one: ``[n, D]`` as ``Rows.take`` gives them.
        other: ``[m, D]``.

    Returns:
        float32 ``[n, m]``; for ``l2`` the square of the distance with a minus.
    """
    with np.errstate(invalid="ignore"):  # OpenBLAS also computes with what lies beside small arrays in memory
        made = one @ other.T
    if metric == "l2":
        made *= 2
        made -= np.einsum("ij,ij->i", one, one)[:, None]
        made -= np.einsum("ij,ij->i", other, other)[None]
        np.minimum(made, 0, out=made)
    return made


def similarities(metric: Metric, one: Doubles, other: Doubles) -> Doubles:
    """How similar vectors are to others, row by row, as people are told.

    Args:
        metric: How they are compared.
        one: ``[n, D]``, or ``[1, D]`` to compare one with all.
        other: ``[n, D]``.

    Returns:
        float64 ``[n]``: the cosine (0 for what has no direction), the product, or the distance.
    """
    if metric == "l2":
        return np.asarray(np.linalg.norm(one - other, axis=1))
    product = np.asarray((one * other).sum(axis=1))
    if metric == "dot":
        return product
    # One root of both: of equal vectors the cosine is 1 to the last bit.
    norms = np.sqrt((one * one).sum(axis=1) * (other * other).sum(axis=1))
    return np.asarray(np.clip(product / np.maximum(norms, _SMALLEST_NORM), -1.0, 1.0))
