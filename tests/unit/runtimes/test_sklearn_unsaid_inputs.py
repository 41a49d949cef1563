"""Estimators that do not say how many columns they were fitted on are asked what they take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skops.io
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from headrace.base.errors import NotLoadable
from headrace.model.servable import Servable
from headrace.runtimes.registry import RuntimeOptions, load

RANDOM = np.random.default_rng(0)
ROWS = RANDOM.normal(size=(120, 3))
LABELS = (ROWS[:, 0] > 0).astype(int)
TEXTS = ["a fine text", "another one"] * 60


class Strict(ClassifierMixin, BaseEstimator):
    """A third party's, which takes three columns and says so nowhere."""

    def fit(self, x: Any, y: Any) -> Strict:
        self.classes_ = np.unique(y)
        return self

    def predict(self, x: Any) -> Any:
        if np.asarray(x, float).shape[1] != 3:
            raise ValueError("expected three columns")
        return np.zeros(len(x), int)


def loaded(folder: Path, estimator: Any) -> Servable:
    folder.mkdir(exist_ok=True)
    file = folder / "model.skops"
    skops.io.dump(estimator, file)
    return load(folder, RuntimeOptions(trusted=tuple(skops.io.get_untrusted_types(file=file))))


def scaled(step: Any) -> Any:
    return Pipeline([("scale", step), ("model", LogisticRegression())]).fit(ROWS, LABELS)


NUMBERS = {
    "passthrough": lambda: scaled("passthrough"),
    "none": lambda: scaled(None),
    "searched": lambda: GridSearchCV(scaled(StandardScaler()), {"scale": ["passthrough"]}, cv=2).fit(
        ROWS, LABELS
    ),
    "nested": lambda: make_pipeline("passthrough", scaled("passthrough")).fit(ROWS, LABELS),
    "union": lambda: make_pipeline(FeatureUnion([("same", "passthrough")]), LogisticRegression()).fit(
        ROWS, LABELS
    ),
    "a third party's": lambda: Strict().fit(ROWS, LABELS),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_models_of_numbers_take_their_columns(tmp_path: Path, name: str) -> None:
    estimator = NUMBERS[name]()
    servable = loaded(tmp_path, estimator)
    (spec,) = servable.signatures["serving_default"].inputs
    assert (spec.name, spec.shape) == ("features", (3,))
    assert servable.predict({"features": ROWS})["label"].tolist() == estimator.predict(ROWS).tolist()


def test_samples_have_several_categories_and_words(tmp_path: Path) -> None:
    """So that rows can be compared beside others."""
    pets = np.array([["cat", "x"], ["dog", "y"], ["ant", "x"]] * 4, object)
    encoder = make_pipeline(OneHotEncoder(handle_unknown="error"), LogisticRegression())
    sample = loaded(tmp_path / "a", encoder.fit(pets, LABELS[:12])).signatures["serving_default"].sample
    assert sample is not None
    assert sample["features"].tolist() == [[b"ant", b"x"], [b"cat", b"y"], [b"dog", b"x"]]
    words = make_pipeline(CountVectorizer(), LogisticRegression()).fit(
        ["good film", "bad film"] * 6, LABELS[:12]
    )
    sample = loaded(tmp_path / "b", words).signatures["serving_default"].sample
    assert sample is not None
    assert set(sample["text"].tolist()) == {b"good", b"bad", b"film"}


def test_a_baseline_takes_the_columns_that_it_was_fitted_on(tmp_path: Path) -> None:
    servable = loaded(tmp_path, DummyClassifier(strategy="prior").fit(ROWS, LABELS))
    (spec,) = servable.signatures["serving_default"].inputs
    assert (spec.name, spec.shape) == ("features", (3,))
    assert len(servable.predict({"features": ROWS})["label"]) == len(ROWS)


def test_an_isotonic_regression_takes_one_column(tmp_path: Path) -> None:
    estimator = IsotonicRegression(out_of_bounds="clip").fit(ROWS[:, 0], LABELS)
    servable = loaded(tmp_path, estimator)
    (spec,) = servable.signatures["serving_default"].inputs
    assert (spec.name, spec.shape) == ("features", (1,))
    given = servable.predict({"features": ROWS[:, :1]})["prediction"]
    assert given.tolist() == estimator.predict(ROWS[:, 0]).tolist()


def test_models_of_texts_take_texts(tmp_path: Path) -> None:
    servable = loaded(tmp_path, make_pipeline(CountVectorizer(), LogisticRegression()).fit(TEXTS, LABELS))
    (spec,) = servable.signatures["serving_default"].inputs
    assert (spec.name, spec.shape) == ("text", ())


def test_models_of_dictionaries_are_refused(tmp_path: Path) -> None:
    rows = [{"city": "rome", "n": 1.0}, {"city": "oslo", "n": 2.0}] * 60
    estimator = make_pipeline(DictVectorizer(), LogisticRegression()).fit(rows, [0, 1] * 60)
    with pytest.raises(NotLoadable, match="it takes dictionaries, as DictVectorizer does"):
        loaded(tmp_path, estimator)
