from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest

from headrace.base.errors import LoadError, NotLoadable
from headrace.base.tensors import Array
from headrace.model.servable import DEFAULT_SIGNATURE
from headrace.runtimes.lightgbm import LightgbmServable, load
from headrace.runtimes.options import RuntimeOptions, SignatureSettings
from tests.conformance.lightgbm_models import clicks, fitted, ten_digits, visits
from tests.conformance.tree_data import DIGITS, frame, inputs_of, targets


def loaded(booster: lightgbm.Booster, directory: Path, **options: Any) -> LightgbmServable:
    booster.save_model(directory / "model.txt")
    return load(directory / "model.txt", RuntimeOptions(**options))


def rewritten(directory: Path, change: Callable[[str], str]) -> str:
    """The error of a changed text."""
    (directory / "model.txt").write_text(change(clicks().model_to_string()))
    with pytest.raises(LoadError) as raised:
        load(directory / "model.txt", RuntimeOptions())
    return raised.value.message


def replaced(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return change


def squared(predictions: Array, data: lightgbm.Dataset) -> tuple[Array, Array]:
    """Gradient and second derivative of an objective that LightGBM does not know by name."""
    return predictions - data.get_label(), np.ones(len(predictions))


BOOSTERS: dict[str, Callable[[], tuple[lightgbm.Booster, pd.DataFrame]]] = {
    "categories": lambda: (clicks(), frame(100)),
    "linear": lambda: (visits(), frame(100)[["age", "visits"]]),
    "forest": lambda: (
        fitted(frame(500), targets(500) > 0, boosting="rf", bagging_freq=1, bagging_fraction=0.7),
        frame(100),
    ),
    "own_objective": lambda: (fitted(frame(500), targets(500), objective=squared), frame(100)),
    "stumps": lambda: (fitted(frame(500), targets(500), leaves=2), frame(100)),
    "constant": lambda: (fitted(frame(500), np.ones(500)), frame(100)),
    "positions": lambda: (fitted(frame(500), targets(500) > 0, objective="binary"), frame(100)),
}


@pytest.mark.parametrize("name", BOOSTERS)
def test_answers_are_those_of_lightgbm(name: str, tmp_path: Path) -> None:
    booster, data = BOOSTERS[name]()
    servable = loaded(booster, tmp_path)
    expected = booster.predict(data, num_threads=1)
    inputs = inputs_of(data)
    assert servable.predict(inputs)["prediction"].tolist() == expected.tolist()
    one = servable.predict({name: column[9:10] for name, column in inputs.items()})
    assert one["prediction"].tolist() == expected[9:10].tolist()
    servable.close()


def test_classes_are_columns_of_one_output(tmp_path: Path) -> None:
    servable = loaded(ten_digits(), tmp_path)
    answer = servable.predict({"features": DIGITS.data[:50]})["prediction"]
    assert answer.tolist() == ten_digits().predict(DIGITS.data[:50], num_threads=1).tolist()
    assert servable.signatures[DEFAULT_SIGNATURE].kind == "classify"
    servable.close()


def test_an_unknown_category_and_a_missing_one_are_missing(tmp_path: Path) -> None:
    servable = loaded(clicks(), tmp_path)
    data = frame(3)
    unknown = inputs_of(data) | {"country": np.array([b"nowhere", b"", b"de"], object)}
    data["country"] = pd.Categorical([None, None, "de"], categories=["pl", "de"])
    assert servable.predict(unknown)["prediction"].tolist() == clicks().predict(data).tolist()
    servable.close()


def test_the_order_of_values_is_that_of_the_fit(tmp_path: Path) -> None:
    """`plan` has the values 30, 7, 90, in this order."""
    servable = loaded(clicks(), tmp_path)
    inputs = inputs_of(frame(3)) | {"plan": np.array([30.0, 7.0, 90.0])}
    data = frame(3)
    data["plan"] = pd.Categorical([30, 7, 90])
    assert servable.predict(inputs)["prediction"].tolist() == clicks().predict(data).tolist()
    servable.close()


def test_a_rate_is_a_regression_unless_the_settings_say(tmp_path: Path) -> None:
    assert loaded(clicks(), tmp_path).signatures[DEFAULT_SIGNATURE].kind == "regress"
    chosen = loaded(clicks(), tmp_path, signature=SignatureSettings(kind="classify"))
    assert chosen.signatures[DEFAULT_SIGNATURE].kind == "classify"


def test_named_columns_may_come_as_one_matrix(tmp_path: Path) -> None:
    servable = loaded(visits(), tmp_path, options={"columns": False})
    data = frame(20)[["age", "visits"]]
    answer = servable.predict({"features": data.to_numpy(np.float64)})["prediction"]
    assert answer.tolist() == visits().predict(data, num_threads=1).tolist()
    servable.close()


@pytest.mark.parametrize(
    ("booster", "options", "said"),
    [
        (ten_digits, {"columns": True}, "fitted without column names"),
        (clicks, {"columns": False}, "columns of categories"),
        (clicks, {"datatype": "FP16"}, "expected FP32 or FP64, got 'FP16'"),
    ],
)
def test_options_that_do_not_fit_the_model_are_refused(
    booster: Callable[[], lightgbm.Booster], options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(NotLoadable, match=said):
        loaded(booster(), tmp_path, options=options)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: "", "does not begin with 'tree'"),
        (lambda text: text.partition("\nTree=0")[0], "it has no trees"),
        (lambda text: text.partition("end of trees")[0], "its end is missing; copy the file again, or save"),
        (lambda text: text.partition("end of parameters")[0], "its end is missing"),
        (lambda text: text.replace("\n", "\r\n"), "its line ends were converted; copy it in binary mode"),
        (replaced("\nTree=3\n", "\nTree=9\n"), "tree 3 is not where tree_sizes says"),
        (replaced("num_class=1", "num_class=2"), "contradict each other"),
        (replaced("max_feature_idx=3", "max_feature_idx=2"), "feature_names has 4 names, expected 3"),
        (
            replaced("split_feature=", "split_feature=9 "),
            "tree 0 is cut; copy the file again, or save the model again",
        ),
        (replaced("left_child=1", "left_child=2"), "left_child and right_child are not those of a tree"),
        (replaced("cat_boundaries=0", "cat_boundaries=1"), "cat_boundaries do not increase from 0"),
        (replaced('[["de"', '[["de'), "pandas_categorical, is damaged"),
        (replaced('["de", "fr", "pl"], ', ""), "2 columns of categories, 1 of them with values"),
        (replaced('["de",', "[1,"), "has texts and numbers"),
        (replaced("feature_names=age country", "feature_names=age age"), "two columns are called 'age'"),
    ],
)
def test_a_damaged_text_is_refused_with_the_reason(
    change: Callable[[str], str], said: str, tmp_path: Path
) -> None:
    assert said in rewritten(tmp_path, change)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("split_feature", "9", "split_feature has an index that is not below 4"),
        ("split_feature", "x", "split_feature has a value that is not a number"),
        ("leaf_value", "", "leaf_value has"),
        ("num_leaves", "", "num_leaves has 0 values, expected 1"),
    ],
)
def test_a_damaged_value_of_a_tree_is_refused_with_the_reason(
    key: str, value: str, said: str, tmp_path: Path
) -> None:
    """The first value of the first tree, padded with spaces to its length: the tree keeps its size."""

    def change(text: str) -> str:
        head, found, rest = text.partition(f"\n{key}=")
        first = rest.split()[0]
        return f"{head}{found}{value.ljust(len(first))}{rest[len(first) :]}"

    assert said in rewritten(tmp_path, change)


def test_a_tree_of_each_kind_of_child_is_followed_to_a_leaf(tmp_path: Path) -> None:
    """A child that is its own ancestor would be followed for ever."""

    def change(text: str) -> str:
        head, found, rest = text.partition("\nright_child=")
        children = rest.partition("\n")[0].split(" ")
        inner = next(index for index, child in enumerate(children) if child.isdigit())
        children[inner] = "0".ljust(len(children[inner]))
        return f"{head}{found}{' '.join(children)}\n{rest.partition(chr(10))[2]}"

    assert "left_child and right_child are not those of a tree" in rewritten(tmp_path, change)


def test_rows_to_try_have_categories_that_the_model_knows(tmp_path: Path) -> None:
    servable = loaded(clicks(), tmp_path)
    sample = servable.signatures[DEFAULT_SIGNATURE].sample
    assert sample is not None
    data = frame(500)
    known = [str(one).encode() for one in data["country"].cat.categories]
    assert sample["country"].tolist() == [known[row % len(known)] for row in range(4)]
    assert sample["plan"][0] == data["plan"].cat.categories[0]
    assert sample["age"].tolist() == [0.0] * 4
    assert len(servable.predict(sample)["prediction"]) == 4
    servable.close()


def test_a_model_of_numbers_needs_no_special_rows_to_try(tmp_path: Path) -> None:
    servable = loaded(visits(), tmp_path)
    assert servable.signatures[DEFAULT_SIGNATURE].sample is None
    servable.close()
