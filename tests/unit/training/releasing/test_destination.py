"""A run publishes only where its model's own versions lie: never over another model, nor among models."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headrace.base.errors import ConfigError
from headrace.stream.features import Features
from headrace.stream.schema import Field, Schema
from headrace.training.releasing.destination import SCHEMA_KEY, check_destination
from headrace.training.releasing.publishing import Publisher, Training
from headrace.versions.manifest import publish
from tests.click_weights import SCHEMA, settings_for, weights_for
from tests.model_directories import affine, write


def changed(name: str, **settings: object) -> Schema:
    fields = [msgspec.structs.replace(one, **settings) if one.name == name else one for one in SCHEMA.fields]
    return Schema(fields=tuple(fields))


def learnt(directory: Path, schema: Schema = SCHEMA) -> Path:
    settings = settings_for("lr", interactions=())
    features = Features.of(schema)
    weights = weights_for(settings, features)
    return Publisher(directory).publish(settings, features, weights, Training(rows=1)).path


def saved_model(directory: Path, metadata: dict[str, object]) -> None:
    publish(lambda draft: (draft / "saved_model.pb").write_bytes(b"a graph"), directory, metadata=metadata)


def check(directory: Path, schema: Schema = SCHEMA, *, keras: bool = False, replaced: bool = False) -> None:
    check_destination(directory, schema, is_keras=keras, is_replaced=replaced)


def test_what_is_new_or_its_own_is_published_into(tmp_path: Path) -> None:
    check(tmp_path / "new")
    (tmp_path / "empty").mkdir()
    check(tmp_path / "empty")
    learnt(tmp_path / "ctr")
    check(tmp_path / "ctr")
    turned = Schema(fields=(Field(name="shown", role="ignored"), *SCHEMA.fields[::-1]))
    check(tmp_path / "ctr", turned)
    check(tmp_path / "ctr", changed("ad", buckets=2**12, keys="exact", admit=3))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (Schema(fields=SCHEMA.fields[:-1]), "it has image"),
        (Schema(fields=(*SCHEMA.fields, Field(name="site", role="categorical"))), "does not have site"),
        (changed("ad", text=True), "it takes other values for ad"),
        (changed("ad", keys="bucket"), "it takes other values for ad"),
        (changed("tags", values=9), "it takes other values for tags"),
        (changed("image", size=8), "it takes other values for image"),
        (changed("hour", context=False), "it takes other values for hour"),
    ],
)
def test_other_inputs_are_another_model(tmp_path: Path, schema: Schema, message: str) -> None:
    learnt(tmp_path)
    with pytest.raises(ConfigError, match=rf"version 1 in .* another model: .*{message}.*--replace"):
        check(tmp_path, schema)
    check(tmp_path, schema, replaced=True)


@pytest.mark.parametrize("keras", [False, True])
def test_another_runtime_is_another_model(tmp_path: Path, keras: bool) -> None:
    write(tmp_path, "half", 1, affine(1.0, 0.0))
    kind = "Keras" if keras else "click"
    with pytest.raises(ConfigError, match=rf"another model: it is not a {kind} model, but holds model\.onnx"):
        check(tmp_path / "half", keras=keras)
    check(tmp_path / "half", keras=keras, replaced=True)


def test_the_newest_version_decides(tmp_path: Path) -> None:
    write(tmp_path, "ctr", 1, affine(1.0, 0.0))
    learnt(tmp_path / "ctr")
    check(tmp_path / "ctr")


def test_of_a_damaged_version_the_one_before_it_tells(tmp_path: Path) -> None:
    learnt(tmp_path)
    (learnt(tmp_path, changed("ad", text=True)) / "model.ctr").write_bytes(b"{")
    (tmp_path / "3").mkdir()
    check(tmp_path)
    with pytest.raises(ConfigError, match="version 1 in"):
        check(tmp_path, changed("ad", text=True))


def test_a_keras_model_s_manifest_tells_its_inputs(tmp_path: Path) -> None:
    saved_model(tmp_path / "own", {SCHEMA_KEY: msgspec.to_builtins(SCHEMA)})
    check(tmp_path / "own", keras=True)
    with pytest.raises(ConfigError, match="it takes other values for ad"):
        check(tmp_path / "own", changed("ad", text=True), keras=True)
    for metadata in ({}, {SCHEMA_KEY: "none"}):
        saved_model(tmp_path / "foreign", metadata)
        with pytest.raises(ConfigError, match="it does not contain the schema of its rows"):
            check(tmp_path / "foreign", keras=True)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_directory_of_models_is_none_of_versions(tmp_path: Path, replaced: bool) -> None:
    learnt(tmp_path / "ctr")
    (tmp_path / "notes").mkdir()
    (tmp_path / "README.md").touch()
    with pytest.raises(ConfigError, match=r"holds the directories of models \(ctr\).*--publish .*/NAME"):
        check(tmp_path, replaced=replaced)
    check(tmp_path / "notes")
