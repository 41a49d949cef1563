"""The batch contract, checked when a version is loaded: one output row per input row, and independent rows.

Requests are merged into batches, and large ones are split. If a model's first axis is not rows, or its rows
depend on their neighbours, callers would receive each other's numbers with status 200. The check calls the
model with:

* batches of two sizes; each output must have one row per input row;
* pairs of batches of one size, in which one or two rows stay and the others change. The outputs of the rows
  that stay must not change. If they do, both batches are computed again. An output that differs between two
  runs of one batch has state or randomness; only its row count is checked;
* a single row. Its output alone and in a batch may differ by rounding, as kernels differ by batch size.

Outputs of an explanation are addends of one sum, so their differences are measured by the largest addend: the
rest of a network without biases, for one, is nothing but rounding.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from headrace.base.tensors import STRING, Array, Tensors
from headrace.model.servable import EXPLAIN_SIGNATURE, Signature, TensorSpec

Predict = Callable[[Tensors], Tensors]

DRAWS = 4
"""Number of pairs of batches compared if all outputs are floats."""

_DRAWS_OF_LABELS = 12
_BESIDE_OTHERS, _ALONE = (1, 2), (2, DRAWS - 1)
"""Draws in which an output must differ to count, for floats and for labels; rounding varies by batch size."""

NEIGHBOUR_TOLERANCE = 1e-5
"""Tolerance for floats in batches of one size, relative to the largest number of the column."""

ALONE_TOLERANCE = 1e-3
"""Tolerance for a row alone and in a batch, relative to the whole output: kernels differ by batch size."""

_HALF_TOLERANCE = 1e-2  # for float16 in both cases
_ROWS, _MORE_ROWS = 4, 7
_FEWEST_ROWS = 2
_ROWS_TO_KEEP_TWO = 4
_UNKNOWN_SIZES = (4, 16, 1)
"""Sizes tried for dimensions that the signature leaves open."""

_WIDER = 50
"""Factor applied to the neighbours in every other draw, to reveal scaling by the whole batch."""

_DRAWN_ROWS, _DRAWN_BYTES = 16, 16 * 1024 * 1024
"""Floats are drawn once, for this many rows or two batches; for fewer if these would exceed the bytes."""

UNVARIED = "all generated rows are the same, so only the row count was checked"
"""The part that was not checked for want of rows that differ, as recorded ones may."""

WAY_OUT = (
    "set `batching = false` in headrace.toml to compute each request by itself and return its answer whole, "
    "or `[warm_up] probe = false` to skip this check (of an app.py: in the file of --config, under "
    "[models.NAME])"
)


class OutOfTime(Exception):
    """The check reached its time limit."""


@dataclass(slots=True)
class Findings:
    """Findings of the check of one signature.

    Attributes:
        breach: Why the model cannot be batched; "" if nothing was found.
        unchecked: The parts that were not checked and the reasons, as sentences.
        refused: The error if the model answered no batch; None otherwise.
        first_seconds: Duration of the first call in seconds. It warms the model up, so the limit excludes it.
    """

    breach: str = ""
    unchecked: list[str] = field(default_factory=list)
    refused: Exception | None = None
    first_seconds: float = 0.0


def check_contract(
    predict: Predict,
    signature: Signature,
    sizes: Sequence[int],
    recorded: Sequence[Tensors],
    until: float,
    *,
    in_rows: bool = True,
) -> Findings:
    """Check one signature of a model.

    Args:
        predict: Runs the model on a batch.
        signature: The signature to check.
        sizes: The batch sizes that the model may receive, ascending; empty for any.
        recorded: Batches of recorded requests that the model has answered. Rows are generated if these fail,
            or do not differ.
        until: Time limit on the monotonic clock; the duration of the first call is added.
        in_rows: Whether requests are merged and split by rows; if not, only one call is checked.
    """
    probe = _Probe(predict, signature, sizes, until)
    try:
        probe.run(recorded, in_rows=in_rows)
    except OutOfTime:
        probe.findings.unchecked.append(f"the check reached its time limit: {probe.compared()}")
    return probe.findings


class _Probe:
    """The calls that check one signature of a model."""

    def __init__(self, predict: Predict, signature: Signature, sizes: Sequence[int], until: float) -> None:
        self.findings = Findings()
        self._predict, self._signature, self._until = predict, signature, until
        self._rows = _at_least(_ROWS, sizes)
        self._more_rows = _at_least(_MORE_ROWS, sizes)
        self._may_be_alone = not sizes or sizes[0] == 1
        self._random = np.random.default_rng(0)
        self._longest = 0.0
        self._is_warm = False
        self._varying: set[str] = set()
        self._are_addends = signature.name == EXPLAIN_SIGNATURE
        self._labels = {one.name for one in signature.outputs if one.dtype.kind != "f"}
        self.draws, self.most_draws = 0, _DRAWS_OF_LABELS if self._labels else DRAWS

    def run(self, recorded: Sequence[Tensors], *, in_rows: bool) -> None:
        """Check with the first pool (recorded rows, then generated ones) whose batches all succeed."""
        refused: Exception | None = None
        for pool in self._pools(recorded):
            try:
                self._check(pool, in_rows=in_rows)
            except OutOfTime:
                raise
            except Exception as error:  # noqa: BLE001 - the boundary to a model's own code, on generated data
                refused = refused or error
            else:
                return
        self.findings.refused = refused
        if in_rows and self._may_be_alone and refused is not None:
            self.findings.breach = self._only_alone(recorded)

    def _pools(self, recorded: Sequence[Tensors]) -> Iterator[_Pool]:
        if rows := _alike(recorded):
            yield _Pool(self._signature, self._random, rows)
        for way in _ways(self._signature):
            yield _Pool(self._signature, self._random, {}, way)

    def _check(self, pool: _Pool, *, in_rows: bool) -> None:
        self.draws = 0
        first = pool.draw(self._rows)
        answer = self._ask(first)
        if not in_rows:
            return
        self.findings.breach = self._wrong_rows(answer, self._rows)
        if self.findings.breach or self._rows == 1:
            return
        self.findings.breach = self._depends_on_neighbours(pool) or self._depends_on_size(pool)
        if self._varying:
            names = ", ".join(sorted(self._varying))
            self.findings.unchecked.append(
                f"the same batch is answered differently each time, so of {names} only the row count was "
                "checked"
            )
        if not pool.varies:
            self.findings.unchecked.append(UNVARIED)

    def _ask(self, inputs: Tensors) -> Tensors:
        began = time.monotonic()
        if began + self._longest > self._until:
            raise OutOfTime
        answer = self._predict(inputs)
        seconds = time.monotonic() - began
        if self._is_warm:
            self._longest = max(self._longest, seconds)
        else:
            self._is_warm, self.findings.first_seconds = True, seconds
            self._until += seconds
        return answer

    def _wrong_rows(self, answer: Tensors, rows: int) -> str:
        for spec in self._signature.outputs:
            array = answer.get(spec.name)
            if array is not None and (array.ndim == 0 or len(array) != rows):
                got = "no rows" if array.ndim == 0 else f"{len(array)}"
                return (
                    f"the model answers a batch of {rows} rows with {got} in the output {spec.name!r} "
                    f"({list(array.shape)}): export it with rows as the first axis of each input and output"
                )
        return ""

    def compared(self) -> str:
        """Return what was compared before the time limit, as text."""
        if self.draws < self.most_draws:
            return f"the rows of {self.draws} of {self.most_draws} pairs of batches were compared"
        return "the rows of a batch were compared beside other rows, but not all of them with a row alone"

    def _depends_on_neighbours(self, pool: _Pool) -> str:
        """Check rows against changed neighbours, and count the rows of a batch of another size."""
        found = Counter[str]()
        for draw in range(self.most_draws):
            places = _kept(draw, self._rows)
            one = pool.draw(self._rows)
            other = self._with_neighbours(pool, one, places, is_wide=draw % 2 == 0)
            found.update(self._differing(one, other, places, places, NEIGHBOUR_TOLERANCE))
            self.draws += 1
            if name := self._counts(found, _BESIDE_OTHERS):
                return self._wrong_rows(self._predict(pool.draw(self._more_rows)), self._more_rows) or (
                    f"the rows of the model depend on each other: row {places[0]} or {places[-1]} of a batch "
                    f"of {self._rows} has another output {name!r} when the other rows change"
                )
            if draw == 0 and self._more_rows != self._rows:
                more = self._ask(pool.draw(self._more_rows))
                if breach := self._wrong_rows(more, self._more_rows):
                    return breach
        return ""

    def _with_neighbours(self, pool: _Pool, one: Tensors, places: Array, *, is_wide: bool) -> Tensors:
        """Return a batch with the kept rows and new neighbours; integers stay small if large ones fail."""
        other = _with_rows(pool.draw(self._rows, _WIDER if is_wide else 1), one, places)
        if not (is_wide and pool.has_integers and pool.has_wide_integers is None):
            return other
        try:
            self._ask(other)
            pool.has_wide_integers = True
        except OutOfTime:
            raise
        except Exception:  # noqa: BLE001 - integers that are too large for a table prove nothing
            pool.has_wide_integers = False
            return _with_rows(pool.draw(self._rows, _WIDER), one, places)
        return other

    def _depends_on_size(self, pool: _Pool) -> str:
        if not self._may_be_alone:
            return ""
        found, last = Counter[str](), np.array([self._rows - 1])
        for _ in range(DRAWS):
            batch = pool.draw(self._rows)
            alone = {name: array[-1:] for name, array in batch.items()}
            found.update(self._differing(batch, alone, last, np.array([0]), ALONE_TOLERANCE))
        if name := self._counts(found, _ALONE):
            return (
                f"the rows of the model depend on each other: a row alone has another output {name!r} than "
                f"in a batch of {self._rows}"
            )
        return ""

    def _differing(
        self, one: Tensors, other: Tensors, rows: Array, other_rows: Array, tolerance: float
    ) -> list[str]:
        """Return the outputs that differ in the compared rows, except those that vary from run to run."""
        before, after = self._ask(one), self._ask(other)
        names = self._compare(before, after, tolerance, (rows, other_rows))
        if not set(names) - self._varying:
            return []
        # Ignore the time limit, as this may be a breach. Copy, as kernels may round differently by alignment.
        again = self._predict(_elsewhere(other)), self._predict(_elsewhere(one))
        self._varying.update(self._compare(after, again[0], NEIGHBOUR_TOLERANCE))
        self._varying.update(self._compare(before, again[1], NEIGHBOUR_TOLERANCE))
        return [name for name in names if name not in self._varying]

    def _compare(
        self, one: Tensors, other: Tensors, tolerance: float, rows: tuple[Array, Array] | None = None
    ) -> list[str]:
        """Return the names of the outputs that differ, with addends measured by the largest of all."""
        least = 0.0
        if self._are_addends:
            least = max(float(_largest(array, by_column=False)) for array in one.values())
        return differing(one, other, tolerance, rows, least=least)

    def _counts(self, found: Counter[str], draws: tuple[int, int]) -> str:
        """Return an output that differs in enough draws to count; "" if none does."""
        least = {name: draws[name in self._labels] for name in found}
        return next((name for name, count in found.items() if count >= least[name]), "")

    def _only_alone(self, recorded: Sequence[Tensors]) -> str:
        """Return a breach if the model answers a row alone but fails a batch of copies of it; else ""."""
        for pool in self._pools(recorded):
            row = pool.draw(1)
            try:
                self._ask(row)
            except OutOfTime:
                raise
            except Exception:  # noqa: BLE001 - the boundary to a model's own code, on generated data
                continue
            try:
                self._ask({name: np.repeat(array, self._rows, axis=0) for name, array in row.items()})
            except OutOfTime:
                raise
            except Exception as error:  # noqa: BLE001 - as above
                return f"the model answers a row alone, and fails a batch of {self._rows} such rows: {error}"
        return ""


def _kept(draw: int, rows: int) -> Array:
    """Return the places of the rows kept in a pair of batches; the places rotate from draw to draw."""
    if rows < _ROWS_TO_KEEP_TWO:
        return np.array([draw % rows])
    return np.array([draw % rows, (draw + rows // 2) % rows])


def differing(
    one: Tensors,
    other: Tensors,
    tolerance: float,
    rows: tuple[Array, Array] | None = None,
    *,
    least: float = 0.0,
) -> list[str]:
    """Return the names of the outputs that differ. Pure.

    Args:
        one: Outputs of one batch.
        other: Outputs of another batch.
        tolerance: Largest difference of two floats that counts as equal, relative to the largest finite
            number: of the column for batches of one size, else of the whole output.
        rows: Rows of ``one`` and rows of ``other`` to compare; all if None.
        least: The tolerance is relative to this number where all numbers are smaller.
    """
    found = []
    for name, array in one.items():
        a, b = (array, other[name]) if rows is None else (array[rows[0]], other[name][rows[1]])
        by_column = len(array) == len(other[name])
        largest = np.maximum(_largest(array, by_column=by_column), least)
        if not _same(np.asarray(a), np.asarray(b), tolerance, largest):
            found.append(name)
    return found


def _largest(array: Array, *, by_column: bool) -> Array:
    """Return the largest finite absolute value of an output, or of each of its columns."""
    if array.dtype.kind != "f":
        return np.zeros(())
    numbers = np.abs(array.astype(np.float64))
    numbers[~np.isfinite(numbers)] = 0.0
    return np.asarray(numbers.max(axis=0 if by_column else None, initial=0.0))


def _same(a: Array, b: Array, tolerance: float, largest: Array) -> bool:
    if a.shape != b.shape:
        return False
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    part = max(tolerance, _HALF_TOLERANCE) if a.dtype == np.float16 else tolerance
    return bool(
        np.all(np.isclose(a.astype(np.float64), b.astype(np.float64), 0.0, part * largest, equal_nan=True))
    )


def _elsewhere(batch: Tensors) -> Tensors:
    """Copy a batch to addresses with another alignment."""
    made = {}
    for name, array in batch.items():
        room = np.empty(array.size + 1, array.dtype)
        made[name] = room[1:].reshape(array.shape)
        made[name][...] = array
    return made


def _with_rows(batch: Tensors, other: Tensors, places: Array) -> Tensors:
    """Return a copy of a batch with some rows replaced by those of another batch at the same places."""
    made = {}
    for name, array in batch.items():
        made[name] = array.copy()
        made[name][places] = other[name][places]
    return made


def _at_least(rows: int, sizes: Sequence[int]) -> int:
    return next((size for size in sizes if size >= rows), sizes[-1]) if sizes else rows


@dataclass(frozen=True, slots=True)
class _Way:
    """Parameters by which rows are generated.

    Attributes:
        spread: Standard deviation of the floats; 0 for zeros.
        is_positive: Whether floats are made non-negative.
        most: The largest integer, before widening.
        texts: The texts to draw from.
        size: Size of the dimensions that the signature leaves open.
    """

    spread: float
    is_positive: bool
    most: int
    texts: tuple[bytes, ...]
    size: int


_PLAIN = _Way(1.0, True, 1, (b"a", b"some text", b"7"), _UNKNOWN_SIZES[0])


def _ways(signature: Signature) -> Iterator[_Way]:
    """Yield the ways of generating rows; most models accept the first, small non-negative values."""
    is_open = any(None in spec.shape for spec in signature.inputs)
    for size in _UNKNOWN_SIZES if is_open else _UNKNOWN_SIZES[:1]:
        yield replace(_PLAIN, size=size)
        yield _Way(1.0, False, 9, (b"1", b"2", b"0"), size)
        yield _Way(0.0, True, 0, (b"",), size)


class _Pool:
    """A source of batches: recorded rows, the sample rows of a signature, or generated rows.

    Attributes:
        has_integers: Whether integers are generated.
        has_wide_integers: Whether the model accepts the larger integers of wide neighbours; None if untried.
        varies: Whether rows may differ from each other.
    """

    def __init__(
        self,
        signature: Signature,
        random: np.random.Generator,
        recorded: Mapping[str, Array],
        way: _Way = _PLAIN,
    ) -> None:
        self._signature, self._random, self._way = signature, random, way
        self._recorded = recorded
        self._drawn: dict[str, Array] = {}
        sample = signature.sample
        self.has_integers = not recorded and any(_is_drawn_integer(one, sample) for one in signature.inputs)
        self.has_wide_integers: bool | None = None
        is_random = sample is None or any(one.dtype.kind == "f" for one in signature.inputs)
        has_several = any(len(one) > 1 for one in (sample or {}).values())
        self.varies = bool(recorded) or has_several or (is_random and way.spread > 0)

    def draw(self, rows: int, wider: int = 1) -> dict[str, Array]:
        if self._recorded:
            count = len(next(iter(self._recorded.values())))
            chosen = self._random.integers(0, count, rows)
            return {name: array[chosen] for name, array in self._recorded.items()}
        return {spec.name: self._column(spec, rows, wider) for spec in self._signature.inputs}

    def _column(self, spec: TensorSpec, rows: int, wider: int) -> Array:
        sample = None if self._signature.sample is None else self._signature.sample[spec.name]
        shape = tuple(self._way.size if size is None else size for size in spec.shape)
        if sample is not None and spec.dtype.kind != "f":
            return self._of(sample, rows)  # values that the model knows
        if spec.dtype == STRING:
            drawn = self._random.integers(0, len(self._way.texts), (rows, *shape))
            column = np.empty((rows, *shape), STRING)
            column.ravel()[:] = [self._way.texts[one] for one in drawn.ravel()]
            return column
        if spec.dtype.kind != "f":
            most = self._way.most * (1 if self.has_wide_integers is False else wider)
            limit = 1 if spec.dtype.kind == "b" else int(np.iinfo(spec.dtype).max)
            return self._random.integers(0, min(most, limit) + 1, (rows, *shape)).astype(spec.dtype)
        numbers = self._floats(spec.name, rows, shape)
        if wider > 1:
            numbers = numbers * np.float32(wider)
        return (numbers if sample is None else numbers + self._of(sample, rows)).astype(spec.dtype)

    def _of(self, sample: Array, rows: int) -> Array:
        chosen: Array = sample[self._random.integers(0, len(sample), rows)]
        return chosen

    def _floats(self, name: str, rows: int, shape: tuple[int, ...]) -> Array:
        """Return float32 ``[rows, *shape]``: a random choice of rows that are drawn once per input."""
        drawn = self._drawn.get(name)
        if drawn is None or len(drawn) < rows:
            row_bytes = 4 * math.prod(shape)
            count = max(rows + 1, min(max(_DRAWN_ROWS, 2 * rows), _DRAWN_BYTES // max(1, row_bytes)))
            drawn = self._random.standard_normal((count, *shape), np.float32) * np.float32(self._way.spread)
            self._drawn[name] = drawn = np.abs(drawn) if self._way.is_positive else drawn
        return drawn[self._random.permutation(len(drawn))[:rows]]


def _is_drawn_integer(spec: TensorSpec, sample: Tensors | None) -> bool:
    return spec.dtype.kind in "iu" and sample is None


def _alike(recorded: Sequence[Tensors]) -> Mapping[str, Array]:
    """Return the recorded rows with the shapes of the first batch; empty if all rows are the same."""
    shapes = [{name: array.shape[1:] for name, array in one.items()} for one in recorded]
    same = [one for one, shape in zip(recorded, shapes, strict=True) if shape == shapes[0]]
    if sum(len(next(iter(one.values()))) for one in same) < _FEWEST_ROWS:
        return {}
    rows = {name: np.concatenate([one[name] for one in same]) for name in shapes[0]}
    return rows if any(bool(np.any(array != array[:1])) for array in rows.values()) else {}
