"""Near-duplicates: groups of rows whose similarity reaches a threshold.

Equal vectors are found first, by a hash of their bytes. The other rows are compared within cells: each row
with the rows of its nearest cells, in block products. That takes a fraction of the time to build any index
(docs/decisions/0019). Comparisons are exact, but pairs whose cells are not near each other are missed. Each
run measures the share of pairs found on a sample that it compares with all rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.base.errors import InvalidRequest, TooLarge
from headrace.base.tensors import Array
from headrace.similarity.stored_rows import (
    Cells,
    Doubles,
    Floats,
    Numbers,
    Progress,
    Rows,
    ignore_progress,
    make_cells,
    scores,
)

# Equal vectors: rows are grouped by a hash of their numbers, then compared.


_SEED = 0x5EED


def first_equal(rows: Rows) -> Numbers:
    """Return the first row with the same vector as each row, ``[N]``: the row itself if none is earlier.

    int8 vectors that differ in their scales only are equal for ``cosine``, which ignores scales.
    """
    hashes = np.empty(rows.count, np.uint64)
    for some in rows.blocks():
        vectors, scales = rows.stored(some)
        hashes[some] = _hashed(vectors)
        if scales is not None and rows.metric != "cosine":
            hashes[some] ^= _hashed(scales[:, None])
    _, first, which = np.unique(hashes, return_index=True, return_inverse=True)
    found = first[which].astype(np.int64)
    repeated = np.flatnonzero(found != np.arange(rows.count))
    for start in range(0, len(repeated), rows.block):
        later = repeated[start : start + rows.block]
        # Keep different vectors of one hash apart. Some equal ones are then missed; ``_pairs`` finds them.
        different = ~_same(rows, later, found[later])
        found[later[different]] = later[different]
    return found


def _same(rows: Rows, one: Numbers, other: Numbers) -> npt.NDArray[np.bool_]:
    (left, left_scales), (right, right_scales) = rows.stored(one), rows.stored(other)
    same = (left == right).all(axis=1)
    if left_scales is not None and right_scales is not None and rows.metric != "cosine":
        same &= left_scales == right_scales
    return np.asarray(same)


def _hashed(vectors: Array) -> npt.NDArray[np.uint64]:
    """Return a hash of each row: the dot product of its bits with random odd numbers, modulo 2**64."""
    bits = np.ascontiguousarray(vectors + vectors.dtype.type(0))  # turns -0 into 0
    words = bits.view(np.dtype(f"u{bits.itemsize}"))
    random = np.random.default_rng(_SEED)
    factors = random.integers(0, 2**63, words.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    made = words.astype(np.uint64) @ factors
    made ^= made >> np.uint64(32)
    return np.asarray(made)


# Connected components of numbers, found by union-find.


class Grouping:
    """Union-find over ``0 … count - 1``.

    Pairs are joined in batches, so memory grows with the numbers, not with the pairs.
    """

    def __init__(self, count: int) -> None:
        """Start with each number in a group of its own.

        Args:
            count: The numbers are 0 to ``count - 1``.
        """
        self._root = np.arange(count, dtype=np.int64)
        self._waiting: list[tuple[Numbers, Numbers]] = []
        self._pairs = 0

    def join(self, left: Numbers, right: Numbers) -> None:
        """Put the two numbers of each pair into one group."""
        apart = self._root[left] != self._root[right]
        self._waiting.append((left[apart], right[apart]))
        self._pairs += int(np.count_nonzero(apart))
        # Joining takes a pass over all numbers, so wait for as many pairs.
        if self._pairs >= len(self._root):
            self._settle()

    def roots(self) -> Numbers:
        """Return the smallest number of each number's group, ``[count]``."""
        self._settle()
        return self._root

    def _settle(self) -> None:
        if not self._pairs:
            self._waiting = []
            return
        left = np.concatenate([pair[0] for pair in self._waiting])
        right = np.concatenate([pair[1] for pair in self._waiting])
        self._waiting, self._pairs = [], 0
        root = self._root
        while True:
            one, other = root[left], root[right]
            apart = one != other
            if not apart.any():
                break
            left, right, one, other = left[apart], right[apart], one[apart], other[apart]
            # Attach each root to the smallest root it is paired with, which cannot create a cycle.
            np.minimum.at(root, np.maximum(one, other), np.minimum(one, other))
            while not np.array_equal(above := root[root], root):
                root[:] = above


EXACT_ROWS = 10_000
"""Maximum number of different vectors for which all pairs are compared: cells would not be faster."""

_PROBES = 4
_QUERIES_AT_ONCE = 1024
_MEMBERS_AT_ONCE = 4096
_ROUNDING = 2e-5
_EXACT = 1e-9
_FARTHEST = 1e18  # beyond any distance; its square fits into float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Limits and quality of a search for duplicates.

    Attributes:
        exact: Whether to compare all pairs; None to do so up to ``EXACT_ROWS`` different vectors.
        probes: Number of cells that a row is compared with; more find more pairs, in time that grows with the
            square root of this number.
        most_groups: Maximum number of groups to return, the largest first.
        most_comparisons: Maximum number of comparisons; both directions of a pair count.
        checked_rows: Number of sampled rows to measure the recall on; 0 for none.
        seed: Seed of the samples.
    """

    exact: bool | None = None
    probes: int = _PROBES
    most_groups: int = 1000
    most_comparisons: int = 10**12
    checked_rows: int = 200
    seed: int = 0


DEFAULT_EFFORT = Effort()
"""Default limits."""


@dataclass(frozen=True, slots=True)
class Group:
    """Rows joined by similar pairs: each row is similar to another one of the group, maybe not to all.

    Attributes:
        rows: int64 ``[n]``: the most central row first, the others after it, the nearest first.
        similarities: float64 ``[n]``: similarity to the first row, computed in float64; the distance for
            ``l2``, and 1 for equal zero vectors.
    """

    rows: Numbers
    similarities: Doubles


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicates:
    """The result of a search for duplicates.

    Attributes:
        groups: Groups, the largest first, up to ``Effort.most_groups``.
        group_count: Number of all groups.
        row_count: Number of rows compared.
        equal_rows: Number of rows that equal an earlier row exactly.
        extra_rows: Number of rows in groups, not counting one row of each.
        pair_count: Number of similar pairs found.
        recall: Share of similar pairs found, measured on a sample; 1 if all pairs were compared, None if the
            sample had no pair.
    """

    groups: tuple[Group, ...]
    group_count: int
    row_count: int
    equal_rows: int
    extra_rows: int
    pair_count: int
    recall: float | None


@dataclass(frozen=True, slots=True)
class _Cut:
    """The similarity threshold, and the rounding margin of float32 scores around it.

    Attributes:
        threshold: Threshold as requested.
        floor: Least score, as computed in float32.
        edge: Distance from ``floor`` within which float32 scores are not reliable.
    """

    threshold: float
    floor: float
    edge: float

    @classmethod
    def of(cls, rows: Rows, threshold: float) -> _Cut:
        if rows.metric == "cosine":
            return cls(threshold, threshold, _ROUNDING)
        return cls(threshold, -(min(threshold, _FARTHEST) ** 2), _ROUNDING * rows.dimension * rows.largest**2)

    def similar(self, rows: Rows, some: Numbers, there: Numbers, made: Floats) -> tuple[Numbers, Numbers]:
        """Return the similar pairs of a block; scores near the threshold are recomputed in float64."""
        one, other = np.nonzero(made >= np.float32(self.floor - self.edge))
        left, right = some[one], there[other]
        kept = left != right
        unsure = np.flatnonzero(kept & (made[one, other] <= np.float32(self.floor + self.edge)))
        exact = rows.exactly(left[unsure], right[unsure])
        if rows.metric == "cosine":
            kept[unsure] = exact >= self.threshold - _EXACT
        else:
            kept[unsure] = exact <= self.threshold * (1 + _EXACT)
        return left[kept], right[kept]


def duplicates(
    rows: Rows, threshold: float, effort: Effort = DEFAULT_EFFORT, progress: Progress = ignore_progress
) -> Duplicates:
    """Find near-duplicates.

    Args:
        rows: Rows to compare, by ``cosine`` or ``l2``.
        threshold: Least cosine, or largest distance, of a similar pair.
        effort: Limits of the search.
        progress: Called with the progress.

    Raises:
        InvalidRequest: The threshold is not valid for the metric, or the metric is ``dot``.
        TooLarge: The search would exceed ``effort.most_comparisons``.
    """
    _check(rows, threshold)
    first = first_equal(rows)
    distinct = np.flatnonzero(first == np.arange(rows.count))
    different = rows.only(distinct)
    cells = _cells(different, effort, progress)
    copies = np.bincount(first, minlength=rows.count)[distinct]
    cut = _Cut.of(rows, threshold)
    grouping = Grouping(different.count)
    pair_count = int((copies * (copies - 1) // 2).sum())
    for left, right in _pairs(different, cells, cut, progress):
        grouping.join(left, right)
        pair_count += int((copies[left] * copies[right]).sum())
    root = np.empty(rows.count, np.int64)
    root[distinct] = distinct[grouping.roots()]
    root = root[first]
    sizes = np.bincount(root, minlength=rows.count)
    recall = _recall(different, cells, cut, effort)
    return Duplicates(
        groups=_groups(rows, root, sizes, effort.most_groups, progress),
        group_count=int(np.count_nonzero(sizes > 1)),
        row_count=rows.count,
        equal_rows=rows.count - len(distinct),
        extra_rows=int((sizes[sizes > 1] - 1).sum()),
        pair_count=pair_count,
        recall=recall,
    )


def _check(rows: Rows, threshold: float) -> None:
    if rows.metric == "dot":
        expected = "expected cosine or l2: by dot, a vector may be nearer to others than to itself"
        raise InvalidRequest(expected, field="metric")
    if rows.metric == "cosine" and not 0 < threshold <= 1:
        raise InvalidRequest(f"expected a cosine above 0, up to 1, got {threshold}", field="threshold")
    if rows.metric == "l2" and not (math.isfinite(threshold) and threshold >= 0):
        raise InvalidRequest(f"expected a distance, 0 or more, got {threshold}", field="threshold")


def _cells(rows: Rows, effort: Effort, progress: Progress) -> Cells:
    exact = rows.count <= EXACT_ROWS if effort.exact is None else effort.exact
    probes = max(1, effort.probes)
    # With this number, finding the cells of a row takes about as long as comparing it with their rows.
    count = 1 if exact else round(1.5 * math.sqrt(probes * rows.count))
    cells = make_cells(rows, count, probes, effort.seed, progress)
    comparisons = _comparisons(cells)
    if comparisons > effort.most_comparisons:
        raise TooLarge(
            f"expected at most {effort.most_comparisons:.10g} comparisons, but {rows.count} different "
            f"vectors take {comparisons:.3g}; raise the limit, or search fewer rows",
            field="most_comparisons",
        )
    return cells


def _comparisons(cells: Cells) -> int:
    members = np.bincount(cells.home, minlength=len(cells.centres))
    visitors = np.bincount(cells.nearest.ravel(), minlength=len(cells.centres))
    return int((members * visitors).sum())


def _pairs(rows: Rows, cells: Cells, cut: _Cut, progress: Progress) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield the similar pairs found, each once, in batches."""
    members, starts = cells.members()
    visitors, visits = cells.visitors()
    done, total = 0, _comparisons(cells)
    for cell in range(len(cells.centres)):
        inside = members[starts[cell] : starts[cell + 1]]
        asking = visitors[visits[cell] : visits[cell + 1]]
        if not len(inside):
            continue
        for at in range(0, len(inside), _MEMBERS_AT_ONCE):
            there = inside[at : at + _MEMBERS_AT_ONCE]
            taken = rows.take(there)
            for start in range(0, len(asking), _QUERIES_AT_ONCE):
                some = asking[start : start + _QUERIES_AT_ONCE]
                done += len(some) * len(there)
                if some[0] < there[-1] or len(cells.centres) > 1:
                    made = scores(rows.metric, rows.take(some), taken)
                    left, right = cut.similar(rows, some, there, made)
                    once = _once(cells, left, right)
                    yield left[once], right[once]
                progress("comparing", done, total)


def _once(cells: Cells, left: Numbers, right: Numbers) -> npt.NDArray[np.bool_]:
    """Return which pairs (visitor, member) to keep, so that a pair found in both directions counts once."""
    both_ways = _visits(cells, right, left)
    return np.asarray((left < right) | ~both_ways)


def _visits(cells: Cells, visitor: Numbers, member: Numbers) -> npt.NDArray[np.bool_]:
    return np.asarray((cells.nearest[visitor] == cells.home[member][:, None]).any(axis=1))


def _recall(rows: Rows, cells: Cells, cut: _Cut, effort: Effort) -> float | None:
    """Return the share of the similar pairs of sampled rows that cells find; None if there are none."""
    if len(cells.centres) == 1:
        return 1.0
    random = np.random.default_rng(effort.seed)
    asked = np.sort(random.choice(rows.count, min(rows.count, effort.checked_rows), replace=False))
    found = total = 0
    for block in rows.blocks(rows.at_once(len(asked))):
        there = np.arange(block.start, block.stop)
        if not len(asked):
            break
        made = scores(rows.metric, rows.take(asked), rows.take(there))
        left, right = cut.similar(rows, asked, there, made)
        total += len(left)
        found += int(np.count_nonzero(_visits(cells, left, right) | _visits(cells, right, left)))
    return found / total if total else None


def _groups(rows: Rows, root: Numbers, sizes: Numbers, most: int, progress: Progress) -> tuple[Group, ...]:
    roots = np.flatnonzero(sizes > 1)
    largest = roots[np.argsort(-sizes[roots], kind="stable")[:most]]
    if not len(largest):
        return ()
    # Sort by group once, so that each group is a slice.
    wanted = np.zeros(len(sizes), bool)
    wanted[largest] = True
    grouped = np.flatnonzero(wanted[root])
    grouped = grouped[np.argsort(root[grouped], kind="stable")]
    starts = np.searchsorted(root[grouped], largest)
    made = []
    for number, (start, size) in enumerate(zip(starts, sizes[largest], strict=True)):
        made.append(_group(rows, grouped[start : start + size]))
        progress("ordering groups", number + 1, len(largest))
    return tuple(made)


def _group(rows: Rows, members: Numbers) -> Group:
    """Return a group, starting with the row nearest to its mean."""
    blocks = [members[start : start + rows.block] for start in range(0, len(members), rows.block)]
    middle = sum(rows.take(some).sum(axis=0, dtype=np.float64) for some in blocks)
    mean = np.asarray(middle / len(members), np.float32)[None]
    near = np.concatenate([scores(rows.metric, rows.take(some), mean)[:, 0] for some in blocks])
    central = members[int(np.argmax(near))]
    similar = rows.exactly(np.full(len(members), central), members)
    if rows.metric == "cosine" and not similar.any():
        similar[:] = 1.0  # equal zero vectors, which have no angle
    order = np.lexsort((members, similar if rows.metric == "l2" else -similar, members != central))
    return Group(members[order], similar[order])
