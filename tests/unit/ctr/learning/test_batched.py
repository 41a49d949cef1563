"""Models that learn in batches, against plain NumPy in float64."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.ctr.click_model import Weights
from headrace.ctr.factory import create
from headrace.ctr.learning.batched import BatchedModel
from headrace.ctr.model_settings import KINDS, OPTIMIZERS, Kind, Optimizer, OptimizerKind
from headrace.ctr.serving.scoring import WeightsScorer
from tests.unit.ctr.learning.batched_reference import (
    FEATURES,
    as_float64,
    counted,
    loss,
    random_block,
    reference_logits,
    settings_of,
)

PLAIN_STEP = Optimizer(kind="sgd", learning_rate=1.0)


def arrays_of(weights: Weights) -> dict[str, Array]:
    """All arrays of weights, by name."""
    return {name: table.values for name, table in weights.tables.items()} | dict(weights.dense)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_of_one_is_the_gradient_by_finite_differences(kind: Kind) -> None:
    settings = settings_of(kind, PLAIN_STEP)
    model, block = BatchedModel(settings, FEATURES), random_block(600)
    block = counted(block) if kind == "mdn" else block
    model.learn(random_block(200, 7))  # so that biases are not zero, where ReLU has its corner
    before = model.strip()
    model.learn(block)
    after, exact = arrays_of(model.strip()), as_float64(before)
    random = np.random.default_rng(1)
    for name, array in arrays_of(exact).items():
        moved = arrays_of(before)[name].astype(np.float64) - after[name]
        places = [np.unravel_index(place, array.shape) for place in _some(random, name, array, moved)]
        assert places
        for place in places:
            kept, pair = array[place], []
            for change in (1e-7, -1e-7):
                array[place] = kept + change
                pair.append(loss(settings, FEATURES, exact, block))
            array[place] = kept
            expected = (pair[0] - pair[1]) / 2e-7
            assert moved[place] == pytest.approx(expected, abs=1e-6, rel=2e-3), (name, place)


def _some(random: np.random.Generator, name: str, array: Array, moved: Array) -> Array:
    """Some weights that moved, and some that may not have."""
    wanted = np.flatnonzero(np.triu(np.ones(array.shape), 1)) if name == "pairs" else np.arange(array.size)
    if name in ("linear", "embeddings"):
        wanted = wanted[array.shape[1] :]  # row 0 is no weight
    touched = np.intersect1d(np.flatnonzero(moved), wanted)
    return np.concatenate([random.choice(wanted, 6), random.choice(touched, 12)])


@pytest.mark.parametrize("kind", KINDS)
def test_learning_and_serving_predict_as_the_reference(kind: Kind) -> None:
    settings = settings_of(kind, Optimizer(kind="lazy_adam", learning_rate=0.01))
    model = BatchedModel(settings, FEATURES)
    for seed in range(3):
        model.learn(random_block(700, seed))
    block = random_block(1100, 9)
    block = counted(block) if kind == "mdn" else block
    logits = reference_logits(settings, FEATURES, as_float64(model.strip()), block)
    expected = 1 / (1 + np.exp(-logits))
    served = WeightsScorer(settings, FEATURES, model.strip()).predict(block.indices, block.dense)
    np.testing.assert_array_equal(model.predict(block), served)
    np.testing.assert_allclose(served, expected, atol=2e-6)
    np.testing.assert_allclose(model.learn(block), expected, atol=2e-6)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_learns_with_every_optimizer(kind: Kind, optimizer: OptimizerKind) -> None:
    chosen = Optimizer(kind=optimizer, learning_rate=0.5 if optimizer == "sgd" else 0.02)
    rest = chosen if optimizer != "ftrl" else Optimizer(kind="lazy_adam", learning_rate=0.02)
    settings = settings_of(kind, chosen, embeddings=rest, network=rest, initial_scale=0.1)
    model, block = BatchedModel(settings, FEATURES), random_block(512, weighted=False)
    model.learn(block)  # how many clicks there are, the bias knows at once
    first = _logloss(model.learn(block), block.labels)
    for _ in range(30):
        last = _logloss(model.learn(block), block.labels)
    assert last < first - 0.02


def _logloss(probabilities: Array, labels: Array) -> float:
    return float(-np.log(np.where(labels > 0, probabilities, 1 - probabilities)).mean())


@pytest.mark.parametrize("kind", ["lr", "deepfm"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_bias_begins_with_the_clicks_of_the_first_batch(kind: Kind, weighted: bool) -> None:
    """Where one row in a hundred is clicked, a hundred batches were predicted as if it were every third."""
    settings = settings_of(kind, Optimizer(kind="adam", learning_rate=1e-6), initial_scale=0.001)
    model = BatchedModel(settings, FEATURES)
    rare = np.zeros(1000, np.float32)
    rare[::100] = 1.0
    first, second = (replace(random_block(1000, seed, weighted=weighted), labels=rare) for seed in (1, 2))
    weights = np.ones(1000) if first.weights is None else first.weights
    share = (1000 * (weights @ rare) / weights.sum() + 1) / 1002
    fresh = model.predict(first)
    np.testing.assert_allclose(model.learn(first), fresh, atol=1e-6)  # before anything is learnt
    found = model.learn(second)
    odds, expected = found / (1 - found), fresh / (1 - fresh) * share / (1 - share)
    assert np.median(odds) == pytest.approx(np.median(expected), rel=0.05)
    bias = float(model.strip().dense["bias"][0])
    assert bias == pytest.approx(np.log(share / (1 - share)), abs=1e-4)  # once: not again by the second


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_no_optimizer_loses_where_the_bias_began(optimizer: OptimizerKind) -> None:
    """FTRL makes each weight anew at every step: of -4.6 it left -1.3."""
    linear, rest = Optimizer(kind=optimizer, learning_rate=0.05), Optimizer(kind="adagrad")
    settings = settings_of("deepfm", linear, embeddings=rest, network=rest, initial_scale=0.001)
    model = BatchedModel(settings, FEATURES)
    rare = np.zeros(1000, np.float32)
    rare[::100] = 1.0
    for seed in range(3):
        model.learn(replace(random_block(1000, seed, weighted=False), labels=rare))
    assert float(model.strip().dense["bias"][0]) == pytest.approx(np.log(11 / 991), abs=0.15)


@pytest.mark.parametrize("optimizer", ["adam", "forgetting"])
@pytest.mark.parametrize("kind", ["lr", "deepfm", "deepffm"])
def test_a_model_goes_on_from_its_state_to_the_bit(kind: Kind, optimizer: OptimizerKind) -> None:
    settings = settings_of(kind, Optimizer(kind=optimizer, learning_rate=0.01))
    one, other = BatchedModel(settings, FEATURES), BatchedModel(settings, FEATURES)
    for seed in range(3):
        one.learn(random_block(300, seed))
    other.restore({name: array.copy() for name, array in one.state().items()})
    following = random_block(300, 5)
    np.testing.assert_array_equal(one.learn(following), other.learn(following))
    for name, array in one.state().items():
        np.testing.assert_array_equal(array, other.state()[name])


def test_the_same_seed_and_rows_give_the_same_model_to_the_bit() -> None:
    settings = settings_of("deepfm", Optimizer(kind="lazy_adam"))
    one, other = (BatchedModel(settings, FEATURES) for _ in range(2))
    for seed in range(3):
        np.testing.assert_array_equal(
            one.learn(random_block(900, seed)), other.learn(random_block(900, seed))
        )


def test_a_state_of_another_model_is_refused() -> None:
    model = BatchedModel(settings_of("deepfm", Optimizer(kind="adam")), FEATURES)
    online = create(settings_of("fm", Optimizer()), FEATURES)
    with pytest.raises(ConfigError, match="steps"):
        model.restore(online.state())
    with pytest.raises(ConfigError, match="layer0"):
        model.restore(model.state() | {"layer0.bias": np.zeros((1, 2), np.float32)})


@pytest.mark.parametrize("kind", ["fm", "deepfm"])
def test_several_threads_learn_as_well_as_one(kind: Kind) -> None:
    settings = settings_of(kind, Optimizer(kind="lazy_adam", learning_rate=0.01))
    one = BatchedModel(settings, FEATURES)
    two = BatchedModel(msgspec.structs.replace(settings, threads=2), FEATURES)
    for seed in range(8):
        block = random_block(2048, seed)
        np.testing.assert_allclose(one.learn(block), two.learn(block), atol=0.05)


def test_forgotten_rows_are_fresh_and_others_keep_what_they_know() -> None:
    settings = settings_of("deepfm", Optimizer(kind="lazy_adam", learning_rate=0.1))
    model, fresh = BatchedModel(settings, FEATURES), BatchedModel(settings, FEATURES)
    model.learn(random_block(400))
    learnt = {name: array.copy() for name, array in model.state().items()}
    forgotten, kept = np.array([3, 17]), np.array([4, 18])
    model.forget(forgotten)
    for name in ("linear", "embeddings"):
        np.testing.assert_array_equal(model.state()[name][forgotten], fresh.state()[name][forgotten])
        np.testing.assert_array_equal(model.state()[name][kept], learnt[name][kept])


def test_a_block_without_rows_changes_nothing() -> None:
    model = BatchedModel(settings_of("deepfm", Optimizer(kind="adam")), FEATURES)
    before = {name: array.copy() for name, array in model.state().items()}
    assert len(model.learn(random_block(0))) == 0
    for name, array in model.state().items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("kind", KINDS)
def test_row_0_stays_zero(kind: Kind) -> None:
    model = BatchedModel(settings_of(kind, Optimizer(kind="adam", learning_rate=0.1)), FEATURES)
    for seed in range(2):
        model.learn(random_block(200, seed))
    for table in model.strip().tables.values():
        assert not table.values[0].any()
