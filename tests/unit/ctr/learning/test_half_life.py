"""What forgets and learns in batches: old squares halve in so many rows, lazily, and to the bit as ever."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.ctr.learning.adagrad_decay import HalfLife, share_of
from headrace.ctr.learning.batched import BatchedModel
from headrace.ctr.model_settings import Kind, ModelSettings, Optimizer
from headrace.stream.block import Features
from tests.click_blocks import SINGLE, block_of

FEATURES = Features.of(SINGLE)
OPTIMIZER = Optimizer(kind="forgetting", learning_rate=0.2, initial=2.0)


def model_of(half_life_rows: int = 1000, kind: Kind = "deepfm", **changed: object) -> BatchedModel:
    given = {"factors": 4, "hidden": (8,), "linear": OPTIMIZER, "embeddings": OPTIMIZER} | changed
    return BatchedModel(ModelSettings(kind=kind, half_life_rows=half_life_rows, **given), FEATURES)  # type: ignore[arg-type]


def copied(model: BatchedModel) -> dict[str, Array]:
    return {name: array.copy() for name, array in model.state().items()}


@pytest.mark.parametrize(
    ("counted", "weight", "factor"),
    [
        (0, 1.0, 1.0),
        (50, 2**0.5, 1.0),
        (100, 2.0, 1.0),
        (6399, 2**63.99, 1.0),
        (6400, 1.0, 2.0**-64),  # made smaller, and the sums with it
        (6500, 2.0, 2.0**-64),
        (12_800, 1.0, 2.0**-128),
        (10**9, 1.0, 0.0),  # a batch of which nothing is left
    ],
)
def test_the_weight_of_new_squares_doubles_per_half_life(counted: int, weight: float, factor: float) -> None:
    memory = HalfLife(100)
    assert memory.count(counted) == factor
    assert memory.weight == pytest.approx(weight)


def test_a_row_of_absurd_weight_is_survived_however_long_the_stream_has_lasted() -> None:
    model, block = model_of(1000), block_of(SINGLE, 500, weighted=True)
    model.learn(block)
    model.state()["half_life.rows"][0] = 63_000
    assert block.weights is not None
    block.weights[7] = 1e10
    model.learn(block)
    assert all(np.isfinite(array).all() for array in model.state().values())


def test_sums_halve_in_so_many_rows() -> None:
    """Of a batch, then of rows without values, which touch the bias alone."""
    model = model_of(500)
    block = block_of(SINGLE, 500)
    model.learn(block)
    (row, *_) = np.unique(block.indices[block.indices > 0])
    weight, total = model.state()["linear"][row]
    first = total  # the first batch's squares count once
    once_more = block.part(0, 1)
    once_more.indices[:] = 0
    once_more.indices[0, 0] = row
    model.learn(once_more)
    moved, later = model.state()["linear"][row] - (weight, total)
    gradient = -np.sign(moved) * np.sqrt(later / 2)  # a new square counts two
    rate = OPTIMIZER.learning_rate * share_of(model.settings, FEATURES)
    expected = -rate * gradient / np.sqrt(first / 2 + gradient**2 + OPTIMIZER.initial)
    assert moved == pytest.approx(expected, rel=1e-3)


def test_untouched_parameters_stay_the_same_bit_for_bit() -> None:
    model = model_of(100)
    model.learn(block_of(SINGLE, 1000))
    before = copied(model)
    some = block_of(SINGLE, 300, 1)
    some.indices[:] = np.minimum(some.indices, 20)
    model.learn(some)
    for name in ("linear", "embeddings"):
        np.testing.assert_array_equal(model.state()[name][21:], before[name][21:])
        assert not np.array_equal(model.state()[name][1:21], before[name][1:21])


@pytest.mark.parametrize("kind", ["deepfm", "deepffm"])
def test_a_weight_that_gets_too_large_changes_nothing_when_it_is_made_smaller(kind: Kind) -> None:
    plain, scaled = model_of(1000, kind), model_of(1000, kind)
    scaled.state()["half_life.rows"][:] = 64_000 - 600  # from a weight of almost 2**64, and no sums yet
    plain.state()["half_life.rows"][:] = 400
    for number in range(4):
        block = block_of(SINGLE, 300, number)
        np.testing.assert_allclose(scaled.learn(block), plain.learn(block), rtol=2e-5)
    assert scaled.state()["half_life.rows"] == 600
    assert plain.state()["half_life.rows"] == 1600
    ratio = scaled.state()["linear"][1:, 1] / np.maximum(plain.state()["linear"][1:, 1], 1e-9)
    assert ratio.max() == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize("kind", ["deepfm", "deepffm"])
@pytest.mark.parametrize("half_life_rows", [3, 1000])
def test_goes_on_to_the_bit(kind: Kind, half_life_rows: int) -> None:
    """Also where sums are made smaller between batches."""
    first, second = model_of(half_life_rows, kind), model_of(half_life_rows, kind)
    for number in range(3):
        first.learn(block_of(SINGLE, 150, number))
    second.restore(copied(first))
    for number in range(3):
        following = block_of(SINGLE, 150, 10 + number)
        np.testing.assert_array_equal(second.learn(following), first.learn(following))
    assert first.state().keys() == second.state().keys()
    for name, array in first.state().items():
        np.testing.assert_array_equal(second.state()[name], array, err_msg=name)


def test_a_state_without_it_is_refused() -> None:
    model = model_of()
    state = {name: array for name, array in copied(model).items() if name != "half_life.rows"}
    with pytest.raises(ConfigError, match=r"'half_life\.rows': expected the number of rows"):
        model.restore(state)


def test_models_without_decay_have_no_row_count_in_their_state() -> None:
    """So its checkpoints are what they were."""
    adagrad = Optimizer(kind="adagrad")
    assert "half_life.rows" not in model_of(linear=adagrad, embeddings=adagrad).state()


def test_a_half_life_follows_a_changing_stream() -> None:
    """The same rows, after which who clicked no longer does: the shorter the memory, the better."""
    losses = []
    for half_life_rows in (500, 10**9):
        model = model_of(half_life_rows)
        for number in range(90):
            model.learn(block_of(SINGLE, 300, number))
        predicted = []
        for number in range(90, 100):
            block = block_of(SINGLE, 300, number)
            block.labels[:] = 1 - block.labels
            predicted.append(np.where(block.labels > 0, one := model.learn(block), 1 - one))
        losses.append(-np.log(np.concatenate(predicted)).mean())
    assert losses[0] < losses[1] - 0.05
