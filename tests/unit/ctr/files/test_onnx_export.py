"""A click model exported to ONNX predicts the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.ctr.click_model import Table, Weights
from headrace.ctr.files import onnx_export
from headrace.ctr.files.onnx_export import export
from headrace.ctr.model_settings import KINDS, Interaction, Kind, ModelSettings
from headrace.ctr.serving.context import GroupedScorer
from headrace.stream.block import Features
from headrace.stream.schema import Field, Schema
from tests.conformance.ctr_models import EXACT, LARGE, SCHEMA, random_weights

SINGLE = Schema(
    fields=tuple(Field(name=name, role="categorical", buckets=20, context=name < "c") for name in "abcde")
)


def rows_of(features: Features, rows: int) -> tuple[Array, Array]:
    random = np.random.default_rng(3)
    indices = random.integers(0, features.rows, (rows, features.slots)).astype(np.uint32)
    indices[random.random(indices.shape) < 0.2] = 0
    return indices, random.normal(size=(rows, features.dense_width)).astype(np.float32)


def run(file: Path, features: Features, indices: Array, dense: Array) -> Array:
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    slots, columns = features.context_slots, features.context_dense
    given = {
        "context": indices[:, :slots],
        "candidate": indices[:, slots:],
        "context_dense": dense[:, :columns],
        "candidate_dense": dense[:, columns:],
    }
    names = {node.name for node in session.get_inputs()}
    assert names == {name for name, array in given.items() if array.shape[1]}
    (answer,) = session.run(None, {name: given[name] for name in names})
    return np.asarray(answer)


@pytest.mark.parametrize("schema", [SCHEMA, SINGLE, LARGE], ids=["multi-valued", "no-dense", "one-field"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "mdn"])
def test_every_kind_predicts_the_same(kind: Kind, schema: Schema, tmp_path: Path) -> None:
    settings, features = ModelSettings(kind=kind, factors=4, hidden=(20, 10)), Features.of(schema)
    weights = random_weights(settings, features)
    export(settings, features, weights, tmp_path / "model.onnx")
    indices, dense = rows_of(features, 50)
    wanted = GroupedScorer(settings, features, weights).predict(indices, dense)
    np.testing.assert_allclose(run(tmp_path / "model.onnx", features, indices, dense), wanted, atol=1e-6)


def test_an_mdn_is_refused(tmp_path: Path) -> None:
    settings, features = ModelSettings(kind="mdn", factors=4), Features.of(SCHEMA)
    with pytest.raises(ConfigError, match="cannot be exported to ONNX"):
        export(settings, features, random_weights(settings, features), tmp_path / "model.onnx")


@pytest.mark.rest
def test_quantized_tables_are_widened(tmp_path: Path) -> None:
    settings, features = ModelSettings(kind="fm", factors=4), Features.of(SINGLE)
    weights = random_weights(settings, features)
    scales = np.linspace(0.001, 0.002, -(-features.rows // 4)).astype(np.float32)
    values = (weights.tables["embeddings"].values * 100).astype(np.int8)
    quantized = Weights({**weights.tables, "embeddings": Table(values, scales, 2)}, weights.dense)
    export(settings, features, quantized, tmp_path / "model.onnx")
    indices, dense = rows_of(features, 20)
    wanted = GroupedScorer(settings, features, quantized).predict(indices, dense)
    np.testing.assert_allclose(run(tmp_path / "model.onnx", features, indices, dense), wanted, atol=1e-6)


def test_large_tables_go_to_a_file_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_export, "_EXTERNAL_BYTES", 1000)
    settings, features = ModelSettings(kind="fm", factors=4), Features.of(LARGE)
    weights = random_weights(settings, features)
    for _ in range(2):  # also over an earlier one
        export(settings, features, weights, tmp_path / "model.onnx")
    assert {file.name for file in tmp_path.iterdir()} == {"model.onnx", "model.onnx.data"}
    indices, dense = rows_of(features, 5)
    wanted = GroupedScorer(settings, features, weights).predict(indices, dense)
    np.testing.assert_allclose(run(tmp_path / "model.onnx", features, indices, dense), wanted, atol=1e-6)


def test_large_tables_never_become_part_of_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protobuf cannot copy a message above 2 GiB, and does not tell its size: the export of one failed."""
    settings, features = ModelSettings(kind="deepfm", factors=4, hidden=(20, 10)), Features.of(SCHEMA)
    weights = random_weights(settings, features)
    values = sum(table.values.size for table in weights.tables.values())
    values += sum(array.size for array in weights.dense.values())
    for bound, is_external in ((4 * values, False), (4 * values - 1, True)):
        monkeypatch.setattr(onnx_export, "_EXTERNAL_BYTES", bound)
        export(settings, features, weights, tmp_path / "model.onnx")
        model = onnx.load(tmp_path / "model.onnx", load_external_data=False)
        external = [one for one in model.graph.initializer if one.data_location == one.EXTERNAL]
        assert (tmp_path / "model.onnx.data").exists() == bool(external) == is_external
    assert all(one in external or len(one.raw_data) < 1024 for one in model.graph.initializer)
    assert not any(one.raw_data for one in external)
    places = [{entry.key: entry.value for entry in one.external_data} for one in external]
    assert {place["location"] for place in places} == {"model.onnx.data"}
    assert {int(place["offset"]) % 4096 for place in places} == {0}
    sizes = [4 * np.prod(one.dims) for one in external]
    assert [int(place["length"]) for place in places] == sizes
    assert (tmp_path / "model.onnx.data").stat().st_size == int(places[-1]["offset"]) + sizes[-1]


def test_a_file_of_that_name_in_the_working_directory_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_export, "_EXTERNAL_BYTES", 1000)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.onnx.data").write_bytes(b"another")
    (tmp_path / "there").mkdir()
    settings, features = ModelSettings(kind="fm", factors=4), Features.of(LARGE)
    export(settings, features, random_weights(settings, features), tmp_path / "there" / "model.onnx")
    assert (tmp_path / "model.onnx.data").read_bytes() == b"another"
    assert (tmp_path / "there" / "model.onnx.data").exists()


def test_interactions_cannot_be_exported(tmp_path: Path) -> None:
    settings = ModelSettings(kind="lr", interactions=(Interaction(fields=("a", "b"), buckets=10),))
    features = Features.of(SINGLE)
    with pytest.raises(ConfigError, match="export a model without them"):
        export(settings, features, random_weights(settings, features), tmp_path / "model.onnx")


def test_exact_fields_cannot_be_exported(tmp_path: Path) -> None:
    settings, features = ModelSettings(kind="lr"), Features.of(EXACT)
    with pytest.raises(ConfigError, match=r'topics, user, words: .* export a model with keys = "hash"'):
        export(settings, features, random_weights(settings, features), tmp_path / "model.onnx")
