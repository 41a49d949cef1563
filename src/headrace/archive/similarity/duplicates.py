"""Near-duplicates: rows that are at least so similar, in groups.

Equal vectors are found first, by a hash of their bytes. The others are compared within cells: each row with
those in its nearest cells, in products of blocks. That takes a fraction of what it takes to build any index
(docs/decisions/0019). What is compared is compared exactly; what may be missed are pairs whose cells are not
near one another. How many, each run measures on a sample, against all rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.archive.similarity.cells import Cells, make_cells
from headrace.archive.similarity.equal import first_equal
from headrace.archive.similarity.grouping import Grouping
from headrace.archive.similarity.rows import Doubles, Floats, Numbers, Progress, Rows, scores, unwatched
from headrace.errors import InvalidRequest, TooLarge

EXACT_ROWS = 10_000
"""Up to so many different vectors, all are compared with all: that is as fast."""

_PROBES = 4
_QUERIES_AT_ONCE = 1024
_MEMBERS_AT_ONCE = 4096
_ROUNDING = 2e-5
_EXACT = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What a search for duplicates may take, and give.

    Attributes:
        exact: Whether to compare all with all; None where there are at most ``EXACT_ROWS`` different vectors.
        probes: How many cells a row is compared with; more find more, and take as much longer.
        most_groups: How many groups to give, the largest first.
        most_comparisons: How many pairs may be compared.
        checked_rows: For how many rows to measure what was missed; 0 for none.
        seed: What samples depend on.
    """

    exact: bool | None = None
    probes: int = _PROBES
    most_groups: int = 1000
    most_comparisons: int = 10**12
    checked_rows: int = 200
    seed: int = 0


DEFAULT_EFFORT = Effort()
"""What is taken where nothing is said."""


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that are joined by similar pairs: each to another one, not all to all.

    Attributes:
        rows: int64 ``[n]``: the one in the middle first, then by how similar they are to it.
        similarities: float64 ``[n]``: how similar each is to the first, in float64; distances for ``l2``.
    """

    rows: Numbers
    similarities: Doubles


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicates:
    """What was found.

    Attributes:
        groups: The largest first.
        group_count: How many there are, given or not.
        row_count: How many rows were compared.
        equal_rows: How many have exactly the vector of an earlier row.
        extra_rows: How many are in groups, beyond one of each.
        pair_count: How many pairs are that similar.
        recall: Which share of the pairs was found, as measured on a sample; 1 where all were compared with
            all, and None where the sample had no pair.
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
    """Where pairs are similar enough.

    Attributes:
        threshold: As it was asked for.
        floor: The least score, as it is computed in float32.
        edge: How far from that float32 is not to be trusted.
    """

    threshold: float
    floor: float
    edge: float

    @classmethod
    def of(cls, rows: Rows, threshold: float) -> _Cut:
        if rows.metric == "cosine":
            return cls(threshold, threshold, _ROUNDING)
        return cls(threshold, -(threshold**2), _ROUNDING * rows.dimension * rows.largest**2)

    def similar(self, rows: Rows, some: Numbers, there: Numbers, made: Floats) -> tuple[Numbers, Numbers]:
        """The pairs of a block that are similar enough; those at the edge are computed again, in float64."""
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
    rows: Rows, threshold: float, effort: Effort = DEFAULT_EFFORT, progress: Progress = unwatched
) -> Duplicates:
    """Find near-duplicates.

    Args:
        rows: Among which; compared by ``cosine`` or ``l2``.
        threshold: The least cosine, or the largest distance, of what counts as the same.
        effort: What it may take.
        progress: Told how far it is.

    Raises:
        InvalidRequest: The threshold is none of the metric, or the metric is ``dot``.
        TooLarge: It would take more comparisons than it may.
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
    # So many that finding a row's cells, and comparing it with what is in them, take about the same.
    count = 1 if exact else round(1.5 * math.sqrt(probes * rows.count))
    cells = make_cells(rows, count, probes, effort.seed, progress)
    comparisons = _comparisons(cells)
    if comparisons > effort.most_comparisons:
        raise TooLarge(
            f"expected at most {effort.most_comparisons:.10g} comparisons, but {rows.count} different "
            f"vectors take {comparisons:.3g}; allow more, or look at some of the keys",
            field="most_comparisons",
        )
    return cells


def _comparisons(cells: Cells) -> int:
    members = np.bincount(cells.home, minlength=len(cells.centres))
    visitors = np.bincount(cells.nearest.ravel(), minlength=len(cells.centres))
    return int((members * visitors).sum())


def _pairs(rows: Rows, cells: Cells, cut: _Cut, progress: Progress) -> Iterator[tuple[Numbers, Numbers]]:
    """All pairs that are similar enough, each once, some at a time."""
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
    """Which pairs to count, of (visitor, member): once those that come the other way round, too."""
    both_ways = _visits(cells, right, left)
    return np.asarray((left < right) | ~both_ways)


def _visits(cells: Cells, visitor: Numbers, member: Numbers) -> npt.NDArray[np.bool_]:
    return np.asarray((cells.nearest[visitor] == cells.home[member][:, None]).any(axis=1))


def _recall(rows: Rows, cells: Cells, cut: _Cut, effort: Effort) -> float | None:
    """Which share of the pairs of sampled rows has been found: whether one visits the other's cell."""
    if len(cells.centres) == 1:
        return 1.0
    random = np.random.default_rng(effort.seed)
    asked = np.sort(random.choice(rows.count, min(rows.count, effort.checked_rows), replace=False))
    found = total = 0
    for block in rows.blocks():
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
    # Sorted by group once, so that each group is a slice.
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
    """A group with the row that is nearest to its mean first."""
    blocks = [members[start : start + rows.block] for start in range(0, len(members), rows.block)]
    middle = sum(rows.take(some).sum(axis=0, dtype=np.float64) for some in blocks)
    mean = np.asarray(middle / len(members), np.float32)[None]
    near = np.concatenate([scores(rows.metric, rows.take(some), mean)[:, 0] for some in blocks])
    central = members[int(np.argmax(near))]
    similar = rows.exactly(np.full(len(members), central), members)
    order = np.lexsort((members, similar if rows.metric == "l2" else -similar, members != central))
    return Group(members[order], similar[order])
