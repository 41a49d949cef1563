"""Real models of XGBoost for the conformance suite, fitted on the data that scikit-learn ships."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import xgboost

from headrace.runtimes.registry import RuntimeOptions
from tests.conformance.runtime_example import Example, RuntimeUnderTest
from tests.conformance.tree_data import DIGITS, digits, frame, frame_inputs, targets

_QUIET: dict[str, Any] = {"nthread": 1, "seed": 0, "verbosity": 0}


def fitted(features: Any, target: Any, iterations: int = 5, depth: int = 4, **parameters: Any) -> Any:
    """A small booster."""
    data = xgboost.DMatrix(features, target, enable_categorical=True)
    return xgboost.train({**_QUIET, "max_depth": depth, **parameters}, data, iterations)


@cache
def ten_digits() -> Any:
    """Ten classes, of a matrix."""
    return fitted(DIGITS.data, DIGITS.target, objective="multi:softprob", num_class=10)


@cache
def clicks() -> Any:
    """A rate, of a data frame with texts, numbers as categories, and missing values."""
    return fitted(frame(500), targets(500) > 0, objective="binary:logistic")


@cache
def visits() -> Any:
    """Dropped trees (dart), of a data frame without categories."""
    return fitted(frame(500)[["age", "visits"]], targets(500), booster="dart", rate_drop=0.3)


@cache
def large() -> Any:
    """Over a megabyte of trees."""
    return fitted(DIGITS.data, DIGITS.target, 100, 8, min_child_weight=0)


def save(booster: Callable[[], Any], file: str = "model.ubj") -> Callable[[Path], None]:
    """Writes a version directory."""

    def write(directory: Path) -> None:
        booster().save_model(directory / file)

    return write


def _whole() -> bytes:
    return bytes(ten_digits().save_raw("ubj"))


XGBOOST = RuntimeUnderTest(
    kind="xgboost",
    file="model.ubj",
    broken=(b"", b"not a model of XGBoost", b"{L", b'{"learner": {}}', _whole()[:2000], _whole()[:-100]),
    examples=(
        Example(
            "digits", save(ten_digits), digits, ("features FP64 [rows, 64]", "prediction FP32 [rows, 10]")
        ),
        Example(
            "clicks",
            save(clicks, "model.json"),
            frame_inputs,
            (
                "age FP64 [rows]",
                "country BYTES [rows]",
                "plan FP64 [rows]",
                "visits FP64 [rows]",
                "prediction FP32 [rows]",
            ),
        ),
        Example(
            "single",
            save(visits),
            lambda rows: {
                "features": np.stack(
                    [one for name, one in frame_inputs(rows).items() if name in ("age", "visits")], axis=1
                ).astype(np.float32)
            },
            ("features FP32 [rows, 2]", "prediction FP32 [rows]"),
            RuntimeOptions(options={"datatype": "FP32", "columns": False}),
        ),
    ),
    failing=None,
    large=Example("large", save(large), digits, ()),
)
