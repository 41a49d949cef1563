"""The signature ``explain`` of linear models of scikit-learn: columns add up to the model's own raw score."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import joblib
import numpy as np
import pandas as pd
import pytest
import skops.io
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfTransformer, TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, OneHotEncoder, PolynomialFeatures, StandardScaler
from sklearn.svm import SVC, LinearSVC

from headrace.base.tensors import Array, Tensors
from headrace.model.servable import EXPLAIN_SIGNATURE, Servable
from headrace.runtimes.registry import RuntimeOptions, load

FEATURES, TARGET = load_iris(return_X_y=True)
PEOPLE = pd.DataFrame(
    {
        "age": [20.0, 35.0, np.nan, 50.0, 61.0, 44.0],
        "city": ["oslo", "rome", "rome", "oslo", "köln", "köln"],
        "visits": [1.0, 4.0, 2.0, 8.0, 0.0, 3.0],
    }
)
CHURNED = np.array([0, 1, 0, 1, 1, 0])


def loaded(directory: Path, estimator: Any, *trusted: str) -> Servable:
    skops.io.dump(estimator, directory / "model.skops")
    return load(directory, RuntimeOptions(trusted=trusted))


def people() -> Tensors:
    return {
        "age": PEOPLE.age.to_numpy(),
        "city": np.array([one.encode() for one in PEOPLE.city], object),
        "visits": PEOPLE.visits.to_numpy(),
    }


def mixed(final: Any, drop: str | None = None) -> Any:
    columns = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), ["age", "visits"]),
            ("texts", OneHotEncoder(drop=drop), ["city"]),
        ]
    )
    return make_pipeline(columns, final)


def total(answer: Tensors) -> Array:
    """The sum over the inputs, and over the columns of ``features``."""
    values = {name: one.sum(axis=1) if name == "features" else one for name, one in answer.items()}
    return np.sum(list(values.values()), axis=0)


@pytest.mark.parametrize("drop", [None, "first", "if_binary"])
def test_columns_of_a_data_frame_add_up_to_the_raw_score(tmp_path: Path, drop: str | None) -> None:
    pipeline = mixed(LogisticRegression(), drop).fit(PEOPLE, CHURNED)
    wanted = pipeline.decision_function(PEOPLE)
    city = pipeline[-1].coef_[0][2:] @ pipeline[0].named_transformers_["texts"].transform(PEOPLE[["city"]]).T
    answer = loaded(tmp_path, pipeline).predict(people(), EXPLAIN_SIGNATURE)
    assert list(answer) == ["age", "city", "visits", "expected_value"]
    np.testing.assert_allclose(total(answer), wanted, rtol=1e-9)
    np.testing.assert_allclose(answer["city"], city, rtol=1e-9)
    assert answer["expected_value"].tolist() == [pipeline[-1].intercept_[0]] * 6


@pytest.mark.parametrize(
    "estimator",
    [
        LogisticRegression(max_iter=1000),
        make_pipeline(StandardScaler(), LinearSVC()),
        make_pipeline(TfidfTransformer(norm=None), LogisticRegression(max_iter=1000)),
    ],
)
def test_a_matrix_has_a_contribution_per_column_and_class(tmp_path: Path, estimator: Any) -> None:
    wanted = estimator.fit(FEATURES, TARGET).decision_function(FEATURES)
    servable = loaded(tmp_path, estimator)
    specs = [str(spec) for spec in servable.signatures[EXPLAIN_SIGNATURE].outputs]
    assert specs == ["features FP64 [rows, 4, 3]", "expected_value FP64 [rows, 3]"]
    answer = servable.predict({"features": FEATURES}, EXPLAIN_SIGNATURE)
    np.testing.assert_allclose(total(answer), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("final", [LinearRegression(), Ridge()])
def test_a_regression_adds_up_to_its_prediction(tmp_path: Path, final: Any) -> None:
    wanted = mixed(final).fit(PEOPLE, CHURNED * 2.5).predict(PEOPLE)
    pipeline = mixed(final).fit(PEOPLE, CHURNED * 2.5)
    answer = loaded(tmp_path, pipeline).predict(people(), EXPLAIN_SIGNATURE)
    np.testing.assert_allclose(total(answer), wanted, rtol=1e-9)


@pytest.mark.parametrize("final", [LogisticRegression(), SVC(kernel="linear")])
def test_a_text_is_one_input(tmp_path: Path, final: Any) -> None:
    """The coefficients of SVC are sparse here."""
    texts = ["cheap flights", "cheap cheap", "dear flights", "dear hotels"]
    pipeline = make_pipeline(TfidfVectorizer(), final).fit(texts, [0, 0, 1, 1])
    given = {"text": np.array([one.encode() for one in texts], object)}
    servable = loaded(tmp_path, pipeline, "scipy.sparse._csr.csr_matrix")
    answer = servable.predict(given, EXPLAIN_SIGNATURE)
    np.testing.assert_allclose(total(answer), pipeline.decision_function(texts).ravel(), rtol=1e-9)


MIXING: dict[str, Callable[[], Any]] = {
    "components": lambda: make_pipeline(PCA(2), LogisticRegression()).fit(FEATURES, TARGET),
    "lengths": lambda: make_pipeline(Normalizer(), LogisticRegression()).fit(FEATURES, TARGET),
    "frequencies": lambda: make_pipeline(TfidfTransformer(), LogisticRegression()).fit(FEATURES, TARGET),
    "products": lambda: make_pipeline(PolynomialFeatures(), LogisticRegression(max_iter=5000)).fit(
        FEATURES, TARGET
    ),
    "part": lambda: make_pipeline(
        make_column_transformer((PCA(1), [0, 1]), (StandardScaler(), [2, 3])), LogisticRegression()
    ).fit(FEATURES, TARGET),
    "exponential": lambda: PoissonRegressor().fit(FEATURES, TARGET),
    "forest": lambda: RandomForestClassifier(3).fit(FEATURES, TARGET),
}


@pytest.mark.parametrize("name", MIXING)
def test_what_is_no_sum_over_columns_has_no_explanation(tmp_path: Path, name: str) -> None:
    skops.io.dump(MIXING[name](), tmp_path / "model.skops")
    servable = load(tmp_path, RuntimeOptions(trusted=("sklearn.tree._tree.Tree",)))
    assert EXPLAIN_SIGNATURE not in servable.signatures


class NamedCoefficients(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """A linear model of one's own, whose coefficients are not an array."""

    coef_: ClassVar[dict[str, float]] = {"age": 2.0}
    intercept_ = 0.0
    n_features_in_ = 1

    def predict(self, rows: Array) -> Array:
        return np.asarray(rows)[:, 0] * self.coef_["age"]


def test_a_model_that_cannot_be_explained_predicts(tmp_path: Path) -> None:
    joblib.dump(NamedCoefficients(), tmp_path / "model.joblib")
    servable = load(tmp_path, RuntimeOptions(allow_code=True))
    assert list(servable.signatures) == ["serving_default"]
    assert servable.predict({"features": np.array([[3.0]])})["prediction"].tolist() == [6.0]
