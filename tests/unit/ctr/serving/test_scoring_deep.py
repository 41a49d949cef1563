"""Deep models as they predict and explain themselves."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from headrace.base.errors import ConfigError
from headrace.ctr.click_model import Table, Weights
from headrace.ctr.files.quantization import Bits, quantize_table
from headrace.ctr.learning.batched import BatchedModel
from headrace.ctr.model_settings import DEEP, Kind, Optimizer
from headrace.ctr.serving.explanations import BIAS
from headrace.ctr.serving.scoring import WeightsScorer
from headrace.stream.block import Block, Features
from headrace.stream.schema import Field, Schema
from tests.unit.ctr.learning.batched_reference import (
    FEATURES,
    as_float64,
    random_block,
    reference_logits,
    settings_of,
)

LEARNER = Optimizer(kind="lazy_adam", learning_rate=0.01)


def scorer_of(kind: Kind) -> WeightsScorer:
    """A deep model that has learnt a little."""
    settings = settings_of(kind, LEARNER)
    model = BatchedModel(settings, FEATURES)
    for seed in range(3):
        model.learn(random_block(600, seed))
    return WeightsScorer(settings, FEATURES, model.strip())


@pytest.mark.parametrize("kind", DEEP)
def test_contributions_add_up_to_the_logit(kind: Kind) -> None:
    scorer, block = scorer_of(kind), random_block(60, 9)
    logits = scorer.logits(block.indices, block.dense)
    for contributions, logit in zip(scorer.explain(block.indices, block.dense), logits, strict=True):
        assert sum(one.contribution for one in contributions) == pytest.approx(logit, abs=1e-4)


@pytest.mark.parametrize("kind", DEEP)
def test_each_value_field_and_pair_is_explained_once(kind: Kind) -> None:
    scorer, block = scorer_of(kind), random_block(40, 9)
    names = [field.name for field, _ in FEATURES.field_slots()]
    pairs = len(FEATURES.categorical) * (len(FEATURES.categorical) - 1) // 2
    for contributions, indices in zip(scorer.explain(block.indices, block.dense), block.indices, strict=True):
        own = [(one.field, one.index) for one in contributions if one.field in names]
        assert own == [(name, row) for name, row in zip(names, indices, strict=True) if row]
        assert [one.field for one in contributions if one.index < 0][:3] == [BIAS, "image", "price"]
        crossed = [one for one in contributions if " * " in one.field]
        assert len(crossed) == pairs + sum(one.index >= 0 for one in crossed)


@pytest.mark.parametrize("kind", DEEP)
def test_an_input_that_does_not_matter_contributes_nothing(kind: Kind) -> None:
    scorer, block = scorer_of(kind), random_block(20, 9)
    block.dense[:, -1] = 0
    for contributions in scorer.explain(block.indices, block.dense):
        assert next(one for one in contributions if one.field == "price").contribution == 0


@pytest.mark.parametrize("kind", DEEP)
def test_threads_that_predict_at_once_agree_to_the_bit(kind: Kind) -> None:
    scorer, block = scorer_of(kind), random_block(700, 9)
    expected = scorer.predict(block.indices, block.dense)
    answers: list[bool] = []

    def ask() -> None:
        for _ in range(20):
            answers.append(bool((scorer.predict(block.indices, block.dense) == expected).all()))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [True] * 80


@pytest.mark.parametrize("kind", DEEP)
def test_a_row_has_the_same_answer_alone_and_in_a_batch(kind: Kind) -> None:
    scorer, block = scorer_of(kind), random_block(70, 9)
    together = scorer.predict(block.indices, block.dense)
    for row in range(0, 70, 7):
        alone = scorer.predict(block.indices[row : row + 1], block.dense[row : row + 1])
        assert alone[0] == together[row]


@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize("kind", DEEP)
def test_tables_in_fewer_bits_predict_as_their_values_say(kind: Kind, bits: Bits) -> None:
    scorer, block = scorer_of(kind), random_block(300, 9)
    stored = {name: quantize_table(table, bits) for name, table in scorer.weights.tables.items()}
    rows = {name: np.arange(len(table.values)) >> table.shift for name, table in stored.items()}
    wide = {
        name: Table.of(table.values * table.scales[rows[name]][:, None]) for name, table in stored.items()
    }
    exact = as_float64(Weights(wide, scorer.weights.dense))
    logits = reference_logits(scorer.settings, FEATURES, exact, block)
    small = WeightsScorer(scorer.settings, FEATURES, Weights(stored, scorer.weights.dense))
    np.testing.assert_allclose(small.logits(block.indices, block.dense), logits, atol=1e-5)


def test_dense_features_alone_are_enough_for_deepfm_and_two_fields_for_deepffm() -> None:
    dense = Features.of(Schema(fields=(Field(name="y", role="label"), Field(name="price", role="dense"))))
    model = BatchedModel(settings_of("deepfm", LEARNER, interactions=()), dense)
    rows = np.zeros((40, 0), np.uint32), np.linspace(-1, 1, 40, dtype=np.float32).reshape(-1, 1)
    model.learn(Block(*rows, labels=(rows[1][:, 0] > 0).astype(np.float32)))
    scorer = WeightsScorer(model.settings, dense, model.strip())
    for contributions, logit in zip(scorer.explain(*rows), scorer.logits(*rows), strict=True):
        assert sum(one.contribution for one in contributions) == pytest.approx(logit, abs=1e-5)
    single = Features.of(Schema(fields=(Field(name="y", role="label"), Field(name="ad", role="categorical"))))
    with pytest.raises(ConfigError, match="a single categorical field"):
        BatchedModel(settings_of("deepffm", LEARNER, interactions=()), single)
