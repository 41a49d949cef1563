"""What every click model promises, whatever its kind, optimizer and rows: one suite for all of them."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from headrace.base.tensors import Array
from headrace.ctr.click_model import LearningModel
from headrace.ctr.factory import create, scorer
from headrace.ctr.files.quantization import quantize
from headrace.ctr.model_settings import KINDS, Interaction, Kind, ModelSettings, Optimizer, OptimizerKind
from headrace.stream.block import Block, Features
from headrace.stream.schema import Schema
from tests.click_blocks import MANY, SINGLE, block_of

SCHEMAS = {"single": SINGLE, "many": MANY}
RATES: dict[OptimizerKind, float] = {
    **{"sgd": 0.1, "adagrad": 0.1, "forgetting": 0.1},
    **{"ftrl": 0.2, "adam": 0.01, "lazy_adam": 0.01},
}
OPTIMIZERS: tuple[OptimizerKind, ...] = ("adagrad", "lazy_adam")
FORGETTING: tuple[tuple[Kind, str, OptimizerKind], ...] = (
    ("deepfm", "many", "forgetting"),
    ("deepffm", "single", "forgetting"),
)
CASES = (*product(KINDS, SCHEMAS, OPTIMIZERS), *FORGETTING)
PLAIN_CASES = tuple(product(KINDS, SCHEMAS))
PAIR = Interaction(fields=("ad", "site"), buckets=50)


def settings_of(kind: Kind, optimizer: OptimizerKind = "adagrad", **changed: object) -> ModelSettings:
    chosen = Optimizer(kind=optimizer, learning_rate=RATES[optimizer])
    settings = ModelSettings(
        kind=kind,
        factors=4,
        hidden=(8, 4),
        interactions=(PAIR,),
        linear=chosen,
        embeddings=chosen,
        network=chosen,
        initial_scale=0.1,
    )
    return ModelSettings(**{name: getattr(settings, name) for name in settings.__struct_fields__} | changed)


def made(kind: Kind, schema: str, optimizer: OptimizerKind = "adagrad", **changed: object) -> LearningModel:
    return create(settings_of(kind, optimizer, **changed), Features.of(SCHEMAS[schema]))


def learn(model: LearningModel, block: Block, rows: int = 50) -> Array:
    parts = [block.part(start, start + rows) for start in range(0, len(block), rows)]
    return np.concatenate([model.learn(part) for part in parts])


def logloss(probabilities: Array, labels: Array) -> float:
    clipped = np.clip(probabilities.astype(np.float64), 1e-7, 1 - 1e-7)
    return float(-np.mean(np.where(labels > 0, np.log(clipped), np.log1p(-clipped))))


def copied(state: dict[str, Array]) -> dict[str, Array]:
    return {name: array.copy() for name, array in state.items()}


def assert_equal_states(one: LearningModel, other: LearningModel) -> None:
    first, second = one.state(), other.state()
    assert first.keys() == second.keys()
    for name in first:
        assert np.array_equal(first[name], second[name]), name


@pytest.mark.parametrize(("kind", "schema", "optimizer"), CASES)
def test_the_same_seed_gives_the_same_bits(kind: Kind, schema: str, optimizer: OptimizerKind) -> None:
    """Two models of one seed agree in every bit, and another seed's does not."""
    block = block_of(SCHEMAS[schema], 300)
    one, two = made(kind, schema, optimizer), made(kind, schema, optimizer)
    assert np.array_equal(learn(one, block), learn(two, block))
    assert_equal_states(one, two)
    if kind != "lr":
        other = made(kind, schema, optimizer, seed=1)
        assert not np.array_equal(
            other.strip().tables["embeddings"].values, one.strip().tables["embeddings"].values
        )


@pytest.mark.parametrize(("kind", "schema", "optimizer"), CASES)
def test_the_order_of_fields_means_nothing(kind: Kind, schema: str, optimizer: OptimizerKind) -> None:
    """A schema whose fields are turned round makes the same model of the same rows."""
    turned = Schema(fields=SCHEMAS[schema].fields[::-1])
    one = made(kind, schema, optimizer)
    two = create(settings_of(kind, optimizer), Features.of(turned))
    block, again = block_of(SCHEMAS[schema], 200), block_of(turned, 200)
    assert np.array_equal(block.indices, again.indices)
    assert np.array_equal(learn(one, block), learn(two, again))
    assert_equal_states(one, two)


@pytest.mark.parametrize(("kind", "schema", "optimizer"), CASES)
def test_learns(kind: Kind, schema: str, optimizer: OptimizerKind) -> None:
    """After some thousand rows, the logloss of fresh rows is well below the base rate's."""
    model = made(kind, schema, optimizer)
    for seed in range(1, 7):
        learn(model, block_of(SCHEMAS[schema], 1000, seed))
    fresh = block_of(SCHEMAS[schema], 1000, 99)
    base = logloss(np.full(len(fresh), fresh.labels.mean()), fresh.labels)
    assert logloss(model.predict(fresh), fresh.labels) < 0.95 * base


@pytest.mark.parametrize(("kind", "schema", "optimizer"), CASES)
def test_what_is_returned_was_predicted_before(kind: Kind, schema: str, optimizer: OptimizerKind) -> None:
    """The first row's prediction is that of the model before it has seen the row's label."""
    model, block = made(kind, schema, optimizer), block_of(SCHEMAS[schema], 200)
    learn(model, block)
    before = model.predict(block.part(7, 8))
    other = replace(block.part(7, 8), labels=1 - block.labels[7:8])
    np.testing.assert_allclose(model.learn(other), before, rtol=1e-5)


@pytest.mark.parametrize(("kind", "schema", "optimizer"), CASES)
def test_goes_on_from_a_state_bit_by_bit(kind: Kind, schema: str, optimizer: OptimizerKind) -> None:
    """A model that is restored goes on as the one that was never stopped."""
    first, second = block_of(SCHEMAS[schema], 200, 1), block_of(SCHEMAS[schema], 200, 2)
    whole, stopped = made(kind, schema, optimizer), made(kind, schema, optimizer)
    learn(whole, first)
    learn(stopped, first)
    resumed = made(kind, schema, optimizer, seed=5)
    resumed.restore(copied(stopped.state()))
    assert np.array_equal(resumed.predict(second), whole.predict(second))
    assert np.array_equal(learn(resumed, second), learn(whole, second))
    assert_equal_states(resumed, whole)


@pytest.mark.parametrize(("kind", "schema", "optimizer"), CASES)
def test_stripping_changes_no_prediction(kind: Kind, schema: str, optimizer: OptimizerKind) -> None:
    """The stripped model predicts the same bits, in any batch, and is no longer touched by learning."""
    model, block = made(kind, schema, optimizer), block_of(SCHEMAS[schema], 200)
    learn(model, block)
    weights = model.strip()
    stripped = scorer(model.settings, model.features, weights)
    expected = model.predict(block)
    assert np.array_equal(stripped.predict(block.indices, block.dense), expected)
    for start, stop in ((0, 1), (3, 40), (199, 200)):
        part = block.part(start, stop)
        assert np.array_equal(stripped.predict(part.indices, part.dense), expected[start:stop])
        assert np.array_equal(model.predict(part), expected[start:stop])
    learn(model, block)
    assert np.array_equal(stripped.predict(block.indices, block.dense), expected)
    assert not np.array_equal(model.predict(block), expected)
    widths = {name: table.values.shape[1] for name, table in weights.tables.items()}
    assert widths["linear"] == 1


@pytest.mark.parametrize(("kind", "schema", "optimizer"), CASES)
def test_explanations_add_up(kind: Kind, schema: str, optimizer: OptimizerKind) -> None:
    """The contributions of a row add up to its logit; every field that has a value is among them."""
    model, block = made(kind, schema, optimizer), block_of(SCHEMAS[schema], 300)
    learn(model, block)
    one = scorer(model.settings, model.features, model.strip())
    few = block.part(0, 20)
    logits = one.logits(few.indices, few.dense)
    tolerance = 1e-4 if model.settings.hidden and kind.startswith("deep") else 1e-5
    for row, contributions in enumerate(one.explain(few.indices, few.dense)):
        total = math.fsum(each.contribution for each in contributions)
        assert total == pytest.approx(logits[row], abs=tolerance)
        named = {each.field for each in contributions}
        assert {"(bias)", "ad", "site"} <= named
        assert ("ad * site" in named) == (kind != "lr" or bool(model.settings.interactions))


@pytest.mark.parametrize(("kind", "schema"), PLAIN_CASES)
def test_fewer_bits_predict_nearly_the_same(kind: Kind, schema: str) -> None:
    """Tables of 16 and 8 bits go through the same scorer; explanations add up there, too."""
    model, block = made(kind, schema), block_of(SCHEMAS[schema], 300)
    learn(model, block)
    expected = model.predict(block)
    for bits, tolerance in ((16, 1e-4), (8, 2e-2)):
        one = scorer(model.settings, model.features, quantize(model.strip(), bits))
        np.testing.assert_allclose(one.predict(block.indices, block.dense), expected, atol=tolerance)
        logit = one.logits(block.indices[:1], block.dense[:1])[0]
        (contributions,) = one.explain(block.indices[:1], block.dense[:1])
        assert math.fsum(each.contribution for each in contributions) == pytest.approx(logit, abs=1e-4)


@pytest.mark.parametrize(("kind", "schema", "optimizer"), CASES)
def test_new_categories_are_predicted_and_old_ones_stay(
    kind: Kind, schema: str, optimizer: OptimizerKind
) -> None:
    """Values that never came are predicted; those that no longer come keep their weights and moments."""
    features = Features.of(SCHEMAS[schema])
    model, block = made(kind, schema, optimizer), block_of(SCHEMAS[schema], 300)
    first, buckets = features.tables["ad"]
    (slot,) = (slot for field, slot in features.field_slots() if field.name == "ad")
    early = block.indices.copy()
    early[:, slot] = first + early[:, slot] % 10
    learn(model, replace(block, indices=early))
    before = copied(model.state())
    late = block.indices.copy()
    late[:, slot] = first + 10 + late[:, slot] % (buckets - 20)
    learn(model, replace(block, indices=late))
    vanished, new = np.arange(first, first + 10), early.copy()
    for name in ("linear", "embeddings"):
        if name in before:
            assert np.array_equal(model.state()[name][vanished], before[name][vanished]), name
    new[:, slot] = first + buckets - 1
    assert np.isfinite(model.predict(replace(block, indices=new))).all()
    never = np.arange(first + buckets - 5, first + buckets)
    assert np.array_equal(model.state()["linear"][never], before["linear"][never])


@pytest.mark.parametrize(("kind", "schema", "optimizer"), CASES)
def test_no_value_adds_nothing_and_is_never_learnt(kind: Kind, schema: str, optimizer: OptimizerKind) -> None:
    """Rows without any value leave row 0 zero; a row of nothing at all is predicted."""
    model, block = made(kind, schema, optimizer), block_of(SCHEMAS[schema], 100)
    empty = replace(block, indices=np.zeros_like(block.indices))
    learn(model, empty)
    learn(model, block)
    weights = model.strip()
    for table in weights.tables.values():
        assert not table.values[0].any()
    assert np.isfinite(model.predict(empty)).all()
    one = scorer(model.settings, model.features, weights)
    (contributions,) = one.explain(empty.indices[:1], empty.dense[:1])
    logit = one.logits(empty.indices[:1], empty.dense[:1])[0]
    assert math.fsum(each.contribution for each in contributions) == pytest.approx(logit, abs=1e-4)


@pytest.mark.parametrize(("kind", "schema", "optimizer"), CASES)
def test_blocks_of_no_row_and_of_one(kind: Kind, schema: str, optimizer: OptimizerKind) -> None:
    """An empty block changes nothing; a block of one row is learnt from."""
    model, block = made(kind, schema, optimizer), block_of(SCHEMAS[schema], 10)
    before = copied(model.state())
    assert model.learn(block.part(0, 0)).shape == (0,)
    assert model.predict(block.part(0, 0)).shape == (0,)
    for name, array in model.state().items():
        assert np.array_equal(array, before[name]), name
    assert model.learn(block.part(0, 1)).shape == (1,)
    assert not np.array_equal(model.state()["bias"], before["bias"])


@pytest.mark.parametrize(("kind", "schema"), PLAIN_CASES)
def test_a_weight_is_a_factor_of_the_gradient(kind: Kind, schema: str) -> None:
    """With SGD, rows that count twice are rows at twice the rate."""
    twice = Optimizer(kind="sgd", learning_rate=2 * RATES["sgd"])
    one = made(kind, schema, "sgd")
    two = made(kind, schema, "sgd", linear=twice, embeddings=twice, network=twice)
    block = block_of(SCHEMAS[schema], 100)
    heavy = replace(block, weights=np.full(len(block), 2, np.float32))
    np.testing.assert_allclose(learn(one, heavy), learn(two, block), rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_other_optimizers_learn_too(kind: Kind, optimizer: OptimizerKind) -> None:
    """Dense Adam and SGD bring the loss of rows seen again and again down."""
    model, block = made(kind, "many", optimizer), block_of(MANY, 500)
    losses = [logloss(learn(model, block), block.labels) for _ in range(6)]
    assert losses[-1] < 0.97 * losses[0]


@pytest.mark.parametrize(("kind", "schema", "optimizer"), CASES)
def test_forgotten_rows_are_fresh(kind: Kind, schema: str, optimizer: OptimizerKind) -> None:
    """Rows that are forgotten are those of a fresh model; the others stay."""
    model, fresh = made(kind, schema, optimizer), made(kind, schema, optimizer)
    learn(model, block_of(SCHEMAS[schema], 200))
    before, rows = copied(model.state()), np.array([2, 45, 90])
    model.forget(rows)
    others = np.setdiff1d(np.arange(model.features.rows), rows)
    for name in ("linear", "embeddings"):
        if name in before:
            assert np.array_equal(model.state()[name][rows], fresh.state()[name][rows]), name
            assert np.array_equal(model.state()[name][others], before[name][others]), name
