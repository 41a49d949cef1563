"""Profiles of click models and of Keras models that learn: every stage is there, and adds up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace.ctr.click_model import NO_SHIFT, ONE_SCALE
from headrace.ctr.files.model_files import weights_of
from headrace.ctr.model_settings import Interaction, Kind, ModelSettings
from headrace.ctr.models.model_arrays import expected_shapes
from headrace.profiling.ctr import profile_serving, profile_training, stages_of
from headrace.profiling.report import Profile
from headrace.runtimes.options import RuntimeOptions
from headrace.stream.block import Features
from headrace.stream.schema import Field, Schema
from headrace.training.releasing.publishing import Publisher, Training

SCHEMA = Schema(
    fields=(
        Field(name="label", role="label"),
        Field(name="user", role="categorical", buckets=500, context=True, text=True),
        Field(name="page", role="categorical", buckets=40, keys="bucket", context=True),
        Field(name="words", role="categorical", buckets=100, values=3),
        Field(name="age", role="dense", context=True),
        Field(name="price", role="dense"),
    )
)


def published(kind: Kind, directory: Path) -> Path:
    interactions = (Interaction(fields=("user", "page"), buckets=100),)
    settings = ModelSettings(kind=kind, factors=4, hidden=(8, 4), interactions=interactions)
    features = Features.of(SCHEMA)
    random = np.random.default_rng(0)
    shapes = expected_shapes(settings, features)
    arrays = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    tables = {name.removeprefix("table."): NO_SHIFT for name in arrays if name.startswith("table.")}
    weights = weights_of(arrays | {f"table.{name}.scales": ONE_SCALE for name in tables}, tables)
    return Publisher(directory).publish(settings, features, weights, Training(rows=0)).path / "model.ctr"


def check(profile: Profile, calls: int) -> None:
    lines = profile.lines()
    assert {line.calls for line in lines} == {calls}
    assert sum(line.share for line in lines) == pytest.approx(1)
    assert sum(line.mean_microseconds for line in lines) >= profile.call_microseconds * 0.99


@pytest.mark.parametrize(
    ("kind", "stages"),
    [
        ("lr", ["lr"]),
        ("fwfm", ["lr", "fwfm"]),
        ("deepfm", ["lr", "fm", "deepfm 8", "deepfm 8 4"]),
        ("deepffm", ["lr", "ffm", "deepffm 8", "deepffm 8 4"]),
    ],
)
def test_the_stages_grow_from_the_linear_part_to_the_whole_model(kind: Kind, stages: list[str]) -> None:
    found = [settings for _, _, settings in stages_of(ModelSettings(kind=kind, hidden=(8, 4)))]
    said = [" ".join([one.kind, *map(str, one.hidden if "deep" in one.kind else ())]) for one in found]
    assert said == stages


@pytest.mark.parametrize("kind", ["lr", "fwfm", "deepfm"])
def test_serving_a_click_model_is_measured_stage_by_stage(kind: Kind, tmp_path: Path) -> None:
    profile = profile_serving(published(kind, tmp_path), RuntimeOptions(), rows=30, calls=3)
    check(profile, 3)
    names = [event.name for event in profile.events[: len(profile.lines())]]
    layers = ["layer 0", "layer 1"] if kind == "deepfm" else []
    pairs = [] if kind == "lr" else ["embeddings and pairs"]
    assert names == ["linear", *pairs, *layers, "request to rows"]


@pytest.mark.parametrize("kind", ["lr", "deepfm"])
def test_learning_is_measured_stage_by_stage(kind: Kind, tmp_path: Path) -> None:
    profile = profile_training(published(kind, tmp_path), rows=64, calls=3)
    check(profile, 3)
    names = {line.operation for line in profile.lines()}
    more = set() if kind == "lr" else {"embeddings and pairs", "layer 0", "layer 1"}
    assert names == {"linear"} | more


def test_keras_models_that_learn_are_measured_by_operation(tmp_path: Path) -> None:
    from headrace.profiling.keras import profile_training as of_keras

    (tmp_path / "clicks.py").write_text(
        "import keras\nfrom headrace.training.keras import Embedded, inputs_of\n\n\ndef build(schema):\n"
        "    inputs = inputs_of(schema)\n"
        "    layer = Embedded(schema.by_name['user'], 4)(inputs['user'])\n"
        "    return keras.Model(inputs, keras.layers.Dense(1, activation='sigmoid')(layer))\n"
    )
    (tmp_path / "schema.json").write_bytes(SCHEMA.encode())
    profile = of_keras(str(tmp_path / "clicks.py"), tmp_path / "schema.json", 64, 3)
    kinds = {line.kind for line in profile.lines()}
    assert {"ReadVariableOp", "ResourceScatterSub"} <= kinds
    assert any("MatMul" in kind for kind in kinds)
    assert any("lazy_adam" in line.operation for line in profile.lines())
