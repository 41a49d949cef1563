"""Real models of CatBoost for the conformance suite, fitted on the data that scikit-learn ships."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import catboost
import numpy as np
import pandas as pd

from headrace.base.tensors import Tensors
from headrace.runtimes.registry import RuntimeOptions
from tests.conformance.runtime_example import Example, RuntimeUnderTest
from tests.conformance.tree_data import DIGITS, digits, frame, targets

_QUIET: dict[str, Any] = {"verbose": False, "thread_count": 1, "random_seed": 0, "allow_writing_files": False}


def people(rows: int) -> pd.DataFrame:
    """The usual data frame, with its categories as texts."""
    data = frame(rows)
    return data.assign(country=data.country.astype(str), plan=data.plan.astype(str))


def people_inputs(rows: int) -> Tensors:
    """The first rows of ``people`` as inputs."""
    data = people(300)[:rows]
    texts = {name: np.array([one.encode() for one in data[name]], object) for name in ("country", "plan")}
    return {"age": data.age.to_numpy(), **texts, "visits": data.visits.to_numpy(np.float64)}


def fitted(features: Any, target: Any, iterations: int = 5, **parameters: Any) -> Any:
    """A small model."""
    return catboost.CatBoost({**_QUIET, "iterations": iterations, "depth": 3, **parameters}).fit(
        features, target
    )


@cache
def ten_digits() -> Any:
    """Ten classes, of a matrix."""
    return fitted(DIGITS.data, DIGITS.target, loss_function="MultiClass")


@cache
def clicks() -> Any:
    """Two classes that are texts, of a data frame with categories and missing values."""
    answers = np.where(targets(500) > 0, "yes", "no")
    return fitted(people(500), answers, loss_function="Logloss", cat_features=["country", "plan"])


@cache
def visits() -> Any:
    """A number, of a data frame without categories."""
    return fitted(people(500)[["age", "visits"]], targets(500), loss_function="RMSE")


@cache
def large() -> Any:
    """Over a megabyte of trees."""
    return fitted(DIGITS.data, DIGITS.target, 40, loss_function="RMSE", depth=12)


def save(model: Callable[[], Any]) -> Callable[[Path], None]:
    """Writes a version directory."""

    def write(directory: Path) -> None:
        model().save_model(str(directory / "model.cbm"))

    return write


CATBOOST = RuntimeUnderTest(
    kind="catboost",
    file="model.cbm",
    broken=(b"", b"not a model of CatBoost", b"CBM1" + bytes(200)),
    examples=(
        Example(
            "digits",
            save(ten_digits),
            digits,
            ("features FP64 [rows, 64]", "label INT64 [rows]", "probabilities FP64 [rows, 10]"),
        ),
        Example(
            "clicks",
            save(clicks),
            people_inputs,
            (
                "age FP64 [rows]",
                "country BYTES [rows]",
                "plan BYTES [rows]",
                "visits FP64 [rows]",
                "label BYTES [rows]",
                "probabilities FP64 [rows, 2]",
            ),
        ),
        Example(
            "single",
            save(visits),
            lambda rows: {
                name: one.astype(np.float32)
                for name, one in people_inputs(rows).items()
                if name in ("age", "visits")
            },
            ("age FP32 [rows]", "visits FP32 [rows]", "prediction FP64 [rows]"),
            RuntimeOptions(options={"datatype": "FP32"}),
        ),
    ),
    failing=Example(
        "clicks",
        save(clicks),
        lambda rows: {**people_inputs(rows), "country": np.array([b"\xff"] * rows, object)},
        (),
    ),
    large=Example("large", save(large), digits, ()),
)
