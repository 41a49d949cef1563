"""What the online kernels compute is what is written down plainly in tests/click_reference.py."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headrace.base.errors import ConfigError
from headrace.ctr.learning.online import OnlineModel
from headrace.ctr.model_settings import Interaction, Kind, ModelSettings, Optimizer, OptimizerKind
from headrace.ctr.models.interactions import crossing
from headrace.stream.block import Features
from headrace.stream.schema import Field, Schema
from tests.click_blocks import MANY, SINGLE, block_of
from tests.click_reference import Reference

PAIR = Interaction(fields=("ad", "site"), buckets=50)
KINDS: tuple[Kind, ...] = ("lr", "fm", "fwfm", "ffm")
ADAGRAD = Optimizer(kind="adagrad", learning_rate=0.1, l2=0.01)
SGD = Optimizer(kind="sgd", learning_rate=0.1)
POWER = Optimizer(kind="adagrad", learning_rate=0.1, power=0.7, initial=0.5)
FTRL = Optimizer(kind="ftrl", learning_rate=0.2, l1=0.05, l2=0.1)
FORGETTING = Optimizer(kind="forgetting", learning_rate=0.1, l2=0.01, initial=2.0)
FORGETTING_POWER = Optimizer(kind="forgetting", learning_rate=0.1, power=0.3)
PAIRS_OF_OPTIMIZERS = {
    "adagrad": (ADAGRAD, ADAGRAD),
    "sgd": (SGD, SGD),
    "ftrl": (FTRL, POWER),
    "forgetting": (FORGETTING, FORGETTING_POWER),
}
WIDE = Schema(
    fields=(
        *SINGLE.fields,
        *(Field(name=f"field_{number}", role="categorical", buckets=20) for number in range(7)),
    )
)
"""More fields than may move as far as rates say, where sums forget."""


def settings_of(kind: Kind, optimizers: str = "adagrad", threads: int = 1) -> ModelSettings:
    linear, embeddings = PAIRS_OF_OPTIMIZERS[optimizers]
    return ModelSettings(
        kind=kind,
        factors=4,
        interactions=(PAIR,),
        linear=linear,
        embeddings=embeddings,
        initial_scale=0.2,
        threads=threads,
    )


CASES: tuple[tuple[Kind, str], ...] = (
    *((kind, "adagrad") for kind in KINDS),
    *(
        ("lr", "sgd"),
        ("fwfm", "sgd"),
        ("ffm", "ftrl"),
        ("fm", "forgetting"),
        ("fwfm", "forgetting"),
        ("ffm", "forgetting"),
    ),
)


@pytest.mark.parametrize("schema", [SINGLE, MANY, WIDE], ids=["single", "many", "wide"])
@pytest.mark.parametrize(("kind", "optimizers"), CASES)
def test_learns_as_the_reference_does(kind: Kind, optimizers: str, schema: Schema) -> None:
    """Predictions of each row and all state at the end agree with float64."""
    features, block = Features.of(schema), block_of(schema, 300, weighted=True)
    settings = settings_of(kind, optimizers)
    model = OnlineModel(settings, features)
    reference = Reference(settings, features, model.state())
    predicted = model.learn(block)
    expected = reference.learn(block, crossing(settings, features).of(block.indices).astype(np.int64))
    np.testing.assert_allclose(predicted, expected, rtol=2e-4, atol=1e-5)
    assert not np.allclose(expected, expected[0])
    for name, array in model.state().items():
        if not name.startswith("pace"):  # which has a reference of its own, in test_pace.py
            np.testing.assert_allclose(array, reference.arrays[name], rtol=2e-3, atol=2e-4, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_gradients(kind: Kind) -> None:
    """A step of SGD is the rate times the gradient, as finite differences of the reference's loss have it."""
    features, settings = Features.of(MANY), settings_of(kind, "sgd")
    model = OnlineModel(settings, features)
    block = block_of(MANY, 1)
    crossed = crossing(settings, features).of(block.indices).astype(np.int64)
    before = {name: array.copy() for name, array in model.state().items()}
    model.learn(block)

    def loss(reference: Reference) -> float:
        logit = reference.logit(block.indices[0].astype(np.int64), crossed[0], block.dense[0])
        return math.log1p(math.exp(logit)) - float(block.labels[0]) * logit

    checked = 0
    for name, after in model.state().items():
        moved = (before[name] - after) / SGD.learning_rate
        places = np.argwhere(moved != 0)
        for place in map(tuple, places):
            # Weights of field pairs are there twice, and the reference reads both.
            places_of_weight = [place]
            if name == "pairs":
                fields = len(features.categorical)
                places_of_weight.append((0, place[1] % fields * fields + place[1] // fields))
            losses = []
            for step in (1e-5, -1e-5):
                reference = Reference(settings, features, before)
                for one in places_of_weight:
                    reference.arrays[name][one] += step
                losses.append(loss(reference))
            expected = (losses[0] - losses[1]) / 2e-5
            assert moved[place] == pytest.approx(expected, rel=2e-3, abs=2e-5), (name, place)
            checked += 1
    assert checked >= 10


@pytest.mark.rest
@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_the_gradients_of_tensorflow(kind: Kind) -> None:
    """The same against an automatic derivative of the formula in the contract."""
    tensorflow = pytest.importorskip("tensorflow")
    features, settings = Features.of(SINGLE), settings_of(kind, "sgd")
    model, block = OnlineModel(settings, features), block_of(SINGLE, 1, seed=3)
    crossed = crossing(settings, features).of(block.indices)
    before = {name: tensorflow.Variable(array.copy()) for name, array in model.state().items()}
    fields, factors = len(features.categorical), settings.factors
    with tensorflow.GradientTape() as tape:
        rows = np.concatenate([block.indices[0], crossed[0]]).astype(np.int64)
        logit = before["bias"][0, 0] + tensorflow.reduce_sum(tensorflow.gather(before["linear"], rows))
        for first in range(fields):
            for second in range(first + 1, fields):
                if kind == "lr":
                    continue
                one = before["embeddings"][int(block.indices[0, first])]
                two = before["embeddings"][int(block.indices[0, second])]
                if kind == "ffm":
                    one = one[second * factors : (second + 1) * factors]
                    two = two[first * factors : (first + 1) * factors]
                product = tensorflow.reduce_sum(one * two)
                logit += product * (before["pairs"][0, first * fields + second] if kind == "fwfm" else 1.0)
        loss = tensorflow.nn.sigmoid_cross_entropy_with_logits(block.labels[0], logit)
    gradients = tape.gradient(loss, before)
    model.learn(block)
    for name in ("bias", "linear") if kind == "lr" else ("bias", "linear", "embeddings"):
        moved = (before[name].numpy() - model.state()[name]) / SGD.learning_rate
        expected = tensorflow.convert_to_tensor(gradients[name]).numpy()
        np.testing.assert_allclose(moved, expected, atol=2e-6)


def test_threads_learn_as_much() -> None:
    """Two threads without locks reach the loss of one, nearly."""
    losses = []
    for threads in (1, 2):
        model = OnlineModel(settings_of("fm", threads=threads), Features.of(SINGLE))
        for seed in range(8):
            model.learn(block_of(SINGLE, 1000, seed))
        fresh = block_of(SINGLE, 2000, 99)
        predicted = model.predict(fresh)
        losses.append(-np.mean(np.log(np.where(fresh.labels > 0, predicted, 1 - predicted))))
    assert losses[1] == pytest.approx(losses[0], abs=0.01)


def test_l1_makes_zeros() -> None:
    """FTRL leaves weights at exactly zero that have not been pulled beyond l1."""
    model = OnlineModel(settings_of("lr", "ftrl"), Features.of(SINGLE))
    model.learn(block_of(SINGLE, 300))
    touched = model.state()["linear"][:, 1] != 0
    weights = model.strip().tables["linear"].values[touched, 0]
    assert 0 < np.count_nonzero(weights == 0) < len(weights)


@pytest.mark.parametrize("kind", ["adagrad", "forgetting"])
def test_a_start_from_zero_sums_is_safe(kind: OptimizerKind) -> None:
    """Sums that start at zero divide nothing by zero."""
    optimizer = Optimizer(kind=kind, learning_rate=0.1, initial=0.0)
    settings = ModelSettings(kind="ffm", factors=4, linear=optimizer, embeddings=optimizer)
    model = OnlineModel(settings, Features.of(MANY))
    assert np.isfinite(model.learn(block_of(MANY, 200))).all()
    assert all(np.isfinite(array).all() for array in model.state().values())


def test_forgotten_rows_are_fresh() -> None:
    """Rows that are forgotten are as in a fresh model; all others stay."""
    features = Features.of(SINGLE)
    model, fresh = (OnlineModel(settings_of("ffm"), features) for _ in range(2))
    model.learn(block_of(SINGLE, 300))
    learnt = {name: array.copy() for name, array in model.state().items()}
    rows = np.array([3, 50, 120])
    model.forget(rows)
    for name in ("linear", "embeddings"):
        assert np.array_equal(model.state()[name][rows], fresh.state()[name][rows])
        kept = np.setdiff1d(np.arange(features.rows), rows)
        assert np.array_equal(model.state()[name][kept], learnt[name][kept])


def test_settings_and_states_that_do_not_fit_are_refused() -> None:
    """Batched optimizers, unknown fields in interactions, other states: an error says what was expected."""
    features = Features.of(MANY)
    with pytest.raises(ConfigError, match="learns in batches"):
        OnlineModel(ModelSettings(kind="fm", embeddings=Optimizer(kind="lazy_adam")), features)
    for name, text in (("tags", "may have 3 values"), ("price", "not a categorical field")):
        settings = ModelSettings(kind="lr", interactions=(Interaction(fields=("ad", name)),))
        with pytest.raises(ConfigError, match=text):
            OnlineModel(settings, features)
    model = OnlineModel(settings_of("lr"), features)
    with pytest.raises(ConfigError, match="'linear': expected an array of the shape"):
        model.restore({**model.state(), "linear": np.zeros((3, 2), np.float32)})
    with pytest.raises(ConfigError, match=r"'bias': .* got nothing"):
        model.restore({name: array for name, array in model.state().items() if name != "bias"})
