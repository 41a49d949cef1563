"""Contributions of fields to many rows at once, beside those of ``Scorer.explain`` to each row."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from headrace.base.tensors import Array
from headrace.ctr.factory import scorer
from headrace.ctr.model_settings import KINDS, Kind
from headrace.ctr.models.missing import flag_name
from headrace.ctr.serving.context import GroupedScorer
from headrace.ctr.serving.explanations import FieldEffects
from headrace.stream.block import Features
from headrace.stream.schema import Field, Schema
from tests.click_weights import SCHEMA, settings_for, weights_for

FEATURES = Features.of(
    Schema(
        fields=(*SCHEMA.fields, Field(name="kinds", role="categorical", buckets=90, values=2, pooling="mean"))
    )
)
NAMES = [field.name for field in (*FEATURES.categorical, *FEATURES.numeric)]


def made(kind: Kind) -> tuple[Any, FieldEffects]:
    settings = settings_for(kind)
    weights = weights_for(settings, FEATURES)
    heads = GroupedScorer(settings, FEATURES, weights).heads
    return scorer(settings, FEATURES, weights), FieldEffects(settings, FEATURES, weights, heads)


def rows_of(count: int) -> tuple[Array, Array]:
    """Random rows; some values and vectors are missing."""
    random = np.random.default_rng(3)
    columns = []
    for field in FEATURES.categorical:
        first, buckets = FEATURES.tables[field.table_name]
        columns += [first + random.integers(0, buckets, count) for _ in range(field.values)]
    indices = np.stack(columns, axis=1).astype(np.uint32)
    indices[random.random(indices.shape) < 0.2] = 0
    dense = random.normal(size=(count, FEATURES.dense_width)).astype(np.float32)
    dense[::5] = 0
    return indices, dense


def summed(contributions: Any) -> list[float]:
    sums = dict.fromkeys([*NAMES, "(bias)"], 0.0)
    of_flags = {flag_name(name): name for name in NAMES}
    for one in contributions:
        fields = one.field.split(" * ") if " * " in one.field else [of_flags.get(one.field, one.field)]
        for field in fields:
            sums[field] += one.contribution / len(fields)
    return list(sums.values())


@pytest.mark.parametrize("kind", KINDS)
def test_contributions_of_many_rows_are_those_of_each_row(kind: Kind) -> None:
    one, effects = made(kind)
    rows = rows_of(150)  # more than are computed together
    expected = [summed(contributions) for contributions in one.explain(*rows)]
    found = effects.of(*rows)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.sum(axis=1), one.logits(*rows), atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_rows_take_as_many_calls_as_one(kind: Kind) -> None:
    _, effects = made(kind)
    calls: list[str] = []

    def counted(rows: tuple[Array, Array]) -> int:
        calls.clear()
        sys.setprofile(lambda frame, event, _: calls.append(event) if "call" in event else None)
        try:
            effects.of(*rows)
        finally:
            sys.setprofile(None)
        return len(calls)

    counted(rows_of(2))  # compiles
    assert counted(rows_of(100)) == counted(rows_of(2))


@pytest.mark.parametrize("kind", ["fm", "deepfm"])
def test_dense_features_alone_are_enough(kind: Kind) -> None:
    schema = Schema(fields=(Field(name="y", role="label"), Field(name="price", role="dense")))
    features, settings = Features.of(schema), settings_for(kind, interactions=())
    weights = weights_for(settings, features)
    effects = FieldEffects(settings, features, weights, GroupedScorer(settings, features, weights).heads)
    rows = np.zeros((3, 0), np.uint32), np.linspace(-1, 1, 3, dtype=np.float32).reshape(-1, 1)
    found = effects.of(*rows)
    assert found.shape == (3, 2)
    np.testing.assert_allclose(
        found.sum(axis=1), scorer(settings, features, weights).logits(*rows), atol=1e-5
    )
