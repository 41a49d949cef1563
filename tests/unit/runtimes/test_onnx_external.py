"""The data beside an ONNX model are read, checked, and none of the model's concern afterwards."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace.base.errors import LoadError
from headrace.runtimes.onnx import load
from headrace.runtimes.onnx_external import read_external
from headrace.runtimes.options import RuntimeOptions

TABLE = np.random.default_rng(1).standard_normal((50_000, 4)).astype(np.float32)


def model(table: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> onnx.ModelProto:
    asked = helper.make_tensor_value_info("x", TensorProto.INT64, ["rows"])
    answer = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 4])
    nodes = [helper.make_node("Gather", ["table", "x"], ["y"])]
    graph = helper.make_graph(nodes, "lookup", [asked], [answer], [numpy_helper.from_array(table, "table")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def saved(directory: Path, location: str = "model.data") -> Path:
    file = directory / "model.onnx"
    (directory / location).parent.mkdir(exist_ok=True)
    onnx.save(model(TABLE), file, save_as_external_data=True, location=location, size_threshold=1024)
    return file


@pytest.mark.parametrize("location", ["model.data", "weights/table.bin", "n" * 200])
def test_what_is_answered_does_not_depend_on_the_file_any_more(tmp_path: Path, location: str) -> None:
    file = saved(tmp_path, location)
    (tmp_path / "notes.txt").write_text("not named by the model")
    assert list(read_external(file, None)) == [location]
    servable = load(file, RuntimeOptions())
    (tmp_path / location).write_bytes(b"")
    rows = np.arange(0, len(TABLE), 100)
    np.testing.assert_array_equal(servable.predict({"x": rows})["y"], TABLE[rows])
    servable.close()


def test_a_model_with_its_weights_inside_reads_nothing_besides(tmp_path: Path) -> None:
    onnx.save(model(TABLE), tmp_path / "model.onnx")
    (tmp_path / "model.data").write_bytes(b"of something else")
    assert read_external(tmp_path / "model.onnx", None) == {}


@pytest.mark.parametrize(
    ("checksums", "said"),
    [
        ({}, "model.data is read, and the manifest does not list it"),
        ({"model.data": "0" * 64}, "model.data does not have the checksum"),
    ],
)
def test_what_is_read_is_what_the_manifest_lists(
    tmp_path: Path, checksums: dict[str, str], said: str
) -> None:
    with pytest.raises(LoadError, match=said):
        load(saved(tmp_path), RuntimeOptions(checksums=checksums))


def test_the_right_checksum_is_accepted(tmp_path: Path) -> None:
    file = saved(tmp_path)
    digest = hashlib.sha256((tmp_path / "model.data").read_bytes()).hexdigest()
    load(file, RuntimeOptions(checksums={"model.data": digest})).close()
