"""Model files: what is written is what is mapped; what does not fit is said and reaches no kernel."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headrace.base.errors import ConfigError, LoadError
from headrace.base.tensors import Array
from headrace.ctr.click_model import Weights
from headrace.ctr.files.arrays import write_array
from headrace.ctr.files.model_files import MODEL_FILE, arrays_of, read_description, read_model
from headrace.ctr.files.model_files import write_model as write
from headrace.ctr.files.quantization import quantize
from headrace.ctr.model_settings import KINDS, Kind
from headrace.stream.block import Features
from headrace.stream.schema import Field, Schema
from tests.click_weights import FEATURES, SCHEMA, settings_for, weights_for


def equal(one: Weights, other: Weights) -> bool:
    mine, yours = arrays_of(one), arrays_of(other)
    return mine.keys() == yours.keys() and all(
        mine[name].dtype == yours[name].dtype and mine[name].tobytes() == yours[name].tobytes()
        for name in mine
    )


@pytest.mark.parametrize("bits", [32, 16, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_comes_back_bit_for_bit(tmp_path: Path, kind: Kind, bits: int) -> None:
    settings = settings_for(kind)
    weights = weights_for(settings)
    stored = weights if bits == 32 else quantize(weights, bits)  # type: ignore[arg-type]
    write(tmp_path, settings, FEATURES, stored)
    again, features, read = read_model(tmp_path)
    assert again == settings
    assert features.schema == SCHEMA
    assert equal(read, stored)
    assert {name: table.shift for name, table in read.tables.items()} == {
        name: table.shift for name, table in stored.tables.items()
    }


def test_a_model_without_categorical_or_dense_fields_comes_back(tmp_path: Path) -> None:
    for fields in ((Field(name="d", role="dense"),), (Field(name="c", role="categorical", buckets=9),)):
        features = Features.of(Schema(fields=fields))
        for kind in KINDS:
            settings = settings_for(kind, interactions=())
            directory = tmp_path / f"{fields[0].name}-{kind}"
            directory.mkdir()
            weights = weights_for(settings, features)
            for stored in (weights, quantize(weights, 8)):
                write(directory, settings, features, stored)
                assert equal(read_model(directory)[2], stored)


def test_weights_that_do_not_fit_are_not_written(tmp_path: Path) -> None:
    weights = weights_for(settings_for("fm"))
    with pytest.raises(ConfigError, match=r"expected the tables linear, got embeddings, linear"):
        write(tmp_path, settings_for("lr"), FEATURES, weights)
    with pytest.raises(ConfigError, match=r"missing: dense.pairs; not of this model: nothing"):
        write(tmp_path, settings_for("fwfm"), FEATURES, weights)
    with pytest.raises(ConfigError, match=r"table.embeddings: expected float32 \[1001, 5\]"):
        write(tmp_path, settings_for("fm", factors=5), FEATURES, weights)
    with pytest.raises(ConfigError, match=r"table.embeddings: expected int8 \[1001, 5\], got int8"):
        write(tmp_path, settings_for("fm", factors=5), FEATURES, quantize(weights, 8))
    double = replace(weights, dense=weights.dense | {"bias": np.zeros(1)})
    with pytest.raises(ConfigError, match=r"dense.bias: expected float32 \[1\], got float64"):
        write(tmp_path, settings_for("fm"), FEATURES, double)
    assert not list(tmp_path.iterdir())


Damage = Callable[[Path], object]


def change(**changes: object) -> Damage:
    def apply(directory: Path) -> None:
        described = json.loads((directory / MODEL_FILE).read_text())
        (directory / MODEL_FILE).write_text(json.dumps(described | changes))

    return apply


def other(array: Array) -> Damage:
    return lambda directory: write_array(directory / "table.linear.npy", array)


def cut(directory: Path) -> None:
    content = (directory / "table.embeddings.npy").read_bytes()
    (directory / "table.embeddings.npy").write_bytes(content[:-4])


def pickled(directory: Path) -> None:
    np.save(directory / "dense.bias.npy", np.array([{}], dtype=object), allow_pickle=True)


def unknown_array(directory: Path) -> None:
    described = json.loads((directory / MODEL_FILE).read_text())
    described["arrays"]["dense.../../x"] = described["arrays"].pop("dense.bias")
    (directory / MODEL_FILE).write_text(json.dumps(described))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: (path / MODEL_FILE).unlink(), "model.ctr cannot be read: No such file"),
        (lambda path: (path / MODEL_FILE).write_bytes(b"\xff{"), "not a model's description"),
        (change(format=99), "format 99 is newer than 1; update headrace"),
        (change(settings={"kind": "fm", "hidden": [0]}), "hidden: expected a number"),
        (change(settings={"kind": "gbdt"}), "Invalid enum value 'gbdt'"),
        (change(schema={"fields": []}), "there is nothing to learn from"),
        (change(shifts={"linear": 63}), "expected the tables embeddings, linear, got linear"),
        (change(shifts={"linear": 64, "embeddings": 63}), "shifts: linear: expected 0 to 63, got 64"),
        (change(shifts={"linear": 3, "embeddings": 63}), r"table.linear.scales: expected float32 \[132\]"),
        (lambda path: (path / "table.linear.npy").unlink(), "table.linear.npy cannot be read: No such file"),
        (other(np.zeros((1051, 2), np.float32)), r"expected float32 \[1051, 1\], got float32 \[1051, 2\]"),
        (other(np.zeros((1051, 1), np.int16)), r"expected float32 \[1051, 1\], got int16"),
        (other(np.zeros((1051, 1), ">f4")), r"expected float32 \[1051, 1\], got >f4"),
        (cut, r"table.embeddings.npy is damaged: .*; publish the version again"),
        (lambda path: (path / "dense.bias.npy").write_bytes(b"PK\x03\x04"), "dense.bias.npy is damaged"),
        (pickled, "dense.bias.npy is damaged"),
        (unknown_array, r"missing: dense.bias; not of this model: dense.../../x"),
        (change(base={"version": "../1", "files": {}}), "expected a version's number, got '../1'"),
        (change(base={"version": "7", "files": {"x": ""}}), "patch of version 7, which does not exist"),
    ],
)
def test_damaged_versions_are_refused_with_the_reason(tmp_path: Path, damage: Damage, says: str) -> None:
    settings = settings_for("fm")
    write(tmp_path, settings, FEATURES, weights_for(settings))
    damage(tmp_path)
    with pytest.raises(LoadError, match=says):
        read_model(tmp_path)


def test_fortrans_order_is_refused(tmp_path: Path) -> None:
    settings = settings_for("fm")
    write(tmp_path, settings, FEATURES, weights_for(settings))
    np.save(tmp_path / "table.embeddings.npy", np.asfortranarray(np.ones((1001, 4), np.float32)))
    with pytest.raises(LoadError, match="expected C order"):
        read_model(tmp_path)


def test_the_description_is_text_that_people_can_read(tmp_path: Path) -> None:
    settings = settings_for("deepfm")
    write(tmp_path, settings, FEATURES, weights_for(settings))
    text = (tmp_path / MODEL_FILE).read_text("utf-8")
    assert '\n  "settings": {\n    "kind": "deepfm"' in text
    assert read_description(tmp_path).arrays["dense.layer0.weights"].shape == (3 * 4 + 5, 8)
    assert (tmp_path / "keys.user id.npy").exists()
