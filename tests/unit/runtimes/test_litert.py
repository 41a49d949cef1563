from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

from headrace.base.errors import NotLoadable
from headrace.model.servable import DEFAULT_SIGNATURE
from headrace.runtimes.litert import LitertServable, load
from headrace.runtimes.options import RuntimeOptions
from headrace.runtimes.tensorflow import tensorflow
from tests.conformance.keras_models import lookup, network
from tests.conformance.litert_models import floats, integers, named

FEATURES = np.random.default_rng(0).normal(size=(20, 16)).astype(np.float32)
KEYS = np.arange(60, dtype=np.int32).reshape(20, 3)


def loaded(content: bytes, directory: Path, **options: Any) -> LitertServable:
    (directory / "model.tflite").write_bytes(content)
    return load(directory / "model.tflite", RuntimeOptions(options=options))


def test_answers_are_those_of_the_model_that_was_converted(tmp_path: Path) -> None:
    servable = loaded(floats(), tmp_path)
    answer = servable.predict({"x": FEATURES})["output_0"]
    np.testing.assert_allclose(answer, network().predict(FEATURES, verbose=0), rtol=1e-5, atol=1e-6)
    servable.close()


def test_inputs_and_outputs_have_the_names_of_the_signature(tmp_path: Path) -> None:
    servable = loaded(named(), tmp_path)
    given = {"keys": KEYS, "features": FEATURES}
    answers, expected = servable.predict(given), lookup().predict(given, verbose=0)
    for name in ("score", "both"):
        np.testing.assert_allclose(answers[name], expected[name], rtol=1e-5, atol=1e-6)
    servable.close()


def test_integers_are_those_of_litert_and_near_the_floats_that_they_stand_for(tmp_path: Path) -> None:
    servable = loaded(integers(), tmp_path)
    interpreter = Interpreter(model_content=integers())
    (one,), (other,) = interpreter.get_input_details(), interpreter.get_output_details()
    scale, zero = one["quantization"]
    given = np.clip(np.round(FEATURES / scale) + zero, -128, 127).astype(np.int8)
    answer = servable.predict({"x": given})["output_0"]
    interpreter.resize_tensor_input(one["index"], given.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(one["index"], given)
    interpreter.invoke()
    assert answer.tolist() == interpreter.get_tensor(other["index"]).tolist()
    scale, zero = other["quantization"]
    difference = (answer.astype(np.float32) - zero) * scale - network().predict(FEATURES, verbose=0)
    assert np.abs(difference).mean() < 0.05
    servable.close()


def test_after_a_failure_batches_of_any_size_are_answered(tmp_path: Path) -> None:
    servable = loaded(named(), tmp_path)
    for rows in (3, 1, 20):
        with pytest.raises(Exception, match="the model failed: gather index out of bounds"):
            servable.predict({"keys": KEYS[:rows] + 999, "features": FEATURES[:rows]})
        given = {"keys": KEYS[:rows], "features": FEATURES[:rows]}
        assert len(servable.predict(given)["score"]) == rows
    servable.close()


def test_a_fixed_number_of_rows_is_the_only_one(tmp_path: Path) -> None:
    """Converted without names of signatures, so the tensors' own names count."""
    module = tensorflow.Module()
    features = tensorflow.TensorSpec([4, 2], "float32", name="x")
    twice = tensorflow.function(lambda x: x * 2.0).get_concrete_function(features)
    content = tensorflow.lite.TFLiteConverter.from_concrete_functions([twice], module).convert()
    servable = loaded(bytes(content), tmp_path)
    signature = servable.signatures[DEFAULT_SIGNATURE]
    assert signature.rows == 4
    (answer,) = servable.predict({signature.inputs[0].name: np.ones((4, 2), np.float32)}).values()
    assert answer.tolist() == [[2.0, 2.0]] * 4
    servable.close()


def test_one_of_several_signatures_is_chosen(tmp_path: Path) -> None:
    class Both(tensorflow.Module):  # type: ignore[misc]
        @tensorflow.function(input_signature=[tensorflow.TensorSpec([None, 2], "float32", name="x")])
        def twice(self, x: Any) -> dict[str, Any]:
            return {"y": x * 2.0}

        @tensorflow.function(input_signature=[tensorflow.TensorSpec([None, 2], "float32", name="x")])
        def thrice(self, x: Any) -> dict[str, Any]:
            return {"y": x * 3.0}

    both = Both()
    tensorflow.saved_model.save(
        both, str(tmp_path / "saved"), signatures={"twice": both.twice, "thrice": both.thrice}
    )
    converter = tensorflow.lite.TFLiteConverter.from_saved_model(
        str(tmp_path / "saved"), signature_keys=["twice", "thrice"]
    )
    content = bytes(converter.convert())
    with pytest.raises(NotLoadable, match=r"the signatures .*; choose one: runtime\.options\.signature"):
        loaded(content, tmp_path)
    with pytest.raises(NotLoadable, match="not 'four'"):
        loaded(content, tmp_path, signature="four")
    servable = loaded(content, tmp_path, signature="thrice")
    assert servable.predict({"x": np.ones((1, 2), np.float32)})["y"].tolist() == [[3.0, 3.0]]
    servable.close()
