"""The batch contract, checked when a version is loaded: rows out are rows in, and rows are independent.

Requests are merged into batches, and large ones cut. A model whose first axis is not rows, or whose rows
depend on their neighbours, would give callers each other's numbers, with status 200. So it is asked:

* the same batch twice: answers that differ come from state or randomness, and only rows are counted then;
* batches of two sizes, whose answers must have as many rows;
* batches of one size in which a row keeps its place and its neighbours change, which must change nothing;
* a row alone, whose answer may differ from the one in a batch as far as kernels of different sizes do.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from headrace.servable import Signature, TensorSpec
from headrace.tensors import STRING, Array, Tensors

Predict = Callable[[Tensors], Tensors]

DRAWS = 4
"""How many batches are drawn; what is no float must differ in all but one of them to count."""

NEIGHBOUR_TOLERANCE = 1e-5
"""How far a float may be apart in batches of one size, in parts of the largest number of its output."""

ALONE_TOLERANCE = 1e-3
"""The same for a row alone and in a batch: kernels differ by batch size."""

_HALF_TOLERANCE = 1e-2  # of float16 in both cases
_ROWS, _MORE_ROWS = 4, 7
_FEWEST_ROWS = 2
_UNKNOWN_SIZES = (4, 16, 1)
"""Tried for dimensions that the signature leaves open."""

_WIDER = 50.0
"""Neighbours are larger by this factor in every other draw: what is scaled by the whole batch shows."""

WAY_OUT = (
    "with `batching = false` in headrace.toml each request is computed by itself and its answer given whole; "
    "with `[warm_up] probe = false` nothing is checked"
)


class OutOfTime(Exception):
    """The time that checking may take is over."""


@dataclass(slots=True)
class Findings:
    """What checking a signature has come to.

    Attributes:
        breach: Why the model cannot be batched; "" where nothing was found.
        unchecked: What was not checked, and why, in sentences.
        tried: The inputs that were drawn until the model answered.
        refused: Why it has answered none of them; None where it has.
    """

    breach: str = ""
    unchecked: list[str] = field(default_factory=list)
    tried: list[Tensors] = field(default_factory=list)
    refused: Exception | None = None


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
        predict: Answers a batch.
        signature: How it is called.
        sizes: The batch sizes that the model may see, ascending; empty for any.
        recorded: Batches that it has answered, which are rows of real requests; rows are drawn if empty.
        until: When to stop, on the monotonic clock.
        in_rows: Whether requests are merged and cut by rows; if not, it is only asked for an answer.
    """
    probe = _Probe(predict, signature, sizes, until)
    try:
        probe.run(recorded, in_rows=in_rows)
    except OutOfTime:
        probe.findings.unchecked.append("the time for it was over before all was checked")
    return probe.findings


class _Probe:
    """The calls that check one signature."""

    def __init__(self, predict: Predict, signature: Signature, sizes: Sequence[int], until: float) -> None:
        self.findings = Findings()
        self._predict, self._signature, self._until = predict, signature, until
        self._rows = _at_least(_ROWS, sizes)
        self._more_rows = _at_least(_MORE_ROWS, sizes)
        self._may_be_alone = not sizes or sizes[0] == 1
        self._random = np.random.default_rng(0)
        self._longest = 0.0

    def run(self, recorded: Sequence[Tensors], *, in_rows: bool) -> None:
        """Check with the first rows that the model answers throughout: recorded, or made up in some way."""
        refused: Exception | None = None
        for pool in self._pools(recorded):
            try:
                self._check(pool, in_rows=in_rows)
            except OutOfTime:
                raise
            except Exception as error:  # noqa: BLE001 - the boundary to a model's own code, asked about made-up data
                refused = refused or error
            else:
                return
        self.findings.refused = refused

    def _pools(self, recorded: Sequence[Tensors]) -> Iterator[_Pool]:
        if rows := _alike(recorded):
            yield _Pool(self._signature, self._random, rows)
        for way in _ways(self._signature):
            yield _Pool(self._signature, self._random, {}, way)

    def _check(self, pool: _Pool, *, in_rows: bool) -> None:
        first = pool.draw(self._rows, 1.0)
        self.findings.tried.append(first)
        answer = self._ask(first)
        if not in_rows:
            return
        self.findings.breach = self._wrong_rows(answer, self._rows)
        if not self.findings.breach and self._more_rows != self._rows:
            more = self._ask(pool.draw(self._more_rows, 1.0))
            self.findings.breach = self._wrong_rows(more, self._more_rows)
        if self.findings.breach or self._rows == 1:
            return
        if differing(answer, self._ask(first), NEIGHBOUR_TOLERANCE):
            self.findings.unchecked.append(
                "the same batch is answered differently each time, so only rows were counted"
            )
            return
        self.findings.breach = self._depends_on_neighbours(pool) or self._depends_on_size(pool)

    def _ask(self, inputs: Tensors) -> Tensors:
        began = time.monotonic()
        if began + self._longest > self._until:
            raise OutOfTime
        answer = self._predict(inputs)
        self._longest = max(self._longest, time.monotonic() - began)
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

    def _depends_on_neighbours(self, pool: _Pool) -> str:
        """Change the neighbours of the first and of the last row."""
        for place in (0, self._rows - 1):
            found = Counter[str]()
            for draw in range(DRAWS):
                one = pool.draw(self._rows, 1.0)
                other = _with_row(pool.draw(self._rows, _WIDER if draw % 2 else 1.0), one, place)
                before, after = self._ask(one), self._ask(other)
                found.update(differing(before, after, NEIGHBOUR_TOLERANCE, place, place))
            if name := _counts(found, self._signature):
                return (
                    f"the rows of the model depend on each other: row {place} of a batch of {self._rows} has "
                    f"another output {name!r} when the other rows change"
                )
        return ""

    def _depends_on_size(self, pool: _Pool) -> str:
        if not self._may_be_alone:
            return ""
        found = Counter[str]()
        for _ in range(DRAWS):
            batch = pool.draw(self._rows, 1.0)
            alone = {name: array[-1:] for name, array in batch.items()}
            found.update(differing(self._ask(batch), self._ask(alone), ALONE_TOLERANCE, self._rows - 1, 0))
        if name := _counts(found, self._signature):
            return (
                f"the rows of the model depend on each other: a row alone has another output {name!r} than "
                f"in a batch of {self._rows}"
            )
        return ""


def _counts(found: Counter[str], signature: Signature) -> str:
    """The output that differs so often that it counts; "" if none does."""
    floats = {spec.name for spec in signature.outputs if spec.dtype.kind == "f"}
    return next((name for name, count in found.items() if count >= (2 if name in floats else DRAWS - 1)), "")


def differing(
    one: Tensors, other: Tensors, tolerance: float, row: int | None = None, other_row: int | None = None
) -> list[str]:
    """Which outputs differ. Pure.

    Args:
        one: Outputs of a batch.
        other: Those of another.
        tolerance: How far floats may be apart, in parts of the largest finite number of the output.
        row: Which row of ``one`` is compared; all if left out.
        other_row: With which row of ``other``.
    """
    found = []
    for name, array in one.items():
        a, b = (array, other[name]) if row is None else (array[row], other[name][other_row])
        if not _same(np.asarray(a), np.asarray(b), tolerance, array):
            found.append(name)
    return found


def _same(a: Array, b: Array, tolerance: float, whole: Array) -> bool:
    if a.shape != b.shape:
        return False
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    finite = np.abs(whole[np.isfinite(whole)].astype(np.float64))
    largest = float(finite.max(initial=0.0))
    part = max(tolerance, _HALF_TOLERANCE) if a.dtype == np.float16 else tolerance
    return bool(np.allclose(a.astype(np.float64), b.astype(np.float64), 0.0, part * largest, equal_nan=True))


def _with_row(batch: Tensors, other: Tensors, place: int) -> Tensors:
    """A batch with one row of another one in its place."""
    made = {}
    for name, array in batch.items():
        made[name] = array.copy()
        made[name][place] = other[name][place]
    return made


def _at_least(rows: int, sizes: Sequence[int]) -> int:
    return next((size for size in sizes if size >= rows), sizes[-1]) if sizes else rows


@dataclass(frozen=True, slots=True)
class _Way:
    """How rows are made up.

    Attributes:
        spread: How far floats are from 0 on average; 0 for zeros.
        is_positive: Whether no float is below 0.
        most: The largest integer.
        texts: What texts are drawn from.
        size: How long dimensions are that the signature leaves open.
    """

    spread: float
    is_positive: bool
    most: int
    texts: tuple[bytes, ...]
    size: int


_PLAIN = _Way(1.0, True, 1, (b"a", b"some text", b"7"), _UNKNOWN_SIZES[0])


def _ways(signature: Signature) -> Iterator[_Way]:
    """The ways in which rows are made up; most models know what is small and not below 0."""
    is_open = any(None in spec.shape for spec in signature.inputs)
    for size in _UNKNOWN_SIZES if is_open else _UNKNOWN_SIZES[:1]:
        yield replace(_PLAIN, size=size)
        yield _Way(1.0, False, 9, (b"1", b"2", b"0"), size)
        yield _Way(0.0, True, 0, (b"",), size)


class _Pool:
    """Where batches are drawn from: recorded rows, the rows that a runtime knows, or made-up ones."""

    def __init__(
        self,
        signature: Signature,
        random: np.random.Generator,
        recorded: Mapping[str, Array],
        way: _Way = _PLAIN,
    ) -> None:
        self._signature, self._random, self._way = signature, random, way
        self._recorded = recorded

    def draw(self, rows: int, scale: float) -> dict[str, Array]:
        if self._recorded:
            count = len(next(iter(self._recorded.values())))
            chosen = self._random.integers(0, count, rows)
            return {name: array[chosen] for name, array in self._recorded.items()}
        return {spec.name: self._column(spec, rows, scale) for spec in self._signature.inputs}

    def _column(self, spec: TensorSpec, rows: int, scale: float) -> Array:
        sample = None if self._signature.sample is None else self._signature.sample[spec.name]
        shape = (rows, *(self._way.size if size is None else size for size in spec.shape))
        if sample is not None and spec.dtype.kind != "f":
            return np.repeat(sample, rows, axis=0)  # values that the model knows
        if spec.dtype == STRING:
            drawn = self._random.integers(0, len(self._way.texts), shape)
            column = np.empty(shape, STRING)
            column.ravel()[:] = [self._way.texts[one] for one in drawn.ravel()]
            return column
        if spec.dtype.kind != "f":
            return self._random.integers(0, self._way.most + 1, shape).astype(spec.dtype)
        numbers = self._random.normal(size=shape) * self._way.spread * scale
        numbers = np.abs(numbers) if self._way.is_positive else numbers
        return (numbers if sample is None else numbers + sample).astype(spec.dtype)


def _alike(recorded: Sequence[Tensors]) -> Mapping[str, Array]:
    """The recorded rows that have the shape of the first one; none where that is the only one."""
    shapes = [{name: array.shape[1:] for name, array in one.items()} for one in recorded]
    same = [one for one, shape in zip(recorded, shapes, strict=True) if shape == shapes[0]]
    if sum(len(next(iter(one.values()))) for one in same) < _FEWEST_ROWS:
        return {}
    return {name: np.concatenate([one[name] for one in same]) for name in shapes[0]}
