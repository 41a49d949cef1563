"""The signature ``explain`` of tree ensembles, beside the contributions that the libraries compute."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import catboost
import numpy as np
import pandas as pd
import pytest
import xgboost

from headrace.base.tensors import Array, Tensors
from headrace.model.servable import EXPLAIN_SIGNATURE, Servable
from headrace.runtimes import catboost as catboost_runtime
from headrace.runtimes import lightgbm as lightgbm_runtime
from headrace.runtimes import xgboost as xgboost_runtime
from headrace.runtimes.options import RuntimeOptions
from tests.conformance import lightgbm_models, xgboost_models
from tests.conformance.tree_data import DIGITS, digits, frame, frame_inputs, inputs_of, targets

NUMBERS = ["age", "visits"]


class Case(NamedTuple):
    """A model, its inputs, and the library's own contributions."""

    save: Callable[[Path], None]
    load: Callable[[Path], Servable]
    inputs: Tensors
    contributions: Callable[[], Array]


def lightgbm_case(booster: Any, data: Any, inputs: Tensors, classes: int = 1) -> Case:
    def contributions() -> Array:
        found = booster.predict(data, pred_contrib=True)
        return found.reshape(len(data), classes, -1) if classes > 1 else found

    return Case(
        lambda folder: booster.save_model(folder / "model"),
        lambda folder: lightgbm_runtime.load(folder / "model", RuntimeOptions()),
        inputs,
        contributions,
    )


def xgboost_case(booster: Any, data: Any, inputs: Tensors) -> Case:
    matrix = xgboost.DMatrix(data, enable_categorical=True)
    return Case(
        lambda folder: booster.save_model(folder / "model.ubj"),
        lambda folder: xgboost_runtime.load(folder / "model.ubj", RuntimeOptions()),
        inputs,
        lambda: booster.predict(matrix, pred_contribs=True).astype(np.float64),
    )


def catboost_case(model: catboost.CatBoost, data: Any, inputs: Tensors) -> Case:
    pool = catboost.Pool(data, cat_features=model.get_cat_feature_indices())
    return Case(
        lambda folder: model.save_model(str(folder / "model")),
        lambda folder: catboost_runtime.load(folder / "model", RuntimeOptions()),
        inputs,
        lambda: model.get_feature_importance(pool, type="ShapValues"),
    )


def catboost_frame() -> tuple[pd.DataFrame, Tensors]:
    data = frame(500)
    data["country"] = data.country.astype(str)
    data["plan"] = data.plan.astype(str)
    inputs = {name: data[name].to_numpy(np.float64)[:40] for name in NUMBERS}
    texts = {
        name: np.array([one.encode() for one in data[name][:40]], object) for name in ("country", "plan")
    }
    return data, {name: (inputs | texts)[name] for name in data.columns}


def catboost_fitted(kind: type[catboost.CatBoost], target: Array) -> Case:
    data, inputs = catboost_frame()
    model = kind(iterations=5, verbose=0, thread_count=1, cat_features=["country", "plan"])
    return catboost_case(model.fit(data, target), data[:40], inputs)


CASES: dict[str, Callable[[], Case]] = {
    "lightgbm-columns": lambda: lightgbm_case(lightgbm_models.clicks(), frame(300)[:40], frame_inputs(40)),
    "lightgbm-classes": lambda: lightgbm_case(
        lightgbm_models.ten_digits(), DIGITS.data[:40], digits(40), classes=10
    ),
    "xgboost-columns": lambda: xgboost_case(xgboost_models.clicks(), frame(300)[:40], frame_inputs(40)),
    "xgboost-classes": lambda: xgboost_case(xgboost_models.ten_digits(), DIGITS.data[:40], digits(40)),
    "xgboost-dart": lambda: xgboost_case(
        xgboost_models.visits(), frame(300)[NUMBERS][:40], inputs_of(frame(300)[NUMBERS][:40])
    ),
    "catboost-click": lambda: catboost_fitted(catboost.CatBoostClassifier, targets(500) > 0),
    "catboost-classes": lambda: catboost_fitted(
        catboost.CatBoostClassifier, np.digitize(targets(500), [-1, 1])
    ),
    "catboost-number": lambda: catboost_fitted(catboost.CatBoostRegressor, targets(500)),
}


def joined(answer: Tensors) -> Array:
    """An explanation as libraries have it: ``[rows, columns + 1]``, or ``[rows, classes, columns + 1]``."""
    values = [one if name != "features" else np.moveaxis(one, 1, 0) for name, one in answer.items()]
    columns = [
        column
        for name, one in zip(answer, values, strict=True)
        for column in (one if name == "features" else [one])
    ]
    return np.stack(columns, axis=-1)


@pytest.mark.parametrize("name", CASES)
def test_contributions_are_those_of_the_library(name: str, tmp_path: Path) -> None:
    case = CASES[name]()
    case.save(tmp_path)
    servable = case.load(tmp_path)
    signature = servable.signatures[EXPLAIN_SIGNATURE]
    answer = servable.predict(case.inputs, EXPLAIN_SIGNATURE)
    assert (
        tuple(answer) == signature.output_names == (*(one.name for one in signature.inputs), "expected_value")
    )
    for spec in signature.outputs:
        assert answer[spec.name].shape[1:] == spec.shape
        assert answer[spec.name].dtype == spec.dtype
    np.testing.assert_allclose(joined(answer), case.contributions(), rtol=1e-6, atol=1e-7)
    servable.close()


@pytest.mark.parametrize("name", ["lightgbm-columns", "xgboost-columns", "catboost-click"])
def test_explanations_and_predictions_side_by_side_are_those_of_one_thread(name: str, tmp_path: Path) -> None:
    case = CASES[name]()
    case.save(tmp_path)
    servable = case.load(tmp_path)
    calls = [EXPLAIN_SIGNATURE, "serving_default"] * 20
    expected = {call: servable.predict(case.inputs, call) for call in set(calls)}
    with ThreadPoolExecutor(4) as threads:
        for call, answer in zip(
            calls, threads.map(lambda one: servable.predict(case.inputs, one), calls), strict=True
        ):
            for output, values in expected[call].items():
                assert answer[output].tolist() == values.tolist()
    servable.close()


def test_linear_trees_of_lightgbm_have_no_explanation(tmp_path: Path) -> None:
    data = frame(300)[NUMBERS]
    case = lightgbm_case(lightgbm_models.visits(), data, inputs_of(data))
    case.save(tmp_path)
    servable = case.load(tmp_path)
    assert EXPLAIN_SIGNATURE not in servable.signatures
    servable.close()


def test_a_column_called_expected_value_leaves_no_room_for_an_explanation(tmp_path: Path) -> None:
    data = frame(300)[NUMBERS].set_axis(["age", "expected_value"], axis=1)
    case = lightgbm_case(lightgbm_models.fitted(data, targets(300)), data, inputs_of(data))
    case.save(tmp_path)
    servable = case.load(tmp_path)
    assert EXPLAIN_SIGNATURE not in servable.signatures
    servable.close()


@pytest.mark.parametrize("policy", ["Lossguide", "Depthwise"])
def test_contributions_that_do_not_add_up_are_no_explanation(
    policy: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = frame(300)[NUMBERS]
    model = catboost.CatBoostRegressor(iterations=20, verbose=0, thread_count=1, grow_policy=policy)
    case = catboost_case(model.fit(data, targets(300)), data, inputs_of(data))
    sums, raw_scores = case.contributions().sum(axis=1), model.predict(data)
    assert np.abs(sums - raw_scores).max() > 0.01  # a fault of CatBoost, issue 1703
    case.save(tmp_path)
    servable = case.load(tmp_path)
    assert tuple(servable.signatures) == ("serving_default",)
    assert "do not add up" in caplog.text
    np.testing.assert_allclose(servable.predict(case.inputs)["prediction"], raw_scores, rtol=1e-6)
    servable.close()


def test_a_large_mean_and_many_trees_leave_the_explanation(tmp_path: Path) -> None:
    data = frame(300)[NUMBERS]
    matrix = xgboost.DMatrix(data, targets(300) + 1e6)
    booster = xgboost.train({"max_depth": 3, "nthread": 1, "base_score": 1e6}, matrix, 300)
    case = xgboost_case(booster, data, inputs_of(data))
    case.save(tmp_path)
    servable = case.load(tmp_path)
    assert EXPLAIN_SIGNATURE in servable.signatures
    servable.close()


def test_an_explanation_of_one_of_two_outputs_is_left_out(tmp_path: Path) -> None:
    data = frame(300)[NUMBERS]
    model = catboost.CatBoostRegressor(
        iterations=5, verbose=0, thread_count=1, loss_function="RMSEWithUncertainty"
    )
    case = catboost_case(model.fit(data, targets(300)), data, inputs_of(data))
    case.save(tmp_path)
    servable = case.load(tmp_path)
    assert servable.signatures["serving_default"].outputs[0].shape == (2,)
    assert EXPLAIN_SIGNATURE not in servable.signatures
    servable.close()
