"""Objects saved into a directory of models: classifiers of boosted trees answer with the names of classes."""

from __future__ import annotations

import json
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import catboost
import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost
from onnx.external_data_helper import convert_model_to_external_data
from sklearn.linear_model import LogisticRegression

import headrace
from headrace.base.errors import HeadraceError
from headrace.base.tensors import Array
from headrace.notebook import object_files
from headrace.notebook.local_server import LocalServer
from tests.conformance.onnx_models import network

TEXTS = {2: ["leaves", "stays"], 3: ["ja\x7f", "nein", "weiß 😀"]}
"""Names of classes, with characters that TOML has to escape, sorted as by the estimators."""


def frame() -> pd.DataFrame:
    numbers = np.random.default_rng(0)
    return pd.DataFrame({"age": numbers.normal(size=240), "plan": numbers.normal(size=240)})


def numbered(classes: int) -> Array:
    """Return the number of each row's class, which the columns decide."""
    data = frame()
    found: Array = (data.age > 0).to_numpy().astype(int)
    return found + (data.plan > 0).to_numpy() if classes > 2 else found


def lightgbm_classifier(**options: Any) -> Any:
    return lightgbm.LGBMClassifier(n_estimators=8, min_child_samples=5, verbose=-1, **options)


def posted(server: LocalServer, path: str, body: object) -> Any:
    with urllib.request.urlopen(server.url + path, json.dumps(body).encode()) as answer:
        return json.load(answer)


def named_over_rest(server: LocalServer, rows: pd.DataFrame) -> list[str]:
    given = {"instances": rows.to_dict("records")}
    return [one["label"] for one in posted(server, "/v1/models/model:predict", given)["predictions"]]


def named_over_oip(server: LocalServer, rows: pd.DataFrame) -> list[str]:
    inputs = [
        {"name": name, "datatype": "FP64", "shape": [len(rows)], "data": rows[name].tolist()} for name in rows
    ]
    found = posted(server, "/v2/models/model/infer", {"inputs": inputs, "outputs": [{"name": "label"}]})
    names: list[str] = found["outputs"][0]["data"]
    return names


def classified(server: LocalServer, rows: pd.DataFrame) -> list[dict[str, float]]:
    results = posted(server, "/v1/models/model:classify", {"examples": rows.to_dict("records")})["results"]
    return [dict(one) for one in results]


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("kind", [str, int])
def test_a_classifier_of_lightgbm_answers_the_names_of_its_classes(classes: int, kind: type) -> None:
    data, numbers = frame(), numbered(classes)
    labels = np.array(TEXTS[classes])[numbers] if kind is str else numbers + 7
    model = lightgbm_classifier().fit(data, labels)
    rows = data[:20]
    expected = [str(one) for one in model.predict(rows)]
    assert set(expected) == set(map(str, model.classes_))
    with headrace.serve(model) as server:
        assert named_over_rest(server, rows) == expected
        assert named_over_oip(server, rows) == expected
        found = classified(server, rows)
        answer = server.predict(rows)
    probabilities = model.predict_proba(rows)
    assert [max(one, key=lambda name: one[name]) for one in found] == expected
    np.testing.assert_allclose([list(one.values()) for one in found], probabilities)
    assert list(found[0]) == list(map(str, model.classes_))
    np.testing.assert_allclose(answer["score"], probabilities.max(axis=1))


@pytest.mark.parametrize("classes", [2, 3])
def test_a_classifier_of_xgboost_answers_the_numbers_of_its_classes_as_texts(classes: int) -> None:
    data = frame()
    model = xgboost.XGBClassifier(n_estimators=8, n_jobs=1).fit(data, numbered(classes))
    rows = data[:20]
    expected = [str(one) for one in model.predict(rows)]
    with headrace.serve(model) as server:
        assert named_over_rest(server, rows) == named_over_oip(server, rows) == expected
        assert [max(one, key=lambda name: one[name]) for one in classified(server, rows)] == expected


@pytest.mark.parametrize("classes", [2, 3])
def test_classify_names_the_classes_of_catboost(classes: int) -> None:
    data, texts = frame(), np.array(TEXTS[classes])
    model = catboost.CatBoostClassifier(
        iterations=8, thread_count=1, verbose=False, allow_writing_files=False
    ).fit(data, texts[numbered(classes)])
    rows = data[:20]
    expected = model.predict(rows).ravel().tolist()
    with headrace.serve(model) as server:
        assert named_over_rest(server, rows) == named_over_oip(server, rows) == expected
        assert [max(one, key=lambda name: one[name]) for one in classified(server, rows)] == expected


def test_classify_names_the_classes_of_scikit_learn() -> None:
    data = frame()
    model = LogisticRegression().fit(data, np.array(TEXTS[2])[numbered(2)])
    rows = data[:20]
    with headrace.serve(model) as server:
        found = classified(server, rows)
    assert [max(one, key=lambda name: one[name]) for one in found] == model.predict(rows).tolist()


def raw_scores(y_true: Array, y_pred: Array) -> tuple[Array, Array]:
    """Give the gradients of the logloss: an objective in Python, whose model answers raw scores."""
    probability = 1 / (1 + np.exp(-y_pred))
    return probability - y_true, probability * (1 - probability)


UNNAMED = {
    "a regressor of LightGBM": lambda: lightgbm.LGBMRegressor(n_estimators=3, verbose=-1),
    "a regressor of XGBoost": lambda: xgboost.XGBRegressor(n_estimators=3, n_jobs=1),
    "a regressor of CatBoost": lambda: catboost.CatBoostRegressor(
        iterations=3, thread_count=1, verbose=False, allow_writing_files=False
    ),
    "an objective in Python": lambda: lightgbm_classifier(objective=raw_scores),
    "raw scores of XGBoost": lambda: xgboost.XGBClassifier(
        n_estimators=3, n_jobs=1, objective="binary:logitraw"
    ),
}


@pytest.mark.parametrize("kind", UNNAMED)
def test_models_that_answer_no_probabilities_have_no_labels(kind: str) -> None:
    model = UNNAMED[kind]().fit(frame(), numbered(2))
    with headrace.serve(model) as server:
        assert list(server.predict(frame()[:3])) == ["prediction"]


def test_numbers_of_classes_and_several_labels_of_a_row_are_answered_as_they_are() -> None:
    data, several = frame(), np.stack([numbered(2), 1 - numbered(2)], axis=1)
    numbers = xgboost.XGBClassifier(n_estimators=3, n_jobs=1, objective="multi:softmax")
    with headrace.serve(numbers.fit(data, numbered(3))) as server:
        assert server.predict(data[:9])["prediction"].tolist() == numbers.predict(data[:9]).tolist()
    labels = xgboost.XGBClassifier(n_estimators=3, n_jobs=1)
    with headrace.serve(labels.fit(data, several)) as server:
        assert list(server.predict(data[:9])) == ["prediction"]


def test_a_column_with_the_name_of_the_scores_is_explained() -> None:
    data = frame().rename(columns={"plan": "prediction"})
    model = lightgbm_classifier().fit(data, numbered(2))
    with headrace.serve(model) as server:
        given = {"instances": data[:1].to_dict("records")}
        (row,) = posted(server, "/v1/models/model:explain", given)["predictions"]
    assert list(row) == ["age", "prediction", "expected_value"]


def test_a_large_onnx_model_stays_whole_and_can_be_served_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_files, "_LARGE_ONNX_BYTES", 1000)  # the weights get a file of their own
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.data").write_bytes(b"another model's")
    model = network()
    before, rows = model.SerializeToString(), {"x": np.ones((2, 64), np.float32)}
    with headrace.serve(model) as server:
        first = server.predict(rows)["p"]
    assert model.SerializeToString() == before
    with headrace.serve(model) as server:
        np.testing.assert_array_equal(server.predict(rows)["p"], first)
    assert [one.name for one in tmp_path.iterdir()] == ["model.data"]


def test_weights_that_the_caller_marked_for_a_file_stay_in_the_object(tmp_path: Path) -> None:
    model = network()
    convert_model_to_external_data(model, location="weights.bin")
    before = model.SerializeToString()
    with ExitStack() as undo:
        object_files.find(model, "", tmp_path, undo)
    assert model.SerializeToString() == before
    assert (tmp_path / "model/1/weights.bin").stat().st_size == 64 * 10 * 4


def test_a_model_that_is_not_fitted_is_refused_with_the_librarys_reason() -> None:
    for model in (lightgbm_classifier(), xgboost.XGBClassifier(), catboost.CatBoostClassifier()):
        with pytest.raises(
            HeadraceError, match=f"the {type(model).__name__} cannot be saved as .*(fit|train)"
        ):
            headrace.serve(model)
