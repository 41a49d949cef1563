"""What the scikit-learn runtime refuses, and what its options do."""

from __future__ import annotations

import threading
import tomllib
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import skops.io
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from threadpoolctl import threadpool_info

from headrace.base.errors import InvalidRequest, LoadError, NotLoadable
from headrace.model.servable import Servable
from headrace.runtimes.registry import RuntimeOptions, SignatureSettings, load
from tests.conformance.sklearn_models import digits, forest, named, texts

FEATURES, TARGET = load_iris(return_X_y=True)
TREES = "sklearn.tree._tree.Tree"


def loaded(directory: Path, estimator: Any, **options: object) -> Servable:
    skops.io.dump(estimator, directory / "model.skops")
    return load(directory, RuntimeOptions(**options))


def outputs(servable: Servable) -> list[str]:
    return list(servable.signatures["serving_default"].output_names)


def test_unknown_types_are_listed_with_the_line_that_trusts_them(tmp_path: Path) -> None:
    """The line is the one to paste: what it says is enough to load."""
    boosted = HistGradientBoostingClassifier(max_iter=2).fit(FEATURES, TARGET)
    with pytest.raises(LoadError, match=r"predictor\.TreePredictor.*trust them only if") as raised:
        loaded(tmp_path, boosted)
    pasted = tomllib.loads(raised.value.message.partition("under [runtime]: ")[2])
    servable = loaded(tmp_path, boosted, trusted=tuple(pasted["trusted"]))
    assert servable.predict({"features": FEATURES})["label"].tolist() == boosted.predict(FEATURES).tolist()
    servable.close()


def test_the_place_of_the_line_is_named_without_what_lies_above_the_model(tmp_path: Path) -> None:
    version = tmp_path / "shop" / "1"
    version.mkdir(parents=True)
    with pytest.raises(LoadError, match=r"put into shop/headrace\.toml, beside the versions'") as raised:
        loaded(version, forest())
    assert str(tmp_path) not in raised.value.message


def test_trusting_another_type_does_not_help_and_is_kept_in_the_line(tmp_path: Path) -> None:
    with pytest.raises(LoadError) as raised:
        loaded(tmp_path, forest(), trusted=("other.Type",))
    pasted = tomllib.loads(raised.value.message.partition("under [runtime]: ")[2])
    assert pasted["trusted"] == ["other.Type", TREES]


def test_a_file_that_is_cut_is_called_so(tmp_path: Path) -> None:
    loaded(tmp_path, Ridge().fit(FEATURES, TARGET)).close()
    (file,) = tmp_path.glob("*.skops")
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(
        LoadError, match=r"is cut or damaged, or no skops file .*; copy it again, or write it"
    ):
        load(tmp_path, RuntimeOptions())


def test_only_a_version_with_a_verified_signature_trusts_types_itself(tmp_path: Path) -> None:
    (tmp_path / "trusted_types.txt").write_text(f"other.Type\n{TREES}\n")
    with pytest.raises(LoadError, match="holds types that are not trusted"):
        loaded(tmp_path, forest())
    loaded(tmp_path, forest(), is_verified=True).close()
    (tmp_path / "trusted_types.txt").write_bytes(b"\xff")
    with pytest.raises(LoadError, match=r"trusted_types\.txt cannot be read"):
        loaded(tmp_path, forest(), is_verified=True)


@pytest.mark.parametrize(
    "stored", [{"a": 1}, StandardScaler().fit(FEATURES)], ids=["dictionary", "transformer"]
)
def test_what_does_not_predict_is_refused(tmp_path: Path, stored: object) -> None:
    with pytest.raises(LoadError, match=r"expected an estimator with predict\(\)"):
        loaded(tmp_path, stored)


@pytest.mark.parametrize("file", ["model.joblib", "model.pkl"])
def test_a_pickle_is_loaded_only_where_code_may_run(tmp_path: Path, file: str) -> None:
    joblib.dump(LogisticRegression().fit([[0.0], [1.0]], [0, 1]), tmp_path / file)
    with pytest.raises(NotLoadable, match=r"runs whatever code is in it.*--allow-code"):
        load(tmp_path, RuntimeOptions())
    servable = load(tmp_path, RuntimeOptions(allow_code=True))
    assert servable.predict({"features": np.array([[3.0]])})["label"].tolist() == [1]


def test_a_damaged_pickle_is_a_load_error(tmp_path: Path) -> None:
    (tmp_path / "model.pkl").write_bytes(b"cnot_there\nModel\n.")
    with pytest.raises(LoadError, match=r"model\.pkl: ModuleNotFoundError: No module named 'not_there'"):
        load(tmp_path, RuntimeOptions(allow_code=True))


def test_answers_are_the_estimators_own(tmp_path: Path) -> None:
    servable = loaded(tmp_path, forest(), trusted=(TREES,))
    answers = servable.predict({"features": FEATURES})
    assert [label.decode() for label in answers["label"]] == forest().predict(FEATURES).tolist()
    np.testing.assert_allclose(answers["probabilities"], forest().predict_proba(FEATURES), atol=1e-12)
    servable.close()


@pytest.mark.parametrize(
    ("estimator", "kind", "names"),
    [
        (LogisticRegression(max_iter=500), "classify", ["label", "probabilities"]),
        (Ridge(), "regress", ["prediction"]),
        (KMeans(2, n_init=1), "predict", ["label"]),
    ],
)
def test_the_kind_of_estimator_decides_outputs_and_signature(
    tmp_path: Path, estimator: Any, kind: str, names: list[str]
) -> None:
    servable = loaded(tmp_path, estimator.fit(FEATURES, TARGET))
    assert servable.signatures["serving_default"].kind == kind
    assert outputs(servable) == names
    servable.close()


def test_a_configured_kind_wins(tmp_path: Path) -> None:
    servable = loaded(tmp_path, digits(), signature=SignatureSettings(kind="regress", scores="label"))
    assert servable.signatures["serving_default"].kind == "regress"
    servable.close()


def test_one_output_can_be_chosen_to_save_the_others_time(tmp_path: Path) -> None:
    servable = loaded(tmp_path, digits(), options={"outputs": "probabilities"})
    assert outputs(servable) == ["probabilities"]
    assert list(servable.predict({"features": np.zeros((2, 64))})) == ["probabilities"]
    servable.close()


def test_several_targets_give_one_label_column_each(tmp_path: Path) -> None:
    both = np.stack([TARGET, TARGET // 2], axis=1)
    estimator = MultiOutputClassifier(LogisticRegression(max_iter=500)).fit(FEATURES, both)
    servable = loaded(tmp_path, estimator)
    assert [str(spec) for spec in servable.signatures["serving_default"].outputs] == ["label INT64 [rows, 2]"]
    servable.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"columns": True}, "fitted without column names"),
        ({"columns": "yes"}, "runtime.options.columns: expected bool, got 'yes'"),
        ({"datatype": "INT8"}, "runtime.options.datatype: expected FP32 or FP64"),
        ({"outputs": "scores"}, "runtime.options.outputs: expected all, label, probabilities"),
    ],
)
def test_a_wrong_setting_is_a_load_error(tmp_path: Path, options: dict[str, object], said: str) -> None:
    with pytest.raises(LoadError, match=said):
        loaded(tmp_path, digits(), options=options)


def test_an_output_that_the_estimator_lacks_is_a_load_error(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="the estimator has prediction, not 'label'"):
        loaded(tmp_path, Ridge().fit(FEATURES, TARGET), options={"outputs": "label"})


def test_named_columns_can_be_sent_by_position_too_without_a_warning(tmp_path: Path) -> None:
    servable = loaded(tmp_path, make_pipeline(StandardScaler(), Ridge()).fit(FEATURES, TARGET))
    by_position = loaded(tmp_path, named(), options={"columns": False})
    assert [str(spec) for spec in by_position.signatures["serving_default"].inputs] == [
        "features FP64 [rows, 3]"
    ]
    assert by_position.predict({"features": np.ones((2, 3))})["prediction"].shape == (2,)
    servable.close()
    by_position.close()


def test_text_that_is_not_utf_8_is_the_requests_fault(tmp_path: Path) -> None:
    servable = loaded(tmp_path, texts())
    with pytest.raises(InvalidRequest, match="text: expected UTF-8"):
        servable.predict({"text": np.array([b"\xff"], dtype=object)})
    servable.close()


def test_every_calling_thread_keeps_to_its_share_of_threads(tmp_path: Path) -> None:
    servable = loaded(tmp_path, digits(), threads=1)
    seen: list[set[int]] = []

    def call() -> None:
        servable.predict({"features": np.zeros((1, 64))})
        seen.append({pool["num_threads"] for pool in threadpool_info()})

    for _ in range(2):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert seen == [{1}, {1}]
    servable.close()


@pytest.mark.parametrize(
    "estimator",
    [
        LogisticRegression(),
        make_pipeline(StandardScaler(), LogisticRegression()),
        make_pipeline(StandardScaler().fit(FEATURES), LogisticRegression()),
    ],
    ids=["an estimator", "a pipeline", "the last step of a pipeline"],
)
def test_an_estimator_that_is_not_fitted_is_refused_as_such(tmp_path: Path, estimator: Any) -> None:
    with pytest.raises(NotLoadable, match=r"the estimator is not fitted; call its fit\(\)"):
        loaded(tmp_path, estimator)


def doubling(function: Any) -> Any:
    return make_pipeline(FunctionTransformer(function), LogisticRegression(max_iter=1000)).fit(
        FEATURES, TARGET
    )


def test_a_lambda_is_refused_with_the_way_out(tmp_path: Path) -> None:
    expected = r"holds a function without a name, .*<lambda>.*; use one that is defined at the top level"
    with pytest.raises(NotLoadable, match=expected):
        loaded(tmp_path, doubling(lambda rows: 2 * rows))


def test_a_function_inside_another_is_refused_with_the_way_out(tmp_path: Path) -> None:
    def local(rows: Any) -> Any:
        return 2 * rows

    expected = r"no attribute 'local'; install the package .* Of your own code, use one that is defined"
    with pytest.raises(LoadError, match=expected):
        loaded(tmp_path, doubling(local), trusted=(f"{__name__}.local",))
