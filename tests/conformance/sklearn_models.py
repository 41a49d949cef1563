"""Real estimators for the conformance suite, fitted on the data that scikit-learn ships."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import skops.io
from sklearn.datasets import load_diabetes, load_digits, load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from headrace.base.tensors import Tensors
from headrace.runtimes.registry import RuntimeOptions
from tests.conformance.runtime_example import Example, RuntimeUnderTest

_DIGITS = load_digits()
_IRIS = load_iris()
_WORDS = ["water", "wheel", "river", "channel", "mill", "dam"]


@cache
def digits() -> Any:
    """A scaled logistic regression."""
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=50)).fit(
        _DIGITS.data[:500] + 0.0, _DIGITS.target[:500]
    )


@cache
def neighbours() -> Any:
    """An estimator that holds all that it was fitted on, 1,797 x 64 numbers, 8 bytes each."""
    return KNeighborsClassifier(3, algorithm="brute").fit(
        np.tile(_DIGITS.data, (2, 1)), np.tile(_DIGITS.target, 2)
    )


@cache
def forest() -> Any:
    """String labels, and a forest that was trained on all processors."""
    return RandomForestClassifier(5, max_depth=4, n_jobs=-1, random_state=0).fit(
        _IRIS.data, _IRIS.target_names[_IRIS.target]
    )


@cache
def named() -> Any:
    """A regressor that knows its columns by name."""
    features, target = load_diabetes(return_X_y=True)
    fitted = Ridge().fit(features[:, :3], target)
    fitted.feature_names_in_ = np.array(["age", "sex", "bmi"], dtype=object)
    return fitted


@cache
def texts() -> Any:
    """Documents in, labels out."""
    return make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(_documents(60), np.arange(60) % 3)


def _documents(rows: int) -> list[str]:
    return [" ".join((_WORDS[i % 3], _WORDS[i % 6], "größe")) for i in range(rows)]


def save(estimator: Callable[[], Any]) -> Callable[[Path], None]:
    """Writes a version directory."""

    def write(directory: Path) -> None:
        skops.io.dump(estimator(), directory / "model.skops")

    return write


def _digits(rows: int) -> Tensors:
    return {"features": _DIGITS.data[500 : 500 + rows].copy()}


def _named(rows: int) -> Tensors:
    return {
        name: np.linspace(-1, 1, 300)[:rows] * scale for name, scale in (("age", 1), ("sex", 2), ("bmi", 3))
    }


def _iris(rows: int) -> Tensors:
    return {"features": np.tile(_IRIS.data, (2, 1))[:rows].astype(np.float32)}


SKLEARN = RuntimeUnderTest(
    kind="sklearn",
    file="model.skops",
    broken=(b"", b"not a skops file", b"PK\x05\x06" + bytes(18)),
    examples=(
        Example(
            "digits",
            save(digits),
            _digits,
            ("features FP64 [rows, 64]", "label INT64 [rows]", "probabilities FP64 [rows, 10]"),
        ),
        Example(
            "forest",
            save(forest),
            _iris,
            ("features FP32 [rows, 4]", "label BYTES [rows]", "probabilities FP64 [rows, 3]"),
            RuntimeOptions(trusted=("sklearn.tree._tree.Tree",), options={"datatype": "FP32"}),
        ),
        Example(
            "named",
            save(named),
            _named,
            ("age FP64 [rows]", "sex FP64 [rows]", "bmi FP64 [rows]", "prediction FP64 [rows]"),
            RuntimeOptions(options={"columns": True}),
        ),
        Example(
            "texts",
            save(texts),
            lambda rows: {"text": np.array([text.encode() for text in _documents(rows)], dtype=object)},
            ("text BYTES [rows]", "label INT64 [rows]", "probabilities FP64 [rows, 3]"),
        ),
    ),
    failing=Example("digits", save(digits), lambda rows: {"features": np.full((rows, 64), np.nan)}, ()),
    large=Example("neighbours", save(neighbours), _digits, ()),
)
