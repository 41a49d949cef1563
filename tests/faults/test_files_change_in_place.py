"""The files of a version that serves are cut short, written over, or copied over: it goes on, to the bit."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace.base.tensors import Array
from headrace.ctr.click_model import Table, Weights
from headrace.ctr.model_settings import ModelSettings
from headrace.runtimes import registry
from headrace.runtimes.options import RuntimeOptions
from headrace.stream.block import Features
from headrace.stream.schema import Field, Schema
from headrace.training.releasing.publishing import Publisher, Training
from tests.faults.still_serves import does_it_still_serve
from tests.running_server import RunningServer

BUCKETS = 1_000_000
ASKED = list(range(0, BUCKETS, 4000))
"""One in a page: so pages are asked for that nobody has touched before the damage."""

FEATURES = Features.of(Schema(fields=(Field(name="ad", role="categorical", keys="bucket", buckets=BUCKETS),)))
SETTINGS = ModelSettings(kind="lr")


def weights(seed: int) -> Weights:
    linear = np.zeros((FEATURES.rows, 1), np.float32)
    linear[1:, 0] = np.random.default_rng(seed).standard_normal(FEATURES.rows - 1)
    dense = {"bias": np.zeros(1, np.float32), "dense": np.zeros(0, np.float32)}
    return Weights(tables={"linear": Table.of(linear)}, dense=dense)


def publish(directory: Path, made: Weights, patch: bool = False) -> Path:
    return Publisher(directory, patch=patch, keep=0).publish(SETTINGS, FEATURES, made, Training(rows=1)).path


def publish_onnx(directory: Path, table: Array) -> Path:
    """A model that looks up rows of a table, which lies beside it."""
    asked = helper.make_tensor_value_info("x", TensorProto.INT64, ["rows"])
    answer = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", table.shape[1]])
    nodes = [helper.make_node("Gather", ["table", "x"], ["y"])]
    graph = helper.make_graph(nodes, "lookup", [asked], [answer], [numpy_helper.from_array(table, "table")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (directory / ".1").mkdir(parents=True)
    onnx.save(
        made,
        directory / ".1/model.onnx",
        save_as_external_data=True,
        location="model.data",
        size_threshold=1024,
    )
    return (directory / ".1").rename(directory / "1")


def cut(file: Path) -> None:
    os.truncate(file, 0)


def cut_and_grown(file: Path) -> None:
    size = file.stat().st_size
    os.truncate(file, 0)
    os.truncate(file, size)


def written_over(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.write(b"\xff" * file.stat().st_size)


def copied_over(file: Path) -> None:
    """As ``cp`` does it: cut, then written."""
    content = file.read_bytes()
    with file.open("wb") as opened:
        opened.write(content[::-1])


DAMAGES = [cut, cut_and_grown, written_over, copied_over]


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The kernels are compiled once, here, and not while a server is waited for."""
    servable = registry.load(publish(tmp_path_factory.mktemp("compiled"), weights(0)), RuntimeOptions())
    for rows in (1, 300):
        servable.predict({"ad": np.arange(rows)})
    servable.close()


def answers(server: RunningServer, model: str, version: int) -> object:
    status, body = server.post(f"/v1/models/{model}/versions/{version}:predict", {"instances": ASKED})
    assert status == 200, body
    return body["predictions"]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("has_manifest", [True, False], ids=["manifest", "no manifest"])
def test_a_version_goes_on_when_its_files_change(
    models: Path, damage: Callable[[Path], object], has_manifest: bool
) -> None:
    for name in ("kept", "damaged"):
        path = publish(models / name, weights(1))
        if not has_manifest:
            (path / "headrace-manifest.json").unlink()
    with RunningServer(models) as server:
        for file in (models / "damaged" / "1").glob("*.npy"):
            damage(file)
        assert answers(server, "damaged", 1) == answers(server, "kept", 1)
        does_it_still_serve(server)


@pytest.mark.parametrize("damage", DAMAGES)
def test_patches_go_on_when_their_base_changes(models: Path, damage: Callable[[Path], object]) -> None:
    changed = weights(1)
    changed.tables["linear"].values[1::1000] = 0.5
    for name in ("kept", "damaged"):
        publish(models / name, weights(1))
        assert publish(models / name, changed, patch=True).name == "2"
        (models / name / "headrace.toml").write_text("[versions]\npolicy = 'all'\n")
    with RunningServer(models) as server:
        for name in ("kept/versions/1", "kept/versions/2", "damaged/versions/1", "damaged/versions/2"):
            server.wait_for(lambda name=name: server.get(f"/v2/models/{name}/ready")[0] == 200, name)  # type: ignore[misc]
        for file in (models / "damaged").glob("*/*.npy"):
            damage(file)
        for version in (1, 2):
            assert answers(server, "damaged", version) == answers(server, "kept", version)
        does_it_still_serve(server)


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_onnx_model_goes_on_when_its_external_data_change(
    models: Path, damage: Callable[[Path], object]
) -> None:
    """ONNX Runtime mapped them: a request after the cut ended the process."""
    table = np.random.default_rng(1).standard_normal((BUCKETS, 4)).astype(np.float32)
    path = publish_onnx(models / "damaged", table)
    with RunningServer(models) as server:
        damage(path / "model.data")
        told = np.array(answers(server, "damaged", 1), np.float32)
        np.testing.assert_array_equal(told, table[ASKED])
        does_it_still_serve(server)
