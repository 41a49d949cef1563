"""What the TensorFlow runtime makes of signatures, datatypes, shapes and settings of every kind."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow

from headrace.base.errors import InvalidRequest, LoadError, ModelError
from headrace.base.tensors import DATATYPES, STRING
from headrace.model.servable import Servable
from headrace.runtimes import tensorflow as runtime
from headrace.runtimes.registry import RuntimeOptions, SignatureSettings, find, load
from tests.conformance.tensorflow_models import (
    save,
    spec,
    write_estimator,
    write_lookup,
    write_network,
    write_reader,
    write_strings,
)

NUMBERS = [datatype for datatype in DATATYPES if datatype.dtype != STRING]


def identity(x: Any) -> dict[str, Any]:
    return {"y": tensorflow.identity(x)}


def loaded(
    directory: Path, options: RuntimeOptions | None = None, **functions: tuple[Callable[..., Any], Any]
) -> Servable:
    save(tensorflow.Module(), directory, **functions)
    return load(directory, options or RuntimeOptions())


@pytest.mark.parametrize("datatype", NUMBERS, ids=lambda datatype: datatype.oip)
def test_every_datatype_goes_through_unchanged(tmp_path: Path, datatype: Any) -> None:
    specs = {"x": spec(tensorflow.dtypes.as_dtype(datatype.dtype).name, None, 2, name="x")}
    servable = loaded(tmp_path, serving_default=(identity, specs))
    values = np.array([[0, 1]], datatype.dtype)
    answer = servable.predict({"x": values})["y"]
    assert answer.dtype == values.dtype
    assert answer.tolist() == values.tolist()
    servable.close()


@pytest.mark.parametrize(
    ("function", "specs", "said"),
    [
        (identity, {"x": ("float32", None)}, "input 'x' has no axes"),
        (identity, {"x": ("float32", "unknown")}, "input 'x' has no declared axes"),
        (identity, {"x": ("bfloat16", (None,))}, "input 'x' is bfloat16"),
        (lambda x: {"y": tensorflow.reduce_sum(x)}, {"x": ("float32", (None,))}, "output 'y' has no axes"),
        (
            lambda a, b: {"y": a @ b},
            {"a": ("float32", (2, 3)), "b": ("float32", (3, 4))},
            r"different fixed first axes \(a 2, b 3\)",
        ),
    ],
    ids=["no axes", "no declared axes", "bfloat16", "an output without axes", "two first axes"],
)
def test_what_no_request_can_carry_is_a_load_error_with_the_way_out(
    tmp_path: Path, function: Callable[..., Any], specs: dict[str, Any], said: str
) -> None:
    made = {}
    for name, (dtype, shape) in specs.items():
        sizes = None if shape == "unknown" else list(shape or ())
        made[name] = tensorflow.TensorSpec(sizes, dtype, name=name)
    with pytest.raises(LoadError, match=said):
        loaded(tmp_path, serving_default=(function, made))


def test_every_signature_can_be_called(tmp_path: Path) -> None:
    write_network(tmp_path)
    servable = load(tmp_path, RuntimeOptions())
    assert list(servable.signatures) == ["serving_default", "logits"]
    features = np.ones((3, 64), np.float32)
    logits = servable.predict({"x": features}, "logits")
    assert list(logits) == ["x", "z"]
    expected = np.exp(logits["z"]) / np.exp(logits["z"]).sum(1, keepdims=True)
    np.testing.assert_allclose(servable.predict({"x": features})["p"], expected, rtol=1e-5, atol=1e-7)
    servable.close()


def test_the_only_signature_is_the_default_one_whatever_its_name(tmp_path: Path) -> None:
    servable = loaded(tmp_path, answer=(identity, {"x": spec("float32", None, name="x")}))
    assert sorted(servable.signatures) == ["answer", "serving_default"]
    assert servable.predict({"x": np.ones(2, np.float32)})["y"].tolist() == [1, 1]
    servable.close()


def test_of_several_signatures_the_operator_chooses_the_default_one(tmp_path: Path) -> None:
    specs = {"x": spec("float32", None, name="x")}
    with pytest.raises(LoadError, match=r"got double, same; set runtime\.options\.default_signature"):
        loaded(tmp_path, same=(identity, specs), double=(lambda x: {"y": x + x}, specs))
    servable = load(tmp_path, RuntimeOptions(options={"default_signature": "double"}))
    assert servable.predict({"x": np.ones(2, np.float32)})["y"].tolist() == [2, 2]
    servable.close()
    with pytest.raises(LoadError, match="the model has double, same, not 'treble'"):
        load(tmp_path, RuntimeOptions(options={"default_signature": "treble"}))


def test_a_signature_that_cannot_be_served_leaves_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        servable = loaded(
            tmp_path,
            serving_default=(identity, {"x": spec("float32", None, name="x")}),
            step=(identity, {"x": spec("int64", name="x")}),
        )
    assert list(servable.signatures) == ["serving_default"]
    assert any(getattr(record, "signature", "") == "step" for record in caplog.records)
    servable.close()


def test_a_servers_layout_works_as_it_is(tmp_path: Path) -> None:
    """saved_model.pb settles it, with variables/, assets/ and a fingerprint beside it."""
    write_lookup(tmp_path)
    names = [entry.name for entry in tmp_path.iterdir() if entry.is_file()]
    assert "fingerprint.pb" in names
    runtime_row, name = find(names)
    assert (runtime_row.kind, name) == ("tensorflow", "saved_model.pb")


def test_missing_variables_are_a_load_error_without_paths(tmp_path: Path) -> None:
    write_lookup(tmp_path)
    for file in (tmp_path / "variables").iterdir():
        file.unlink()
    with pytest.raises(LoadError, match=r"TensorFlow cannot load saved_model\.pb") as raised:
        load(tmp_path, RuntimeOptions())
    assert str(tmp_path) not in raised.value.message


def test_other_threads_than_the_first_models_are_said_to_have_no_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "_first_threads", [1])
    write_lookup(tmp_path)
    with caplog.at_level(logging.WARNING):
        load(tmp_path, RuntimeOptions(threads=1)).close()
        assert not [one for one in caplog.records if one.name.startswith("headrace")]
        load(tmp_path, RuntimeOptions(threads=7)).close()
    # TensorFlow says things of its own where another test has set logs up.
    ours = [record for record in caplog.records if record.name.startswith("headrace")]
    assert [(record.threads, record.wanted) for record in ours] == [(1, 7)]  # type: ignore[attr-defined]


def test_a_failure_says_what_failed_and_nothing_of_the_graph(tmp_path: Path) -> None:
    write_lookup(tmp_path)
    servable = load(tmp_path, RuntimeOptions())
    with pytest.raises(ModelError) as raised:
        servable.predict({"keys": np.full((1, 3), 5000, np.int32), "flag": np.zeros(1, np.bool_)})
    assert raised.value.message == "the model failed: indices[0,0] = 5000 is not in [0, 1000)"
    servable.close()


# ---- Examples ----


def test_signatures_that_read_examples_are_told_from_those_that_read_texts(tmp_path: Path) -> None:
    found = {}
    for name, write in (("estimator", write_estimator), ("reader", write_reader), ("strings", write_strings)):
        (tmp_path / name).mkdir()
        write(tmp_path / name)
        servable = load(tmp_path / name, RuntimeOptions())
        found[name] = {key: (one.kind, one.examples) for key, one in servable.signatures.items()}
        servable.close()
    assert found == {
        "estimator": {
            "serving_default": ("classify", True),
            "regression": ("regress", True),
            "predict": ("predict", True),
        },
        "reader": {"serving_default": ("predict", True)},
        "strings": {"serving_default": ("predict", False)},
    }


def test_one_text_a_row_is_no_example_where_nothing_reads_examples(tmp_path: Path) -> None:
    servable = loaded(tmp_path, serving_default=(identity, {"x": spec("string", None, name="x")}))
    assert not servable.signatures["serving_default"].examples
    servable.close()


def test_the_settings_kind_goes_before_the_models_own(tmp_path: Path) -> None:
    write_estimator(tmp_path)
    servable = load(tmp_path, RuntimeOptions(signature=SignatureSettings(kind="regress")))
    kinds = {name: one.kind for name, one in servable.signatures.items()}
    assert kinds == {"serving_default": "regress", "regression": "regress", "predict": "predict"}
    servable.close()


def test_an_example_that_the_model_cannot_read_is_the_requests_fault(tmp_path: Path) -> None:
    write_reader(tmp_path)
    servable = load(tmp_path, RuntimeOptions())
    with pytest.raises(InvalidRequest, match=r"examples: the model cannot read it: .*age"):
        servable.predict({"examples": np.array([b""], dtype=object)})
    servable.close()
