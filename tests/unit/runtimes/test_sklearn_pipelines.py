"""Pipelines as people build them, fitted on data frames and on arrays: they load, and answer as they did.

Warnings are errors here, so each of these also says that no prediction warns.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars
import pytest
import skops.io
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor, make_column_selector
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier, StackingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, OrdinalEncoder, StandardScaler

from headrace.base.errors import InvalidRequest, NotLoadable
from headrace.base.tensors import Tensors
from headrace.batching.cost import BatchCost
from headrace.config import ModelConfig
from headrace.lifecycle.warmup import warm_up
from headrace.model.servable import Servable
from headrace.runtimes.registry import RuntimeOptions, load

ROWS = 60
_RANDOM = np.random.default_rng(7)
FRAME = polars.DataFrame(
    {
        "age": _RANDOM.normal(40, 10, ROWS),
        "income": _RANDOM.normal(3, 1, ROWS),
        "city": _RANDOM.choice(["rome", "oslo", "größe"], ROWS),
        "floor": _RANDOM.choice([3.0, 5.0, 7.0], ROWS),
    }
)
TARGET = np.arange(ROWS) % 2
NUMBERS = ["age", "income"]
CODES = np.column_stack([_RANDOM.choice([3.0, 5.0], ROWS), _RANDOM.choice([10.0, 20.0], ROWS)])


def columns(names: Any = NUMBERS, texts: Any = ("city",), **settings: Any) -> ColumnTransformer:
    """The usual preparation: numbers are scaled, categories encoded."""
    return ColumnTransformer(
        [("numbers", StandardScaler(), names), ("texts", OneHotEncoder(), list(texts))], **settings
    )


def classifier() -> LogisticRegression:
    return LogisticRegression(max_iter=500)


def chosen(frame: polars.DataFrame) -> list[str]:
    """A choice of columns, as ``make_column_selector`` makes them of pandas' data frames."""
    return [name for name in frame.columns if name in NUMBERS]


def loaded(directory: Path, estimator: Any, **options: bool) -> Servable:
    file = directory / "model.skops"
    skops.io.dump(estimator, file)
    trusted = tuple(skops.io.get_untrusted_types(file=file))
    return load(directory, RuntimeOptions(trusted=trusted, options=options))


def inputs(servable: Servable, frame: polars.DataFrame = FRAME) -> Tensors:
    """What a request for these rows holds, one input a column."""
    found = {}
    for spec in servable.signatures["serving_default"].inputs:
        column = frame[spec.name].to_list()
        found[spec.name] = np.array(
            [one.encode() if isinstance(one, str) else one for one in column], dtype=spec.dtype
        )
    return found


def described(servable: Servable) -> list[str]:
    return [str(spec) for spec in servable.signatures["serving_default"].inputs]


MIXED: dict[str, Callable[[], Any]] = {
    "columns by name": lambda: make_pipeline(columns(), classifier()),
    "columns by position": lambda: make_pipeline(columns([0, 1], [2, 3]), classifier()),
    "columns by a slice of names": lambda: make_pipeline(columns(slice("age", "income")), classifier()),
    "columns by a mask": lambda: make_pipeline(
        columns([True, True, False, False], [False, False, True, True]), classifier()
    ),
    "columns by a callable": lambda: make_pipeline(columns(chosen), classifier()),
    "a remainder": lambda: make_pipeline(columns(remainder="passthrough"), classifier()),
    "a remainder that is scaled": lambda: make_pipeline(columns(remainder=StandardScaler()), classifier()),
    "nested pipelines": lambda: make_pipeline(
        ColumnTransformer(
            [
                ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), NUMBERS),
                (
                    "texts",
                    Pipeline(
                        [
                            ("fill", SimpleImputer(strategy="constant", fill_value="oslo")),
                            ("encode", OrdinalEncoder()),
                        ]
                    ),
                    ["city"],
                ),
            ]
        ),
        RandomForestClassifier(5, n_jobs=2, random_state=0),
    ),
    "a union": lambda: make_pipeline(
        columns(), FeatureUnion([("as it is", "passthrough"), ("scaled", StandardScaler())]), classifier()
    ),
    "a function": lambda: make_pipeline(
        ColumnTransformer(
            [("log", FunctionTransformer(np.log1p), ["age"]), ("texts", OrdinalEncoder(), ["city", "floor"])]
        ),
        classifier(),
    ),
    "documents in a column": lambda: make_pipeline(
        ColumnTransformer([("words", TfidfVectorizer(), "city"), ("numbers", StandardScaler(), NUMBERS)]),
        classifier(),
    ),
    "the best of a search": lambda: GridSearchCV(
        make_pipeline(columns(), classifier()), {"logisticregression__C": [0.1, 1.0]}, cv=2
    ),
    "calibrated": lambda: CalibratedClassifierCV(make_pipeline(columns(), classifier()), cv=2),
    "stacked": lambda: StackingClassifier(
        [("one", make_pipeline(columns(), classifier()))], classifier(), cv=2
    ),
    "boosted, with categories of its own": lambda: make_pipeline(
        ColumnTransformer([("texts", OrdinalEncoder(), ["city"])], remainder="passthrough"),
        HistGradientBoostingClassifier(max_iter=3, categorical_features=[0], min_samples_leaf=2),
    ),
    "data frames within": lambda: make_pipeline(
        columns(sparse_threshold=0).set_params(texts__sparse_output=False).set_output(transform="polars"),
        StandardScaler().set_output(transform="polars"),
        classifier(),
    ),
}


USES_FLOOR = (
    "columns by position",
    "columns by a mask",
    "a remainder",
    "a remainder that is scaled",
    "a function",
    "boosted, with categories of its own",
)


@pytest.mark.parametrize("shape", MIXED)
def test_a_pipeline_over_texts_and_numbers_answers_as_it_did(tmp_path: Path, shape: str) -> None:
    estimator = MIXED[shape]().fit(FRAME, TARGET)
    wanted = estimator.predict_proba(FRAME)
    servable = loaded(tmp_path, estimator)
    used = ["age FP64 [rows]", "income FP64 [rows]", "city BYTES [rows]", "floor FP64 [rows]"]
    if shape == "a function":
        used.remove("income FP64 [rows]")
    if shape not in USES_FLOOR:  # the estimator drops it, so nobody has to send it
        used.remove("floor FP64 [rows]")
    assert described(servable) == used
    np.testing.assert_allclose(servable.predict(inputs(servable))["probabilities"], wanted, atol=1e-12)
    servable.close()


def test_the_best_estimator_of_a_search_loads_too(tmp_path: Path) -> None:
    search = MIXED["the best of a search"]().fit(FRAME, TARGET).best_estimator_
    wanted = search.predict(FRAME)
    servable = loaded(tmp_path, search)
    assert servable.predict(inputs(servable))["label"].tolist() == wanted.tolist()
    servable.close()


@pytest.mark.parametrize(
    "encoder",
    [
        OneHotEncoder(),
        OneHotEncoder(handle_unknown="ignore", dtype=np.float32),
        OrdinalEncoder(),
        OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
    ],
)
def test_an_encoder_of_numbers_is_tried_with_categories_that_it_knows(tmp_path: Path, encoder: Any) -> None:
    """Zero is none of them."""
    estimator = make_pipeline(encoder, classifier()).fit(CODES, TARGET)
    servable = loaded(tmp_path, estimator)
    assert described(servable) == ["features FP64 [rows, 2]"]
    assert servable.predict({"features": CODES})["label"].tolist() == estimator.predict(CODES).tolist()
    servable.close()


def test_a_category_that_the_encoder_does_not_know_is_the_requests_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    servable = loaded(tmp_path, make_pipeline(OneHotEncoder(), classifier()).fit(CODES, TARGET))
    refusal = (
        r"^features: row 1, column 0: expected a category that the estimator was fitted on, got 4\.0; send"
    )
    with pytest.raises(InvalidRequest, match=refusal):
        servable.predict({"features": np.array([CODES[0], [4.0, CODES[0][1]]])})
    assert not caplog.records  # whoever sends nonsense fills no log
    servable.close()


def test_the_column_of_an_unknown_category_is_named_if_no_other_has_it(tmp_path: Path) -> None:
    data = pd.DataFrame({"age": [1.0, 2.0], "from": ["oslo", "rome"], "to": ["rome", "bonn"]})
    encoders = ColumnTransformer(
        [("number", "passthrough", ["age"]), ("city", OneHotEncoder(), ["to", "from"])]
    )
    servable = loaded(tmp_path, make_pipeline(encoders, Ridge()).fit(data, [1.0, 2.0]))
    given = {"age": np.array([1.0, 2.0]), "to": np.array([b"rome", b"paris"], object)}
    with pytest.raises(
        InvalidRequest, match=r"^to: row 1: expected a category .* was fitted on, got 'paris'; send"
    ):
        servable.predict({**given, "from": np.array([b"oslo", b"oslo"], object)})
    with pytest.raises(InvalidRequest, match=r"^inputs: the estimator refuses a row: .*'paris'"):
        servable.predict({**given, "from": np.array([b"paris", b"oslo"], object)})
    servable.close()


@pytest.mark.parametrize("dtype", [object, "U8"])
def test_columns_of_texts_alone_are_one_input(tmp_path: Path, dtype: Any) -> None:
    texts = np.array([["rome", "a"], ["oslo", "b"], ["bonn", "größe"]], dtype=dtype)
    estimator = make_pipeline(OneHotEncoder(), Ridge()).fit(texts, [1.0, 2.0, 3.0])
    servable = loaded(tmp_path, estimator)
    assert described(servable) == ["features BYTES [rows, 2]"]
    sent = np.array([[text.encode() for text in row] for row in texts.tolist()], dtype=object)
    np.testing.assert_allclose(servable.predict({"features": sent})["prediction"], [1.0, 2.0, 3.0], atol=0.5)
    servable.close()


def test_columns_without_names_are_called_as_scikit_learn_does(tmp_path: Path) -> None:
    array = np.array(FRAME.rows(), dtype=object)
    estimator = make_pipeline(columns([0, 1], [2]), classifier()).fit(array, TARGET)
    servable = loaded(tmp_path, estimator)
    assert described(servable)[2] == "x2 BYTES [rows]"
    renamed = FRAME.rename({name: f"x{index}" for index, name in enumerate(FRAME.columns)})
    answers = servable.predict(inputs(servable, renamed))
    assert answers["label"].tolist() == estimator.predict(array).tolist()
    servable.close()


def test_numbers_of_a_data_frame_are_named_inputs_or_one(tmp_path: Path) -> None:
    numbers, target = FRAME.select(NUMBERS), FRAME["floor"].to_numpy()
    estimator = TransformedTargetRegressor(
        make_pipeline(StandardScaler(), Ridge()), transformer=StandardScaler()
    ).fit(numbers, target)
    wanted = estimator.predict(numbers)
    servable = loaded(tmp_path, estimator, columns=False)
    assert described(servable) == ["features FP64 [rows, 2]"]
    np.testing.assert_allclose(servable.predict({"features": numbers.to_numpy()})["prediction"], wanted)
    servable.close()
    servable = loaded(tmp_path, estimator)
    assert described(servable) == ["age FP64 [rows]", "income FP64 [rows]"]
    np.testing.assert_allclose(servable.predict(inputs(servable))["prediction"], wanted)
    servable.close()


def test_missing_values_among_the_categories_are_not_what_is_tried(tmp_path: Path) -> None:
    frame = FRAME.with_columns(city=polars.Series([None, "rome"] * (ROWS // 2)))
    estimator = make_pipeline(columns(texts=["city", "floor"]), classifier()).fit(frame, TARGET)
    servable = loaded(tmp_path, estimator)
    assert "city BYTES [rows]" in described(servable)
    servable.close()


def test_warm_up_asks_what_the_encoders_know(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Empty texts are no category: each load would log an error, and nothing would be warm."""
    servable = loaded(tmp_path, MIXED["columns by name"]().fit(FRAME, TARGET))
    cost = BatchCost()
    warm_up(servable, ModelConfig(), None, cost)
    assert cost.known
    assert not caplog.records
    servable.close()


def missing(servable: Servable) -> list[str]:
    """The inputs of which values may be missing."""
    return [spec.name for spec in servable.signatures["serving_default"].inputs if spec.absent is not None]


@pytest.mark.parametrize(
    ("estimator", "wanted"),
    [
        (make_pipeline(SimpleImputer(), Ridge()), ["features"]),
        (HistGradientBoostingClassifier(max_iter=2), ["features"]),
        (Ridge(), []),
    ],
)
def test_numbers_may_be_missing_where_the_estimator_answers_without_them(
    tmp_path: Path, estimator: Any, wanted: list[str]
) -> None:
    servable = loaded(tmp_path, estimator.fit(CODES, TARGET))
    assert missing(servable) == wanted
    if wanted:
        checked = servable.signatures["serving_default"].check({"features": [[None, 3.0]]})
        assert np.isnan(np.asarray(checked.columns[0])).tolist() == [[True, False]]
    servable.close()


def test_each_column_is_tried_without_its_number(tmp_path: Path) -> None:
    servable = loaded(tmp_path, MIXED["nested pipelines"]().fit(FRAME.drop("floor"), TARGET))
    assert missing(servable) == ["age", "income", "city"]
    servable.close()
    partly = ColumnTransformer(
        [
            ("filled", SimpleImputer(), ["age"]),
            ("as it is", "passthrough", ["income"]),
            ("texts", OneHotEncoder(), ["city"]),
        ]
    )
    servable = loaded(tmp_path, make_pipeline(partly, classifier()).fit(FRAME, TARGET))
    assert missing(servable) == ["age"]
    servable.close()


def test_types_that_nobody_trusts_are_not_tried_twice(tmp_path: Path) -> None:
    estimator = MIXED["boosted, with categories of its own"]().fit(FRAME, TARGET)
    skops.io.dump(estimator, tmp_path / "model.skops")
    with pytest.raises(NotLoadable, match="types that are not trusted"):
        load(tmp_path, RuntimeOptions())


PEOPLE = pd.DataFrame(
    {
        "age": [31.0, None, 45.0, 27.0, 60.0, None] * 10,
        "city": ["rome", "oslo", None, "rome", "köln", None] * 10,
        "member": [True, False, True, True, False, False] * 10,
        "born": pd.to_datetime("1990-01-01"),
    }
)


def with_marker(marker: float | None) -> pd.DataFrame:
    """People whose missing city is None or NaN."""
    return PEOPLE.assign(city=PEOPLE.city.astype(object).where(PEOPLE.city.notna(), marker))


def filled() -> ColumnTransformer:
    """Numbers and texts that may be missing, and a truth."""
    texts = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore"))
    return ColumnTransformer(
        [
            ("numbers", SimpleImputer(), ["age"]),
            ("texts", texts, ["city"]),
            ("as it is", "passthrough", ["member"]),
        ]
    )


def encoded() -> ColumnTransformer:
    """A missing city is a category of its own."""
    return ColumnTransformer([("texts", OneHotEncoder(), ["city"]), ("numbers", SimpleImputer(), ["age"])])


@pytest.mark.parametrize(
    ("steps", "marker"), [(encoded, None), (encoded, np.nan), (filled, np.nan)], ids=["None", "NaN", "filled"]
)
def test_missing_texts_and_numbers_of_a_data_frame_are_answered_as_by_the_pipeline(
    tmp_path: Path, steps: Callable[[], ColumnTransformer], marker: float | None
) -> None:
    """Whichever value stood for a missing text when the pipeline was fitted."""
    people = with_marker(marker)
    estimator = make_pipeline(steps(), classifier()).fit(people, TARGET)
    servable = loaded(tmp_path, estimator)
    signature = servable.signatures["serving_default"]
    assert "born" not in signature.input_names
    given = zip(signature.input_names, signature.check(people).columns, strict=True)
    answers = servable.predict({name: np.asarray(column) for name, column in given})
    np.testing.assert_allclose(answers["probabilities"], estimator.predict_proba(people))
    servable.close()


def test_a_row_whose_only_text_is_missing_is_answered_alone(tmp_path: Path) -> None:
    estimator = make_pipeline(filled(), classifier()).fit(with_marker(np.nan), TARGET)
    servable = loaded(tmp_path, estimator)
    row = {"age": np.array([50.0]), "city": np.array([b""], object), "member": np.array([1.0])}
    wanted = estimator.predict_proba(pd.DataFrame({"age": [50.0], "city": [np.nan], "member": [True]}))
    np.testing.assert_allclose(servable.predict(row)["probabilities"], wanted)
    servable.close()


def test_an_empty_text_that_is_a_category_is_not_a_missing_one(tmp_path: Path) -> None:
    people = PEOPLE.assign(city=["rome", "", "oslo"] * 20)
    servable = loaded(tmp_path, make_pipeline(filled(), classifier()).fit(people, TARGET))
    assert missing(servable) == ["age"]
    servable.close()


def test_usual_types_need_no_trust(tmp_path: Path) -> None:
    """Pipelines that impute and encode hold NumPy dtypes, which skops does not trust."""
    numbers = ColumnTransformer([("numbers", SimpleImputer(), make_column_selector(dtype_include=np.number))])
    estimator = CalibratedClassifierCV(make_pipeline(numbers, classifier()), cv=2).fit(PEOPLE, TARGET)
    skops.io.dump(estimator, tmp_path / "model.skops")
    assert {"numpy.dtype", "numpy.number"} < set(skops.io.get_untrusted_types(file=tmp_path / "model.skops"))
    load(tmp_path, RuntimeOptions()).close()
