"""Shared parts of the runtimes of tree ensembles: inputs, explanations, the opening of native libraries.

A model fitted on a data frame has one input per column, under the column's name. Other models have one input
``features``. A column of categories takes the categories' values, which are replaced by the codes that the
model was fitted on. Every number may be missing (NaN); a category unknown to the model counts as missing.

Importing LightGBM's or XGBoost's package takes seconds, and its calls copy their arguments; the C API of the
library inside avoids both.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headrace.base.errors import InvalidRequest, ModelError, NotLoadable
from headrace.base.tensors import STRING, Array, Tensors
from headrace.model.servable import (
    DEFAULT_SIGNATURE,
    EXPECTED_VALUE,
    EXPLAIN_SIGNATURE,
    Signature,
    TensorSpec,
)
from headrace.runtimes.options import RuntimeOptions

_log = logging.getLogger(__name__)

OPTIONS: dict[str, type] = {"columns": bool, "datatype": str}
"""The options of a runtime of tree ensembles."""

_FLOAT64 = np.dtype(np.float64)
_TRIAL_ROWS = 4  # an explained row takes up to 24 ms
_TRIAL_TEXTS = (b"", b"0", b"1", b"a")
_Codes = Mapping[object, float]
Contributions = Callable[[Tensors], Array]


class Columns(NamedTuple):
    """The columns that a tree ensemble was fitted on.

    Attributes:
        width: Number of columns.
        names: The columns' names; None if the model was fitted without.
        categories: The values of each column of categories by its index; a value's position is its code.
        texts: The indices of columns whose texts the model takes as they are.
        targets: Number of values that the model was fitted to predict for a row; 1 for classes.
    """

    width: int
    names: tuple[str, ...] | None
    categories: Mapping[int, Sequence[object]]
    texts: frozenset[int] = frozenset()
    targets: int = 1


class TreeInputs:
    """The inputs of a tree ensemble, and their conversion to its matrix.

    Attributes:
        specs: The inputs.
        dtype: The dtype of the matrix.
        width: Number of columns.
        targets: Number of values that the model was fitted to predict for a row; 1 for classes.
    """

    def __init__(self, columns: Columns, options: RuntimeOptions) -> None:
        """Decide the inputs.

        Args:
            columns: The model's columns.
            options: The operator's settings.

        Raises:
            NotLoadable: A setting is invalid, or does not fit the model.
        """
        self.width, names, categories, self._texts, self.targets = columns
        apart = bool(options.options.get("columns", names is not None))
        if apart and names is None:
            raise NotLoadable(
                "runtime.options.columns: the model was fitted without column names; fit it on a data frame, "
                "or leave the option out and send 'features'"
            )
        if (categories or self._texts) and not apart:
            raise NotLoadable(
                "runtime.options.columns: the model has columns of categories or texts, whose types differ; "
                "leave the option out and send one input per column"
            )
        self.dtype = options.floats
        self._whole = not apart
        self._codes: list[_Codes | None] = [None] * self.width
        if self._whole:
            self.specs: tuple[TensorSpec, ...] = (
                TensorSpec("features", self.dtype, (self.width,), absent=np.nan),
            )
            return
        _check_unique(names or ())
        self._codes = [_codes(categories.get(index)) for index in range(self.width)]
        self.specs = tuple(self._spec(index, name) for index, name in enumerate(names or ()))
        self._plain, self._names = not categories and not self._texts, names or ()

    def _spec(self, index: int, name: str) -> TensorSpec:
        codes = self._codes[index]
        if index in self._texts:
            return TensorSpec(name, STRING, ())
        if codes is None:
            return TensorSpec(name, self.dtype, (), absent=np.nan)
        if all(isinstance(value, bytes) for value in codes):
            return TensorSpec(name, STRING, (), absent="")
        return TensorSpec(name, np.dtype(np.float64), (), absent=np.nan)

    @property
    def sample(self) -> Tensors | None:
        """Rows with texts that the model knows; None for a model that has no such texts."""
        if self._texts or all(spec.dtype != STRING for spec in self.specs):
            return None
        return {spec.name: _known(spec, codes) for spec, codes in zip(self.specs, self._codes, strict=True)}

    def join(self, inputs: Tensors) -> Array:
        """Return the C-contiguous matrix ``[rows, columns]`` of ``dtype``, or of objects if there are texts.

        Args:
            inputs: The inputs, checked.

        Raises:
            InvalidRequest: A text is not UTF-8.
        """
        if self._whole:
            return np.ascontiguousarray(inputs["features"])
        dtype = STRING if self._texts else self.dtype
        matrix = np.empty((len(inputs[self.specs[0].name]), self.width), dtype)
        self.fill(matrix, inputs)
        return matrix

    def trial(self) -> Tensors:
        """Return a few rows for trials: known categories, numbers of all sizes, and missing values."""
        numbers = np.random.default_rng(1)
        if self._whole:
            columns = [_trial_column(numbers, self.dtype, ()) for _ in range(self.width)]
            return {"features": np.stack(columns, axis=1)}
        known = [
            _TRIAL_TEXTS if index in self._texts else [*(codes or ())]
            for index, codes in enumerate(self._codes)
        ]
        return {
            spec.name: _trial_column(numbers, spec.dtype, values)
            for spec, values in zip(self.specs, known, strict=True)
        }

    def fill(self, matrix: Array, inputs: Tensors) -> None:
        """Write the inputs to a matrix ``[rows, columns]``.

        Args:
            matrix: The matrix.
            inputs: The inputs, checked.
        """
        if self._whole:
            matrix[...] = inputs["features"]
            return
        if self._plain and len(matrix) == 1:  # a quarter of the time of the loop below
            joined = b"".join([inputs[name] for name in self._names])  # type: ignore[misc]  # are buffers
            matrix[0] = np.frombuffer(joined, self.dtype)
            return
        for index, (spec, codes) in enumerate(zip(self.specs, self._codes, strict=True)):
            column = inputs[spec.name]
            if index in self._texts:
                matrix[:, index] = _decoded(spec.name, column)
            elif codes is None:
                matrix[:, index] = column
            else:
                matrix[:, index] = [codes.get(value, np.nan) for value in column.tolist()]


def _trial_column(numbers: np.random.Generator, dtype: np.dtype[Any], values: Sequence[Any]) -> Array:
    if values:
        return np.array([values[place] for place in numbers.integers(len(values), size=_TRIAL_ROWS)], dtype)
    signs = numbers.choice([-1.0, 1.0], _TRIAL_ROWS)
    column: Array = (signs * 10 ** numbers.uniform(-2, 4, _TRIAL_ROWS)).astype(dtype)
    column[numbers.random(_TRIAL_ROWS) < 0.2] = np.nan
    return column


class TreeExplanation:
    """The signature ``explain`` of a tree ensemble: what each column adds to the raw score (TreeSHAP).

    Outputs are named like the inputs, with ``expected_value`` last: their sum is the raw score. Each is FP64
    ``[rows]`` (``features``: ``[rows, columns]``), with a last axis of classes if there are several scores.

    S. Lundberg et al., "Consistent Individualized Feature Attribution for Tree Ensembles", 2018, Algorithm 2.

    Attributes:
        signature: The signature.
    """

    def __init__(self, inputs: TreeInputs, scores: int) -> None:
        """Describe the explanation.

        Args:
            inputs: The model's inputs.
            scores: Raw scores of a row: the classes of a model with several, otherwise 1.
        """
        self._whole = len(inputs.specs) == 1 and inputs.specs[0].shape == (inputs.width,)
        self._scores = scores
        axes = (scores,) if scores > 1 else ()
        outputs = [TensorSpec(one.name, _FLOAT64, (*one.shape, *axes)) for one in inputs.specs]
        outputs.append(TensorSpec(EXPECTED_VALUE, _FLOAT64, axes))
        self.signature = Signature(EXPLAIN_SIGNATURE, inputs.specs, tuple(outputs))
        self._names = self.signature.output_names
        self._one_at_a_time = threading.Lock()

    def outputs(self, contributions: Contributions, inputs: Tensors) -> Tensors:
        """Explain a batch; one at a time, because calls of the libraries share state.

        LightGBM recomputes the trees' depths in each call; XGBoost's calls for a DMatrix share a cache.

        Args:
            contributions: As in ``explanation_of``.
            inputs: Every input, checked.

        Raises:
            ModelError: The library failed.
        """
        with self._one_at_a_time:
            found = contributions(inputs)
        columns = found.reshape(len(found), self._scores, -1).swapaxes(1, 2)
        if self._scores == 1:
            columns = columns[..., 0]
        if self._whole:
            return {self._names[0]: columns[:, :-1], EXPECTED_VALUE: columns[:, -1]}
        return {name: columns[:, index] for index, name in enumerate(self._names)}


def explanation_of(
    inputs: TreeInputs, contributions: Contributions, raw_scores: Callable[[Tensors], Array]
) -> TreeExplanation | None:
    """Return the explanation of a tree ensemble; None if its library cannot explain it rightly.

    Both functions take the inputs of some rows.

    Args:
        inputs: The model's inputs.
        contributions: Returns what columns add, and the expected value last: FP64 ``[rows, columns + 1]``, or
            ``[rows, scores, columns + 1]``.
        raw_scores: Returns the raw scores: ``[rows]``, or ``[rows, scores]``.
    """
    if EXPECTED_VALUE in (spec.name for spec in inputs.specs):
        return None
    rows = inputs.trial()
    try:
        found, expected = contributions(rows), raw_scores(rows)
    except ModelError as error:  # linear models or vectors in the leaves, features of texts
        _log.info("the model has no explanations: %s", error)
        return None
    if found.shape[:-1] != expected.shape:
        _log.info(
            "the model has no explanations: its library explains %d of %d raw scores",
            found[0, ..., 0].size,
            expected[0].size,
        )
        return None
    if not _adds_up(found, expected):
        _log.warning("the model has no explanations: those of its library do not add up to its raw scores")
        return None
    return TreeExplanation(inputs, 1 if found.ndim == 2 else found.shape[1])


def signatures_with(signature: Signature, explanation: TreeExplanation | None) -> Mapping[str, Signature]:
    """Return the signatures of a tree ensemble by name: that of predictions, and that of its explanation."""
    explained = () if explanation is None else (explanation.signature,)
    return {one.name: one for one in (signature, *explained)}


def _adds_up(contributions: Array, raw_scores: Array) -> bool:
    """Return whether contributions sum to the raw scores, up to float32 roundings, which grow with trees."""
    columns, expected_value = contributions[..., :-1], contributions[..., -1]
    allowed = 1e-3 * np.abs(columns).sum(axis=-1) + 1e-5 * np.abs(expected_value) + 1e-9
    return bool((np.abs(contributions.sum(axis=-1) - raw_scores) <= allowed).all())


def signature_of(inputs: TreeInputs, output: TensorSpec, options: RuntimeOptions) -> Signature:
    """Return the signature of a tree ensemble with one output.

    Args:
        inputs: The inputs.
        output: The output: of a row, one value or several targets (a regression), or scores of classes.
        options: The operator's settings. If they name two classes, one value is the probability of the second
            one, which Classify and Regress both answer.
    """
    kind, is_of_two = options.signature.kind, not output.shape and len(options.signature.labels) == 2
    if kind == "predict" and not is_of_two:
        kind = "classify" if output.shape and inputs.targets == 1 else "regress"
    return Signature(DEFAULT_SIGNATURE, inputs.specs, (output,), kind=kind, sample=inputs.sample)


def _decoded(name: str, column: Array) -> list[str]:
    try:
        return [text.decode() for text in column.tolist()]
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"expected UTF-8 text, got {error.object[:40]!r}", field=name) from error


def _known(spec: TensorSpec, codes: _Codes | None) -> Array:
    """Return a column of the first categories, or of zeros for numbers."""
    known = [*islice(codes or (), _TRIAL_ROWS)] or [b"" if spec.dtype == STRING else 0]
    return np.array([known[row % len(known)] for row in range(_TRIAL_ROWS)], spec.dtype)


def _codes(values: Sequence[object] | None) -> _Codes | None:
    if values is None:
        return None
    if all(isinstance(value, str) for value in values):
        return {str(value).encode(): float(code) for code, value in enumerate(values)}
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    if len(numbers) == len(values):
        return {value: float(code) for code, value in enumerate(numbers)}
    raise NotLoadable("a column of categories has texts and numbers; make all of them texts and fit it again")


def _check_unique(names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise NotLoadable(f"two columns are called {name!r}; give them different names and fit it again")
        seen.add(name)


# ---- Native libraries ----


def open_library(package: str, name: str) -> ctypes.CDLL:
    """Open a native library; its functions run without the GIL.

    Args:
        package: The package that contains it.
        name: The file name without the suffix, such as ``libxgboost``.

    Raises:
        ImportError: The package is not installed, has no such library, or the library cannot be opened.
    """
    found = next(_files(package, name), None)
    if found is None:
        raise ImportError(f"the package {package} has no {name}", name=package)
    try:
        return ctypes.CDLL(str(found))
    except OSError as error:  # a library that it needs is missing, such as libgomp.so.1
        raise ImportError(f"{found.name} cannot be opened: {error}", name=package) from error


def _files(package: str, name: str) -> Iterator[Path]:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    home = Path(spec.submodule_search_locations[0])
    for folder in (home / "lib", home, Path(sys.prefix) / "lib"):  # the last is where conda puts it
        for suffix in (".so", ".dylib"):
            file = folder / (name + suffix)
            if file.is_file():
                yield file
