"""What every click model with exact fields promises besides, whatever its kind and optimizer."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import msgspec
import numpy as np
import pytest

from headrace.base.tensors import Array
from headrace.ctr.factory import create, scorer
from headrace.ctr.model_settings import KINDS, Kind, OptimizerKind
from headrace.ctr.models.vocabulary import AdmittingModel, look_up
from headrace.stream.block import Block, Features
from headrace.stream.hashing import keys_of
from headrace.stream.schema import Schema
from tests.click_blocks import MANY, block_of
from tests.conformance.test_click_models import (
    OPTIMIZERS,
    assert_equal_states,
    copied,
    learn,
    logloss,
    settings_of,
)

EXPIRE_ROWS = 400
SCHEMA = Schema(
    fields=tuple(
        msgspec.structs.replace(field, keys="exact", expire_rows=EXPIRE_ROWS)
        if field.name in ("ad", "tags")
        else field
        for field in MANY.fields
    )
)
FEATURES = Features.of(SCHEMA)

each_model = pytest.mark.parametrize(("kind", "optimizer"), tuple(product(KINDS, OPTIMIZERS)))


def made(kind: Kind, optimizer: OptimizerKind, **changed: object) -> AdmittingModel:
    model = create(settings_of(kind, optimizer, **changed), FEATURES)
    assert isinstance(model, AdmittingModel)
    return model


def rows(count: int, first_row: int = 0, values: int = 0) -> Block:
    """Rows whose exact values are hashes of numbers from ``values`` on."""
    block = block_of(MANY, count, first_row)
    keys = np.zeros((count, len(FEATURES.exact_slots)), np.uint64)
    indices = block.indices.copy()
    for number, column in enumerate(FEATURES.exact_columns):
        drawn = block.indices[:, column.slot].astype(np.int64)
        wanted = np.where(drawn > 0, (drawn - column.table_start) % 12 + values, -1)
        keys[:, number] = keys_of(wanted, column.field)
        indices[:, column.slot] = 0
    return replace(block, indices=indices, keys=keys, first_row=first_row)


@each_model
def test_it_learns_and_two_of_one_seed_agree_in_every_bit(kind: Kind, optimizer: OptimizerKind) -> None:
    block = rows(4000)
    one, two = made(kind, optimizer), made(kind, optimizer)
    predicted = learn(one, block)
    assert np.array_equal(predicted, learn(two, block))
    assert_equal_states(one, two)
    late = block.labels[2000:]
    assert logloss(predicted[2000:], late) < logloss(np.full(2000, late.mean()), late)


@each_model
def test_it_goes_on_from_a_state_bit_by_bit(kind: Kind, optimizer: OptimizerKind) -> None:
    first, second = rows(300), rows(300, first_row=600, values=6)
    whole = made(kind, optimizer)
    learn(whole, first)
    resumed = made(kind, optimizer)
    resumed.restore(copied(whole.state()))
    assert np.array_equal(learn(resumed, second), learn(whole, second))
    assert_equal_states(resumed, whole)


@each_model
def test_the_stripped_model_and_its_keys_predict_the_same_bits(kind: Kind, optimizer: OptimizerKind) -> None:
    model = made(kind, optimizer)
    learn(model, rows(300))
    learn(model, rows(300, first_row=600, values=6))  # by its end, half of the first values have expired
    weights, block = model.strip(), rows(200, first_row=900, values=3)
    indices = block.indices.copy()
    look_up(FEATURES, weights.keys, keys(block), indices)
    served = scorer(model.settings, FEATURES, weights)
    assert np.array_equal(served.predict(indices, block.dense), model.predict(block))


@each_model
def test_a_row_that_changes_hands_starts_as_a_fresh_one(kind: Kind, optimizer: OptimizerKind) -> None:
    """Weights and the optimizer's numbers are those of a model that has never learnt."""
    model, fresh = made(kind, optimizer), made(kind, optimizer)
    learn(model, rows(300))
    first, buckets = FEATURES.tables["ad"]
    forgotten = np.arange(first, first + buckets)
    names = [name for name in ("linear", "embeddings") if name in model.state()]
    assert not np.array_equal(model.state()["linear"][forgotten], fresh.state()["linear"][forgotten])
    before = copied(model.state())
    model.forget(forgotten)
    others = np.setdiff1d(np.arange(FEATURES.rows), forgotten)
    for name in names:
        assert np.array_equal(model.state()[name][forgotten], fresh.state()[name][forgotten]), name
        assert np.array_equal(model.state()[name][others], before[name][others]), name


def keys(block: Block) -> Array:
    assert block.keys is not None
    return block.keys
