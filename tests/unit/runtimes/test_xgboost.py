from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
import xgboost

from headrace.base.errors import LoadError, NotLoadable
from headrace.model.servable import DEFAULT_SIGNATURE
from headrace.runtimes.options import RuntimeOptions
from headrace.runtimes.xgboost import XgboostServable, load
from tests.conformance.tree_data import DIGITS, frame, inputs_of, targets
from tests.conformance.xgboost_models import clicks, fitted, ten_digits, visits


def loaded(booster: Any, directory: Path, file: str = "model.ubj", **options: Any) -> XgboostServable:
    booster.save_model(directory / file)
    return load(directory / file, RuntimeOptions(**options))


def stopped_early() -> Any:
    data = xgboost.DMatrix(DIGITS.data[::2], DIGITS.target[::2])
    seen = xgboost.DMatrix(DIGITS.data[1::2], DIGITS.target[1::2])
    options = {"max_depth": 8, "eta": 1.0, "nthread": 1, "seed": 0}
    return xgboost.train(
        options, data, 50, evals=[(seen, "seen")], early_stopping_rounds=5, verbose_eval=False
    )


BOOSTERS: dict[str, Callable[[], tuple[Any, pd.DataFrame]]] = {
    "categories": lambda: (clicks(), frame(100)),
    "dart": lambda: (visits(), frame(100)[["age", "visits"]]),
    "pruned": lambda: (
        fitted(frame(500)[["age", "visits"]], targets(500), tree_method="exact", gamma=5.0, depth=8),
        frame(100)[["age", "visits"]],
    ),
    "stumps": lambda: (fitted(frame(500), targets(500), depth=1), frame(100)),
    "constant": lambda: (fitted(frame(500), np.ones(500)), frame(100)),
    "counts": lambda: (
        fitted(frame(500), np.abs(targets(500)).round(), objective="count:poisson"),
        frame(100),
    ),
}


@pytest.mark.parametrize("file", ["model.ubj", "model.json"])
@pytest.mark.parametrize("name", BOOSTERS)
def test_answers_are_those_of_xgboost(name: str, file: str, tmp_path: Path) -> None:
    booster, data = BOOSTERS[name]()
    servable = loaded(booster, tmp_path, file)
    expected = booster.inplace_predict(data)
    inputs = inputs_of(data)
    assert servable.predict(inputs)["prediction"].tolist() == expected.tolist()
    one = servable.predict({name: column[9:10] for name, column in inputs.items()})
    assert one["prediction"].tolist() == expected[9:10].tolist()
    servable.close()


def test_classes_are_columns_of_one_output(tmp_path: Path) -> None:
    servable = loaded(ten_digits(), tmp_path)
    answer = servable.predict({"features": DIGITS.data[:50]})["prediction"]
    assert answer.tolist() == ten_digits().inplace_predict(DIGITS.data[:50]).tolist()
    assert servable.signatures[DEFAULT_SIGNATURE].kind == "classify"
    servable.close()


def test_targets_are_columns_of_one_output(tmp_path: Path) -> None:
    both = np.stack([DIGITS.target, DIGITS.data.sum(axis=1)], axis=1)
    booster = fitted(DIGITS.data, both)
    servable = loaded(booster, tmp_path)
    assert servable.signatures[DEFAULT_SIGNATURE].kind == "regress"
    answer = servable.predict({"features": DIGITS.data[:50]})["prediction"]
    assert answer.tolist() == booster.inplace_predict(DIGITS.data[:50]).tolist()
    servable.close()


def test_several_labels_are_classes(tmp_path: Path) -> None:
    both = np.stack([DIGITS.target > 4, DIGITS.target % 2 == 0], axis=1)
    servable = loaded(fitted(DIGITS.data, both, objective="binary:logistic"), tmp_path)
    assert servable.signatures[DEFAULT_SIGNATURE].kind == "classify"
    servable.close()


def test_iterations_after_the_best_are_left_out_as_by_the_estimator(tmp_path: Path) -> None:
    booster = stopped_early()
    assert booster.best_iteration + 1 < booster.num_boosted_rounds()
    servable = loaded(booster, tmp_path)
    estimator = xgboost.XGBRegressor()
    estimator.load_model(tmp_path / "model.ubj")
    answer = servable.predict({"features": DIGITS.data[:50]})["prediction"]
    assert answer.tolist() == estimator.predict(DIGITS.data[:50]).tolist()
    servable.close()


def test_an_unknown_category_and_a_missing_one_are_missing(tmp_path: Path) -> None:
    servable = loaded(clicks(), tmp_path)
    data = frame(3)
    unknown = inputs_of(data) | {"country": np.array([b"nowhere", b"", b"de"], object)}
    data["country"] = pd.Categorical([None, None, "de"], categories=["de", "fr", "pl"])
    assert servable.predict(unknown)["prediction"].tolist() == clicks().inplace_predict(data).tolist()
    servable.close()


def test_named_columns_may_come_as_one_matrix(tmp_path: Path) -> None:
    servable = loaded(visits(), tmp_path, options={"columns": False})
    data = frame(20)[["age", "visits"]]
    answer = servable.predict({"features": data.to_numpy(np.float64)})["prediction"]
    assert answer.tolist() == visits().inplace_predict(data).tolist()
    servable.close()


def test_a_linear_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="it is a linear model"):
        loaded(fitted(DIGITS.data, DIGITS.target, booster="gblinear"), tmp_path)


def test_categories_that_xgboost_stores_wrongly_are_refused(tmp_path: Path) -> None:
    """Releases before 3.4 count letters where they store bytes, so `köln` becomes `köl`."""
    data = frame(500)
    data["country"] = data.country.cat.rename_categories({"de": "köln"})
    with pytest.raises(LoadError, match="corrupts categories that are not ASCII"):
        loaded(fitted(data, targets(500)), tmp_path)


def test_options_that_do_not_fit_the_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotLoadable, match="columns of categories"):
        loaded(clicks(), tmp_path, options={"columns": False})


def model_of(booster: Any) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(bytes(booster.save_raw("json")))
    return decoded


Change = Callable[[dict[str, Any]], object]


def trees(model: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = model["learner"]["gradient_booster"]["model"]
    return found


def inner(tree: dict[str, Any]) -> int:
    """The first node below the root that has children."""
    return next(node for node, left in enumerate(tree["left_children"]) if node and left != -1)


def cycle(model: dict[str, Any]) -> None:
    tree = trees(model)["trees"][0]
    tree["left_children"][inner(tree)] = 0


def leaf_with_a_child(model: dict[str, Any]) -> None:
    tree = trees(model)["trees"][0]
    tree["left_children"][tree["left_children"].index(-1)] = -7


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda model: model.pop("learner"), "KeyError('learner')"),
        (lambda model: trees(model)["trees"].pop(), "contradict each other"),
        (lambda model: trees(model)["trees"][1].update(id=0), "tree 1 has the id 0"),
        (lambda model: trees(model)["tree_info"].__setitem__(0, 5), "tree_info has a number"),
        (lambda model: trees(model)["iteration_indptr"].__setitem__(1, 99), "iteration_indptr does not"),
        (cycle, "left_children and right_children"),
        (leaf_with_a_child, "left_children and right_children are not those of a tree"),
        (lambda model: trees(model)["trees"][0]["split_indices"].__setitem__(0, 4), "split_indices has"),
        (lambda model: trees(model)["trees"][0]["split_indices"].append(0), "one value per node"),
        (lambda model: trees(model)["trees"][0]["split_indices"].__setitem__(0, 0.5), "something else"),
        (lambda model: trees(model)["trees"][0]["categories_sizes"].__setitem__(0, 999), "exceed"),
        (lambda model: trees(model)["trees"][0]["categories"].__setitem__(0, -1), "categories has a number"),
        (lambda model: trees(model)["cats"]["sorted_idx"].__setitem__(0, 2), "sorted_idx does not fit"),
        (lambda model: trees(model)["cats"]["feature_segments"].__setitem__(1, 2), "do not fit the columns"),
        (lambda model: model["learner"]["feature_names"].pop(), "3 names, expected 4"),
    ],
)
def test_a_damaged_model_is_refused_with_the_reason(change: Change, said: str, tmp_path: Path) -> None:
    model = model_of(clicks())
    change(model)
    (tmp_path / "model.json").write_bytes(msgspec.json.encode(model))
    with pytest.raises(LoadError) as raised:
        load(tmp_path / "model.json", RuntimeOptions())
    assert said in raised.value.message
