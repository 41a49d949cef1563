"""How far weights move that forget: the more fields, the less each; what all rows touch, as far as ever."""

from __future__ import annotations

import pytest

from headrace.ctr.learning.learning_rate_scaling import PAIRS_STEP, share_of, shared, sharing
from headrace.ctr.learning.online import OnlineModel
from headrace.ctr.model_settings import Interaction, Kind, ModelSettings, Optimizer
from headrace.stream.features import Features
from headrace.stream.schema import Field, Schema
from tests.click_blocks import LABEL, block_of

FORGETTING = Optimizer(kind="forgetting", learning_rate=0.2)


def schema_of(fields: int, *more: Field) -> Schema:
    names = [f"field_{number}" for number in range(fields)]
    return Schema(
        fields=(LABEL, *(Field(name=name, role="categorical", buckets=20) for name in names), *more)
    )


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (schema_of(0, Field(name="price", role="dense")), 1.0),
        (schema_of(1), 1.0),
        (schema_of(6), 1.0),  # the rates are those for six
        (schema_of(12), 0.5),
        (schema_of(26), 6 / 26),
        (schema_of(6, Field(name="tags", role="categorical", buckets=20, values=6)), 6 / 7),
        (schema_of(6, Field(name="tags", role="categorical", buckets=20, values=6, pooling="sum")), 0.5),
        (schema_of(6, Field(name="price", role="dense"), Field(name="image", role="vector", size=8)), 1.0),
    ],
)
def test_what_each_value_moves(schema: Schema, expected: float) -> None:
    assert share_of(ModelSettings(kind="lr"), Features.of(schema)) == pytest.approx(expected)


def test_interactions_take_part() -> None:
    pairs = tuple(Interaction(fields=("field_0", f"field_{number}")) for number in range(1, 3))
    settings = ModelSettings(kind="lr", interactions=pairs)
    assert share_of(settings, Features.of(schema_of(6))) == pytest.approx(6 / 8)


def test_only_what_forgets_shares() -> None:
    adagrad = Optimizer(kind="adagrad", learning_rate=0.2)
    assert sharing(adagrad, 0.5) is adagrad
    assert sharing(FORGETTING, 0.5) == Optimizer(kind="forgetting", learning_rate=0.1)


def test_a_wide_row_moves_its_prediction_no_further_than_a_narrow_one() -> None:
    """Which it did: an fm of 26 fields was worse with forgetting than with Adagrad."""
    moved = []
    for fields in (6, 24):
        features = Features.of(schema_of(fields))
        settings = ModelSettings(kind="lr", linear=FORGETTING, embeddings=FORGETTING)
        model = OnlineModel(settings, features)
        block = block_of(features.schema, 1)
        before = model.predict(block)[0]
        model.learn(block)
        moved.append(abs(float(model.predict(block)[0] - before)))
    assert moved[1] == pytest.approx(moved[0], rel=0.05)


@pytest.mark.parametrize(("kind", "expected"), [("fm", 0.05), ("fwfm", 0.05), ("ffm", 0.2)])
def test_embeddings_for_one_other_field_share_nothing(kind: Kind, expected: float) -> None:
    """With them shared, an ffm of twelve fields was worse than Adagrad's."""
    features = Features.of(schema_of(24))
    settings = ModelSettings(kind=kind, factors=4, linear=FORGETTING, embeddings=FORGETTING)
    rules = OnlineModel(settings, features)._rules(1.0)
    assert rules.embeddings.learning_rate == pytest.approx(expected)


def test_pairs_move_further_and_the_bias_as_far_as_it_says() -> None:
    features = Features.of(schema_of(24))
    settings = ModelSettings(kind="fwfm", factors=4, linear=FORGETTING, embeddings=FORGETTING)
    rules = OnlineModel(settings, features)._rules(1.0)
    assert rules.bias.learning_rate == pytest.approx(0.2)
    assert rules.linear.learning_rate == rules.embeddings.learning_rate == pytest.approx(0.05)
    assert rules.pairs.learning_rate == pytest.approx(0.2 * PAIRS_STEP)


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("deepfm", "bias", 0.2),
        ("deepfm", "linear", 0.1),  # by the root of how many there are
        ("deepfm", "dense", 0.1),
        ("deepfm", "embeddings", 0.05),
        ("deepffm", "embeddings", 0.2),  # each is for one other field
        ("fwfm", "pairs", 0.2 * PAIRS_STEP),
        ("fwfm", "linear", 0.05),  # row by row
        ("deepfm", "layer0.weights", 0.2),
    ],
)
def test_what_each_group_shares(kind: Kind, name: str, expected: float) -> None:
    features = Features.of(schema_of(24))
    found = shared(FORGETTING, name, ModelSettings(kind=kind), features)
    assert found.learning_rate == pytest.approx(expected)
