"""Small click models made by hand: a schema with every kind of field, and random weights that fit."""

from __future__ import annotations

import numpy as np

from headrace.base.tensors import Array
from headrace.ctr.click_model import NO_SHIFT, ONE_SCALE, Weights
from headrace.ctr.files.model_files import weights_of
from headrace.ctr.model_settings import Interaction, Kind, ModelSettings
from headrace.ctr.models.model_arrays import expected_shapes
from headrace.stream.block import Features
from headrace.stream.schema import Field, Schema

SCHEMA = Schema(
    fields=(
        Field(name="clicked", role="label"),
        Field(name="user id", role="categorical", keys="exact", buckets=300, context=True),
        Field(name="ad", role="categorical", buckets=500),
        Field(name="tags", role="categorical", buckets=200, values=3),
        Field(name="hour", role="dense", context=True),
        Field(name="image", role="vector", size=4),
    )
)
FEATURES = Features.of(SCHEMA)


PAIR = Interaction(fields=("user id", "ad"), buckets=50)


def settings_for(
    kind: Kind, factors: int = 4, interactions: tuple[Interaction, ...] = (PAIR,)
) -> ModelSettings:
    """Settings of a small model."""
    return ModelSettings(kind=kind, factors=factors, hidden=(8, 4), interactions=interactions)


def weights_for(settings: ModelSettings, features: Features = FEATURES, seed: int = 0) -> Weights:
    """Random weights; row 0 of the tables is zero, as it always is."""
    random = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    for name, shape in expected_shapes(settings, features).items():
        arrays[name] = random.normal(0.0, 0.1, shape).astype(np.float32)
        if name.startswith("keys."):
            arrays[name] = random.integers(0, 2**63, shape, dtype=np.uint64)
        if name.startswith("table."):
            arrays[name][0] = 0.0
            arrays[f"{name}.scales"] = ONE_SCALE
    tables = [name.removeprefix("table.") for name in arrays if name.startswith("table.")]
    shifts = {name: NO_SHIFT for name in tables if not name.endswith(".scales")}
    return weights_of(arrays, shifts)
