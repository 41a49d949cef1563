from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace.base.errors import LoadError, NotLoadable
from headrace.runtimes.keras import keras, load
from headrace.runtimes.options import RuntimeOptions
from tests.conformance.keras_models import lookup, network

FEATURES = np.random.default_rng(0).normal(size=(20, 16)).astype(np.float32)
KEYS = np.arange(60, dtype=np.int32).reshape(20, 3)


def test_answers_are_those_of_keras(tmp_path: Path) -> None:
    network().save(tmp_path / "model.keras")
    servable = load(tmp_path / "model.keras", RuntimeOptions())
    answer = servable.predict({"x": FEATURES})["output_0"]
    np.testing.assert_allclose(answer, network().predict(FEATURES, verbose=0), rtol=1e-5, atol=1e-6)
    assert servable.platform == "keras"
    servable.close()


def test_inputs_and_outputs_keep_their_names(tmp_path: Path) -> None:
    lookup().save(tmp_path / "model.keras")
    servable = load(tmp_path / "model.keras", RuntimeOptions())
    given = {"keys": KEYS, "features": FEATURES}
    answers, expected = servable.predict(given), lookup().predict(given, verbose=0)
    for name in ("score", "both"):
        np.testing.assert_allclose(answers[name], expected[name], rtol=1e-5, atol=1e-6)
    servable.close()


def test_a_lambda_layer_needs_allow_code(tmp_path: Path) -> None:
    file = tmp_path / "model.keras"
    doubled = keras.layers.Lambda(lambda x: x * 2, output_shape=(4,))
    keras.Sequential([keras.Input((4,), name="x"), doubled]).save(file)
    with pytest.raises(NotLoadable, match="--allow-code"):
        load(file, RuntimeOptions())
    servable = load(file, RuntimeOptions(allow_code=True))
    assert servable.predict({"x": np.ones((1, 4), np.float32)})["output_0"].tolist() == [[2.0] * 4]
    servable.close()


def test_a_cut_file_is_refused_without_its_place(tmp_path: Path) -> None:
    file = tmp_path / "model.keras"
    network().save(file)
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(LoadError, match=r"Keras cannot load model\.keras") as raised:
        load(file, RuntimeOptions())
    assert str(tmp_path) not in (raised.value.told or "")
