from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import catboost
import numpy as np
import pytest

from headrace.base.errors import InvalidRequest, LoadError, NotLoadable
from headrace.model.servable import DEFAULT_SIGNATURE, EXPLAIN_SIGNATURE
from headrace.runtimes.catboost import CatboostServable, load
from headrace.runtimes.options import RuntimeOptions
from tests.conformance.catboost_models import (
    clicks,
    fitted,
    people,
    people_inputs,
    ten_digits,
    visits,
)
from tests.conformance.tree_data import DIGITS, targets


def loaded(model: Any, directory: Path, **options: Any) -> CatboostServable:
    model.save_model(str(directory / "model.cbm"))
    return load(directory / "model.cbm", RuntimeOptions(options=options))


def test_a_classifier_answers_labels_and_probabilities(tmp_path: Path) -> None:
    servable = loaded(clicks(), tmp_path)
    answers = servable.predict(people_inputs(50))
    expected = clicks().predict(people(300)[:50], prediction_type="Probability")
    assert answers["probabilities"].tolist() == expected.tolist()
    labels = clicks().predict(people(300)[:50], prediction_type="Class")
    assert [one.decode() for one in answers["label"]] == labels.tolist()
    assert servable.signatures[DEFAULT_SIGNATURE].kind == "classify"
    servable.close()


def test_numbers_are_labels_too(tmp_path: Path) -> None:
    servable = loaded(ten_digits(), tmp_path)
    answers = servable.predict({"features": DIGITS.data[:50]})
    expected = ten_digits().predict(DIGITS.data[:50], prediction_type="Class")
    assert answers["label"].tolist() == expected.ravel().tolist()
    servable.close()


REGRESSORS: dict[str, Callable[[], Any]] = {
    "RMSE": lambda: catboost.CatBoostRegressor(loss_function="RMSE"),
    "Poisson": lambda: catboost.CatBoostRegressor(loss_function="Poisson"),
    "Tweedie": lambda: catboost.CatBoostRegressor(loss_function="Tweedie:variance_power=1.5"),
    "RMSEWithUncertainty": lambda: catboost.CatBoostRegressor(loss_function="RMSEWithUncertainty"),
}


@pytest.mark.parametrize("loss", REGRESSORS)
def test_a_regressor_answers_what_its_estimator_does(loss: str, tmp_path: Path) -> None:
    model = REGRESSORS[loss]().set_params(
        iterations=5, depth=3, verbose=False, thread_count=1, allow_writing_files=False
    )
    model.fit(DIGITS.data, DIGITS.target)
    servable = loaded(model, tmp_path)
    answer = servable.predict({"features": DIGITS.data[:50]})["prediction"]
    np.testing.assert_allclose(answer, model.predict(DIGITS.data[:50]), rtol=1e-12)
    servable.close()


def test_several_labels_of_a_row_are_probabilities(tmp_path: Path) -> None:
    both = np.stack([DIGITS.target > 4, DIGITS.target % 2 == 0], axis=1).astype(int)
    model = fitted(DIGITS.data, both, loss_function="MultiLogloss")
    servable = loaded(model, tmp_path)
    answer = servable.predict({"features": DIGITS.data[:50]})["prediction"]
    expected = model.predict(DIGITS.data[:50], prediction_type="Probability")
    np.testing.assert_allclose(answer, expected, rtol=1e-12)
    servable.close()


def test_named_columns_may_come_as_one_matrix(tmp_path: Path) -> None:
    servable = loaded(visits(), tmp_path, columns=False)
    data = people(300)[:20][["age", "visits"]]
    answer = servable.predict({"features": data.to_numpy(np.float64)})["prediction"]
    assert answer.tolist() == visits().predict(data).tolist()
    servable.close()


def test_a_text_that_is_not_utf_8_is_the_requests_fault(tmp_path: Path) -> None:
    servable = loaded(clicks(), tmp_path)
    with pytest.raises(InvalidRequest, match="expected UTF-8 text") as raised:
        servable.predict({**people_inputs(1), "country": np.array([b"\xff"], object)})
    assert raised.value.field == "country"
    servable.close()


def test_columns_of_texts_are_no_matrix(tmp_path: Path) -> None:
    with pytest.raises(NotLoadable, match="categories or texts"):
        loaded(clicks(), tmp_path, columns=False)


def test_a_cut_file_is_refused_with_catboosts_reason(tmp_path: Path) -> None:
    clicks().save_model(str(tmp_path / "model.cbm"))
    whole = (tmp_path / "model.cbm").read_bytes()
    for length in (500, len(whole) - 10):
        (tmp_path / "model.cbm").write_bytes(whole[:length])
        with pytest.raises(
            LoadError,
            match=r"CatBoost cannot read model\.cbm: (Failed to read|Flatbuffers model verification)",
        ):
            load(tmp_path / "model.cbm", RuntimeOptions())


def test_a_model_of_texts_takes_texts(tmp_path: Path) -> None:
    data = people(500)
    data["words"] = np.where(targets(500) > 0, "a good film", "a bad one")
    data, answers = data[["age", "words"]], (targets(500) > 0).astype(int)
    model = fitted(data, answers, loss_function="Logloss", text_features=["words"])
    servable = loaded(model, tmp_path)
    words = np.array([one.encode() for one in data.words[:5]], object)
    answer = servable.predict({"age": data.age.to_numpy()[:5], "words": words})["probabilities"]
    np.testing.assert_allclose(answer, model.predict(data[:5], prediction_type="Probability"), rtol=1e-12)
    servable.close()


def test_a_sum_of_models_answers_what_catboost_does(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).normal(size=(200, 3))
    models = [
        catboost.CatBoostRegressor(iterations=5, verbose=0, thread_count=1, random_seed=seed).fit(
            rows, rows[:, 0] + seed
        )
        for seed in (1, 2)
    ]
    summed = catboost.sum_models(models, weights=[0.5, 0.5])
    servable = loaded(summed, tmp_path)
    answer = servable.predict(
        {"features": rows.astype(servable.signatures[DEFAULT_SIGNATURE].inputs[0].dtype)}
    )
    np.testing.assert_allclose(answer["prediction"], summed.predict(rows), rtol=1e-6)
    assert EXPLAIN_SIGNATURE in servable.signatures
