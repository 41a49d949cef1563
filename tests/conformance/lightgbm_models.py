"""Real models of LightGBM for the conformance suite, fitted on the data that scikit-learn ships."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np

from headrace.runtimes.registry import RuntimeOptions
from tests.conformance.runtime_example import Example, RuntimeUnderTest
from tests.conformance.tree_data import DIGITS, digits, frame, frame_inputs, targets

_QUIET: dict[str, Any] = {"verbose": -1, "num_threads": 1, "seed": 0, "deterministic": True}


def fitted(
    features: Any, target: Any, iterations: int = 5, leaves: int = 15, **parameters: Any
) -> lightgbm.Booster:
    """A small booster."""
    data = lightgbm.Dataset(features, target)
    return lightgbm.train({**_QUIET, "num_leaves": leaves, **parameters}, data, iterations)


@cache
def ten_digits() -> lightgbm.Booster:
    """Ten classes, of a matrix."""
    return fitted(DIGITS.data, DIGITS.target, objective="multiclass", num_class=10)


@cache
def clicks() -> lightgbm.Booster:
    """A rate, of a data frame with texts, numbers as categories, and missing values."""
    return fitted(frame(500), targets(500) > 0, objective="binary")


@cache
def visits() -> lightgbm.Booster:
    """Linear models in the leaves, of a data frame without categories."""
    return fitted(frame(500)[["age", "visits"]], targets(500), objective="regression", linear_tree=True)


@cache
def large() -> lightgbm.Booster:
    """Over a megabyte of trees."""
    return fitted(DIGITS.data, DIGITS.target, 100, 63, objective="regression", min_data_in_leaf=1)


def save(booster: Callable[[], lightgbm.Booster]) -> Callable[[Path], None]:
    """Writes a version directory."""

    def write(directory: Path) -> None:
        booster().save_model(directory / "model.txt")

    return write


def _whole() -> bytes:
    return ten_digits().model_to_string().encode()


LIGHTGBM = RuntimeUnderTest(
    kind="lightgbm",
    file="model.txt",
    broken=(b"", b"not a model of LightGBM", _whole()[:2000], _whole()[:20_000]),
    examples=(
        Example(
            "digits", save(ten_digits), digits, ("features FP64 [rows, 64]", "prediction FP64 [rows, 10]")
        ),
        Example(
            "clicks",
            save(clicks),
            frame_inputs,
            (
                "age FP64 [rows]",
                "country BYTES [rows]",
                "plan FP64 [rows]",
                "visits FP64 [rows]",
                "prediction FP64 [rows]",
            ),
        ),
        Example(
            "single",
            save(visits),
            lambda rows: {
                name: one.astype(np.float32)
                for name, one in frame_inputs(rows).items()
                if name in ("age", "visits")
            },
            ("age FP32 [rows]", "visits FP32 [rows]", "prediction FP64 [rows]"),
            RuntimeOptions(options={"datatype": "FP32"}),
        ),
    ),
    failing=None,
    large=Example("large", save(large), digits, ()),
)
