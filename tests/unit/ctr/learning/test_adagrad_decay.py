"""What forgets: how fast, lazily, the same however rows come, how far it moves, and what the sample says."""

from __future__ import annotations

import math
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.ctr.learning import adagrad_decay
from headrace.ctr.learning.adagrad_decay import (
    DECISION_ROWS,
    PAIRS_STEP,
    SCALED,
    doublings,
    share_of,
    shared,
    sharing,
)
from headrace.ctr.learning.online import OnlineModel
from headrace.ctr.model_settings import Interaction, Kind, ModelSettings, Optimizer
from headrace.stream.block import Block, Features
from headrace.stream.schema import Field, Schema
from tests.click_blocks import LABEL, SINGLE, block_of

FEATURES = Features.of(SINGLE)
OPTIMIZER = Optimizer(kind="forgetting", learning_rate=0.2)


def model_of(kind: Kind = "fm") -> OnlineModel:
    return OnlineModel(ModelSettings(kind=kind, factors=4, linear=OPTIMIZER, embeddings=OPTIMIZER), FEATURES)


def turned(block: Block) -> Block:
    """The same rows in a world where who clicked does not, and the other way round."""
    return Block(block.indices, block.dense, 1 - block.labels)


@pytest.mark.parametrize(
    ("evidence", "spread", "expected"),
    [
        (0.0, 0.0, 0.0),  # nothing was seen
        (0.0, 1.0, 0.05),  # faster steps would have been as good
        (-0.5, 1.0, 0.0),
        (-9.0, 1.0, 0.0),  # they would have been worse: the memory stays
        (1.0, 1.0, 0.15),
        (1.0, 4.0, 0.1),  # it depends on how sure that is
        (1e9, 1.0, 2.0),  # and has its bounds
    ],
)
def test_doublings_follow_from_the_evidence(evidence: float, spread: float, expected: float) -> None:
    assert doublings(evidence, spread) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["lr", "ffm"])
@pytest.mark.parametrize("absurd", [1e10, -(2.0**64), 3e38])
@pytest.mark.parametrize("what", ["dense", "weights"])
def test_an_absurd_number_is_survived_however_long_the_stream_has_lasted(
    kind: Kind, absurd: float, what: str
) -> None:
    model, blocks = model_of(kind), [block_of(SINGLE, 500, seed, weighted=True) for seed in range(4)]
    model.learn(blocks[0])
    model.state()["pace"][adagrad_decay._DOUBLED] = 63.9
    model.learn(blocks[1])
    for row in (7, 8, 9):
        getattr(blocks[2], what)[row] = abs(absurd) if what == "weights" else absurd
    model.learn(blocks[2])
    assert np.isfinite(model.learn(blocks[3])).all()
    assert all(np.isfinite(array).all() for array in model.state().values())


def test_an_empty_block_decides_nothing() -> None:
    """A decision that is due at the end of a block was taken with it."""
    model = model_of("lr")
    model.learn(block_of(SINGLE, DECISION_ROWS))
    pace = model.state()["pace"].copy()
    assert pace[adagrad_decay._EVIDENCE] != 0
    assert not len(model.learn(block_of(SINGLE, 1).part(0, 0)))
    assert model.state()["pace"].tolist() == pace.tolist()


def test_the_sample_is_what_numpy_says() -> None:
    block = block_of(SINGLE, 900, weighted=True)
    model = model_of("lr")
    predicted = model.learn(block)
    assert block.weights is not None
    off, squares = np.zeros(FEATURES.rows), np.zeros(FEATURES.rows)
    saved = spread = 0.0
    for row, weight in enumerate(block.weights):
        sampled = [int(one) for one in block.indices[row] if one and one % adagrad_decay._LEAST_ONE_IN == 0]
        sum_off = off[sampled].sum()
        error = (predicted[row] - block.labels[row]) * weight
        curvature = predicted[row] * (1 - predicted[row]) * weight
        if sampled:
            saved -= error * sum_off + 0.5 * curvature * sum_off**2
            spread += (error * sum_off) ** 2
        for one in sampled:
            squares[one] += error**2
            rate = OPTIMIZER.learning_rate / math.sqrt(squares[one] + OPTIMIZER.initial)
            off[one] += rate * (error - adagrad_decay._FASTER * (error + curvature * sum_off))
    state = model.state()
    np.testing.assert_allclose(state["pace"], [900, 0, saved, spread], rtol=1e-4)
    np.testing.assert_allclose(state["pace.sample"][:, 0], squares[:: adagrad_decay._LEAST_ONE_IN], rtol=1e-5)
    np.testing.assert_allclose(
        state["pace.sample"][:, 1], off[:: adagrad_decay._LEAST_ONE_IN], rtol=1e-3, atol=1e-6
    )


def test_more_is_forgotten_on_a_changing_stream() -> None:
    """Where it stands still hardly anything is forgotten, where it turns round again and again, much."""
    weights = []
    for turns in (False, True):
        model = model_of("lr")
        for number in range(24):
            block = block_of(SINGLE, DECISION_ROWS, number)
            model.learn(turned(block) if turns and number // 8 % 2 else block)
        weights.append(model.state()["pace"][1])
    assert weights[0] < 2
    assert weights[1] > weights[0] + 4


def test_evidence_of_every_thread_counts() -> None:
    settings = ModelSettings(kind="lr", linear=OPTIMIZER)
    spreads = []
    for threads in (1, 2):
        model = OnlineModel(msgspec.structs.replace(settings, threads=threads), FEATURES)
        for number in range(8):
            model.learn(block_of(SINGLE, 1000, number))
        spreads.append(model.state()["pace"][3])
    assert spreads[1] == pytest.approx(spreads[0], rel=0.2)


@pytest.mark.parametrize("kind", ["lr", "fm"])
def test_learning_does_not_depend_on_the_division_into_blocks(kind: Kind) -> None:
    block = block_of(SINGLE, 3000)
    whole, parts = model_of(kind), model_of(kind)
    expected = whole.learn(block)
    edges = [0, 100, 1023, 1024, 1025, 2900, 3000]
    got = np.concatenate([parts.learn(block.part(start, stop)) for start, stop in pairwise(edges)])
    np.testing.assert_array_equal(got, expected)
    _assert_same(parts.state(), whole.state())


def test_untouched_parameters_stay_the_same_bit_for_bit() -> None:
    model = model_of()
    model.learn(block_of(SINGLE, 2000))
    before = {name: array.copy() for name, array in model.state().items()}
    some = block_of(SINGLE, 3 * DECISION_ROWS, 1)
    some.indices[:] = np.minimum(some.indices, 20)
    model.learn(some)
    for name in ("linear", "embeddings"):
        np.testing.assert_array_equal(model.state()[name][21:], before[name][21:])
        assert not np.array_equal(model.state()[name][1:21], before[name][1:21])


def test_a_weight_that_gets_too_large_is_made_smaller_with_all_sums() -> None:
    """Which changes what is predicted by no more than rounding, and here, by a power of two, by nothing."""
    block = block_of(SINGLE, 2 * DECISION_ROWS)
    plain, scaled = model_of(), model_of()
    for model, doubled in ((plain, 0.0), (scaled, math.log2(SCALED))):
        model.state()["pace"][1] = doubled
        model.learn(block.part(0, 500))
        model.state()["pace"][2:] = 1.0  # evidence: the weight will grow
        model.learn(block.part(500, 2 * DECISION_ROWS))
    expected, got = (one.learn(block_of(SINGLE, 700, 5)) for one in (plain, scaled))
    np.testing.assert_array_equal(got, expected)
    assert 0 < scaled.state()["pace"][1] == pytest.approx(plain.state()["pace"][1])


def test_goes_on_to_the_bit() -> None:
    first, second = model_of(), model_of()
    first.learn(block_of(SINGLE, 1500))
    second.restore({name: array.copy() for name, array in first.state().items()})
    following = block_of(SINGLE, 1500, 1)
    np.testing.assert_array_equal(second.learn(following), first.learn(following))
    _assert_same(second.state(), first.state())


def test_a_state_without_it_is_refused() -> None:
    model = model_of()
    state = {name: array.copy() for name, array in model.state().items() if name != "pace.sample"}
    with pytest.raises(ConfigError, match=r"'pace\.sample': expected an array of the shape"):
        model.restore(state)


def test_rows_that_change_hands_are_sampled_afresh() -> None:
    model = model_of()
    model.learn(block_of(SINGLE, 1000))
    model.forget(np.array([8, 9, 16]))
    sample = model.state()["pace.sample"]
    assert not sample[[1, 2]].any()
    assert sample[3:].any()


def _assert_same(got: dict[str, Array], expected: dict[str, Array]) -> None:
    assert got.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)


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
def test_the_share_of_a_step_depends_on_the_number_of_fields(schema: Schema, expected: float) -> None:
    assert share_of(ModelSettings(kind="lr"), Features.of(schema)) == pytest.approx(expected)


def test_interactions_count_in_the_share_of_a_step() -> None:
    pairs = tuple(Interaction(fields=("field_0", f"field_{number}")) for number in range(1, 3))
    settings = ModelSettings(kind="lr", interactions=pairs)
    assert share_of(settings, Features.of(schema_of(6))) == pytest.approx(6 / 8)


def test_only_decaying_optimizers_scale_their_learning_rates() -> None:
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
def test_each_group_derives_its_settings_from_the_shared_ones(kind: Kind, name: str, expected: float) -> None:
    features = Features.of(schema_of(24))
    found = shared(FORGETTING, name, ModelSettings(kind=kind), features)
    assert found.learning_rate == pytest.approx(expected)
