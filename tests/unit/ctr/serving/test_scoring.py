"""Weights that do not fit are refused; others are scored by many threads, from read-only memory too."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from headrace.base.errors import ConfigError
from headrace.ctr.click_model import Table, Weights
from headrace.ctr.learning.online import OnlineModel
from headrace.ctr.model_settings import DEEP, Interaction, Kind, ModelSettings
from headrace.ctr.serving.scoring import WeightsScorer
from headrace.stream.block import Features
from tests.click_blocks import MANY, block_of
from tests.click_weights import FEATURES as BY_HAND
from tests.click_weights import settings_for, weights_for

PAIR = Interaction(fields=("ad", "site"), buckets=50)
SETTINGS = ModelSettings(kind="fwfm", factors=4, interactions=(PAIR,))
FEATURES = Features.of(MANY)


@pytest.fixture(scope="module")
def weights() -> Weights:
    model = OnlineModel(SETTINGS, FEATURES)
    model.learn(block_of(MANY, 300))
    return model.strip()


def test_read_only_tables_score_the_same(weights: Weights) -> None:
    """Weights in memory that may not be written, as mapped files are, give the same bits."""
    block = block_of(MANY, 50)
    expected = WeightsScorer(SETTINGS, FEATURES, weights).logits(block.indices, block.dense)
    for table in weights.tables.values():
        table.values.flags.writeable = False
    block.indices.flags.writeable = False
    again = WeightsScorer(SETTINGS, FEATURES, weights).logits(block.indices, block.dense)
    assert np.array_equal(again, expected)


def test_many_threads_score_at_once(weights: Weights) -> None:
    """Each thread has memory of its own to work in: all get the same answers."""
    block, scorer = block_of(MANY, 2000), WeightsScorer(SETTINGS, FEATURES, weights)
    expected = scorer.predict(block.indices, block.dense)
    with ThreadPoolExecutor(4) as threads:
        made = [threads.submit(scorer.predict, block.indices, block.dense) for _ in range(16)]
        assert all(np.array_equal(one.result(), expected) for one in made)


def test_weights_that_do_not_fit_are_refused(weights: Weights) -> None:
    """A missing table, another shape, another dtype: the error says what was expected."""
    linear = weights.tables["linear"]
    for tables, text in (
        ({"linear": linear}, "'embeddings' is missing"),
        ({**weights.tables, "linear": Table.of(linear.values[:-1])}, "'linear': expected .* rows of 1"),
        ({**weights.tables, "linear": Table.of(linear.values.astype(np.float64))}, "got float64"),
    ):
        with pytest.raises(ConfigError, match=text):
            WeightsScorer(SETTINGS, FEATURES, replace(weights, tables=tables))
    wrong = replace(weights, dense={**weights.dense, "pairs": np.zeros((2, 2), np.float32)})
    with pytest.raises(ConfigError, match="'pairs': expected an array of the shape"):
        WeightsScorer(SETTINGS, FEATURES, wrong)


@pytest.mark.parametrize("kind", DEEP)
def test_weights_that_do_not_fit_a_network_are_refused(kind: Kind) -> None:
    """Kernels would read beyond the end of too short a table."""
    settings = settings_for(kind)
    fitting = weights_for(settings)
    for name in fitting.tables:
        short = {**fitting.tables, name: Table.of(fitting.tables[name].values[:3])}
        with pytest.raises(ConfigError, match=f"table '{name}': expected .* rows of .*, got"):
            WeightsScorer(settings, BY_HAND, replace(fitting, tables=short))
    for name, array in fitting.dense.items():
        less = {**fitting.dense, name: array[:-1]}
        with pytest.raises(ConfigError, match=f"'{name}': expected an array of the shape"):
            WeightsScorer(settings, BY_HAND, replace(fitting, dense=less))


def test_explanations_name_what_they_are_of(weights: Weights) -> None:
    """Each value of a field with its row and share, dense features with their values, pairs by both names."""
    block = block_of(MANY, 1)
    (made,) = WeightsScorer(SETTINGS, FEATURES, weights).explain(block.indices, block.dense)
    tags = [one for one in made if one.field == "tags"]
    assert sum(one.value for one in tags) == pytest.approx(1.0)
    assert all(one.index > 0 and one.contribution == one.value * one.weight for one in tags)
    (price,) = (one for one in made if one.field == "price")
    column = 3 * [field.name for field in FEATURES.numeric].index("price")  # the other one is a vector of 3
    assert price.value == pytest.approx(block.dense[0, column])
    fields = [field.name for field in FEATURES.categorical]
    pairs = {f"{one} * {two}" for place, one in enumerate(fields) for two in fields[place + 1 :]}
    assert pairs <= {one.field for one in made}
