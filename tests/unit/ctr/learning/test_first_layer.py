"""Values multiplied once a batch learn what values multiplied row by row do."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.ctr.learning import first_layer
from headrace.ctr.learning.batched import BatchedModel
from headrace.ctr.learning.first_layer_kernels import DistinctValues
from headrace.ctr.model_settings import Optimizer
from headrace.stream.block import Features
from headrace.stream.schema import Field, Schema
from tests.unit.ctr.learning.batched_reference import FEATURES, random_block, settings_of

STEP = Optimizer(kind="sgd", learning_rate=1.0)
PLAIN = Features.of(
    Schema(
        fields=(
            Field(name="click", role="label"),
            Field(name="user", role="categorical", buckets=400),
            Field(name="ad", role="categorical", buckets=30, table="things"),
            Field(name="last_ad", role="categorical", buckets=30, table="things"),
            Field(name="hour", role="categorical", buckets=2),
        )
    )
)
SHAPES = (
    (FEATURES, {"factors": 4, "hidden": (10, 6)}),
    (FEATURES, {"factors": 20, "hidden": (130,)}),
    (PLAIN, {"factors": 16, "hidden": (256, 64), "interactions": ()}),
    (PLAIN, {"factors": 3, "hidden": (70,), "interactions": ()}),
)


@pytest.mark.parametrize("part", [0.2, 0.5, 1.0])
@pytest.mark.parametrize(("features", "changes"), SHAPES)
def test_learning_does_not_depend_on_which_fields_are_multiplied_once(
    features: Features, changes: dict[str, object], part: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of("deepfm", STEP, **changes)
    once, row_by_row = BatchedModel(settings, features), BatchedModel(settings, features)
    for seed, rows in enumerate((300, 1, 1100, 700)):
        block = random_block(rows, seed, features=features)
        monkeypatch.setattr(first_layer, "MOST_DISTINCT", -1.0)
        expected = row_by_row.learn(block)
        monkeypatch.setattr(first_layer, "MOST_DISTINCT", part)
        np.testing.assert_allclose(once.learn(block), expected, atol=2e-6)
        for name, array in row_by_row.state().items():
            np.testing.assert_allclose(once.state()[name], array, atol=3e-6, rtol=1e-5, err_msg=name)


def test_each_value_is_multiplied_once_where_values_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    plans, forward = [], first_layer.kernels.forward

    def noted(plan: DistinctValues, *given: object) -> None:
        plans.append(plan)
        forward(plan, *given)

    monkeypatch.setattr(first_layer.kernels, "forward", noted)
    model, block = (
        BatchedModel(settings_of("deepfm", STEP, interactions=()), PLAIN),
        random_block(2, 0, features=PLAIN),
    )
    block.indices[:] = [[1, 2, 3, 4], [5, 6, 7, 8]]
    model.learn(block)
    assert not plans
    block = random_block(256, features=PLAIN)
    model.learn(block)
    assert plans[0].fields.tolist() == [0, 1, 2]  # by name: ad, hour, last_ad; most users are different
    assert plans[0].counts.tolist() == [len(np.unique(block.indices[:, field])) for field in range(3)]


def test_several_threads_learn_what_one_does() -> None:
    one, three = (
        BatchedModel(settings_of("deepfm", STEP, hidden=(200, 30), threads=threads), FEATURES)
        for threads in (1, 3)
    )
    for seed in range(4):
        block = random_block(1500, seed)
        np.testing.assert_allclose(one.learn(block), three.learn(block), atol=0.05)


def test_the_same_rows_give_the_same_model_to_the_bit() -> None:
    settings = settings_of("deepfm", Optimizer(kind="adam"), hidden=(100, 20))
    one, other = BatchedModel(settings, FEATURES), BatchedModel(settings, FEATURES)
    other.learn(random_block(2000, 8))  # its memory holds something else
    other.restore({name: array.copy() for name, array in one.state().items()})
    for seed in range(3):
        block = random_block(900, seed)
        np.testing.assert_array_equal(one.learn(block), other.learn(block))
