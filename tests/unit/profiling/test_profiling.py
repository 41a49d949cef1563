"""Profiles of real models: a planted copy that changes nothing is in the table, with its share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tensorflow
from onnx import TensorProto, helper

from headrace.base.errors import LoadError
from headrace.profiling import onnx as profiling_onnx
from headrace.profiling import tensorflow as profiling_tensorflow
from headrace.profiling.report import Line, Profile
from headrace.runtimes.options import RuntimeOptions
from tests.conformance.onnx_models import build
from tests.conformance.onnx_models import save as save_onnx
from tests.conformance.tensorflow_models import save as save_tensorflow
from tests.conformance.tensorflow_models import spec

ROWS, CALLS = 64, 5
_WEIGHTS = np.random.default_rng(0).normal(size=(256, 4)).astype(np.float32)


def onnx_model(*, planted: bool) -> onnx.ModelProto:
    """A matrix product, and before it a copy of twice the input of which half is thrown away."""
    copy = [
        helper.make_node("Concat", ["x", "x"], ["twice"], name="planted_copy", axis=1),
        helper.make_node("Slice", ["twice", "from", "to", "axis"], ["same"], name="planted_slice"),
    ]
    product = helper.make_node("MatMul", ["same" if planted else "x", "weights"], ["y"], name="product")
    constants = {"from": np.array([256]), "to": np.array([512]), "axis": np.array([1])} if planted else {}
    return build(
        [*(copy if planted else []), product],
        [("x", TensorProto.FLOAT, ["rows", 256])],
        [("y", TensorProto.FLOAT, ["rows", 4])],
        {"weights": _WEIGHTS, **constants},
    )


def write_tensorflow(directory: Path, *, planted: bool) -> None:
    module = tensorflow.Module()
    module.weights = tensorflow.Variable(_WEIGHTS)

    def answer(x: object) -> dict[str, object]:
        if planted:
            twice = tensorflow.concat([x, x], 1, name="planted_copy")
            x = tensorflow.slice(twice, [0, 256], [-1, 256], name="planted_slice")
        return {"y": tensorflow.matmul(x, module.weights, name="product")}

    save_tensorflow(module, directory, serving_default=(answer, {"x": spec("float32", None, 256, name="x")}))


def by_name(profile: Profile) -> dict[str, Line]:
    return {line.operation.rpartition("/")[2]: line for line in profile.lines()}


def check(planted: Profile, clean: Profile) -> None:
    assert (planted.rows, planted.calls, planted.activity) == (ROWS, CALLS, "serving")
    found = by_name(planted)
    assert found["planted_copy"].calls == CALLS
    total = sum(line.calls * line.mean_microseconds for line in found.values())
    planted_copy = found["planted_copy"]
    assert planted_copy.share == pytest.approx(CALLS * planted_copy.mean_microseconds / total)
    assert found["planted_copy"].shape == f"[{ROWS}, 512]"
    assert sum(line.share for line in found.values()) == pytest.approx(1)
    assert any("product" in name for name in by_name(clean))
    assert not any("planted" in name for name in by_name(clean))


def test_a_planted_copy_in_onnx_shows_up(tmp_path: Path) -> None:
    profiles = []
    for planted in (True, False):
        save_onnx(onnx_model(planted=planted), tmp_path)
        file = tmp_path / "model.onnx"
        profiles.append(profiling_onnx.profile_serving(file, RuntimeOptions(), ROWS, CALLS))
    check(*profiles)


def test_a_planted_copy_in_a_savedmodel_shows_up(tmp_path: Path) -> None:
    profiles = []
    for planted in (True, False):
        write_tensorflow(tmp_path / str(planted), planted=planted)
        file = tmp_path / str(planted) / "saved_model.pb"
        profiles.append(profiling_tensorflow.profile_serving(file, RuntimeOptions(), ROWS, CALLS))
    check(*profiles)


def test_a_profile_uses_the_settings_of_serving(tmp_path: Path) -> None:
    save_onnx(onnx_model(planted=True), tmp_path)
    with pytest.raises(LoadError, match="optimization"):
        profiling_onnx.profile_serving(
            tmp_path / "model.onnx", RuntimeOptions(options={"optimization": "most"}), ROWS, CALLS
        )
