"""Values get rows by how often they come, keep them, and lose them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.ctr.click_model import LearningModel, Weights
from headrace.ctr.factory import create, scorer
from headrace.ctr.model_settings import Kind, ModelSettings
from headrace.ctr.models.vocabulary import GONE, AdmittingModel, Vocabulary, look_up
from headrace.stream.block import Block, Features
from headrace.stream.schema import Field, Schema

HIGH = np.uint64(1 << 32)


def features(buckets: int = 1000, admit: int = 2, expire_rows: int = 0, values: int = 1) -> Features:
    fields = (
        Field(name="click", role="label"),
        Field(name="other", role="categorical", buckets=10),
        Field(
            name="user",
            role="categorical",
            keys="exact",
            buckets=buckets,
            admit=admit,
            expire_rows=expire_rows,
            values=values,
        ),
    )
    return Features.of(Schema(fields=fields))


def block_of(layout: Features, keys: list[int] | Array, first_row: int = 0) -> Block:
    wanted = np.array(keys, np.uint64).reshape(-1, len(layout.exact_slots))
    indices = np.zeros((len(wanted), layout.slots), np.uint32)
    indices[:, 0] = 3
    dense = np.zeros((len(wanted), 0), np.float32)
    return Block(indices, dense, np.zeros(len(wanted), np.float32), keys=wanted, first_row=first_row)


def hashes(count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(1, 2**63, count, dtype=np.uint64) * np.uint64(2)


def test_a_value_gets_a_row_when_it_has_come_often_enough() -> None:
    layout = features(admit=3)
    first, _ = layout.tables["user"]
    filled, taken = Vocabulary(layout).admit(block_of(layout, [7 * 2**32, 7 * 2**32, 7 * 2**32, 7 * 2**32]))
    rows = filled.indices[:, 1].tolist()
    assert rows[:2] == [first, first]
    assert rows[2] == rows[3] > first
    assert not len(taken)
    assert filled.indices[:, 0].tolist() == [3] * 4, "other fields are left alone"


def test_missing_and_unknown_values_beside_others_are_left_out() -> None:
    layout = features(admit=1, values=2)
    first, _ = layout.tables["user"]
    block = block_of(layout, [[5 * 2**32, 6 * 2**32], [0, 5 * 2**32], [5 * 2**32, 0], [0, 0], [7 * 2**32, 0]])
    vocabulary = Vocabulary(layout)
    (five, six), *others = vocabulary.admit(block)[0].indices[:, 1:].tolist()
    assert min(five, six) > first
    assert others[:3] == [[0, five], [five, 0], [first, 0]]
    unknown = block_of(layout, [[0, 5 * 2**32], [8 * 2**32, 5 * 2**32], [0, 8 * 2**32]])
    expected = [[0, five], [0, five], [first, 0]]
    assert vocabulary.look_up(unknown, 5).indices[:, 1:].tolist() == expected
    indices = unknown.indices.copy()
    look_up(layout, vocabulary.living_keys(5), unknown.keys, indices)
    assert indices[:, 1:].tolist() == expected


def test_distinct_values_never_share_a_row() -> None:
    layout = features(buckets=1000, admit=1)
    vocabulary = Vocabulary(layout)
    keys = hashes(700)
    rows = vocabulary.admit(block_of(layout, keys))[0].indices[:, 1].astype(np.int64)
    first, count = layout.tables["user"]
    assert len(set(rows.tolist())) == 700
    assert rows.min() > first
    assert rows.max() < first + count
    again = vocabulary.look_up(block_of(layout, keys[::-1]), 700).indices[::-1, 1]
    assert again.tolist() == rows.tolist()


def test_a_full_table_admits_no_value_and_evicts_none() -> None:
    layout = features(buckets=11, admit=1)
    vocabulary = Vocabulary(layout)
    keys = hashes(500)
    rows = vocabulary.admit(block_of(layout, keys))[0].indices[:, 1]
    first, _ = layout.tables["user"]
    assert sorted(rows[:10].tolist()) == list(range(first + 1, first + 11))
    assert set(rows[10:].tolist()) == {first}
    assert vocabulary.look_up(block_of(layout, keys[:10]), 500).indices[:, 1].tolist() == rows[:10].tolist()


def test_values_that_never_come_again_are_not_admitted_however_long_the_stream() -> None:
    layout = features(buckets=1000, admit=2, expire_rows=5000)
    vocabulary = Vocabulary(layout)
    regular, admitted, nobody = hashes(20, seed=9), [], layout.tables["user"][0]
    for number in range(50):
        keys = np.concatenate([hashes(1000, seed=100 + number), regular, regular])
        rows = vocabulary.admit(block_of(layout, keys, first_row=1040 * number))[0].indices[:, 1]
        admitted.append(np.mean(rows[:1000] != nobody))
        assert (rows[1020:] != nobody).all()
    # Two counters of 8,000 a value: at most 2,000 of them hold something before they are halved, so a value
    # finds both of its own taken in (1/4)² of all cases, in the mean over a halving's time in a third.
    assert max(admitted) < 0.05


def test_an_expired_value_gives_its_row_to_another_which_is_reported() -> None:
    layout = features(buckets=2, admit=1, expire_rows=100)
    vocabulary = Vocabulary(layout)
    first, _ = layout.tables["user"]
    one, two = hashes(2)
    assert vocabulary.admit(block_of(layout, [one]))[0].indices[0, 1] == first + 1
    early, taken = vocabulary.admit(block_of(layout, [two], first_row=50))
    assert (early.indices[0, 1], len(taken)) == (first, 0), "the only row is somebody's"
    late, taken = vocabulary.admit(block_of(layout, [two], first_row=200))
    assert late.indices[0, 1] == first + 1
    assert taken.tolist() == [first + 1]
    assert vocabulary.look_up(block_of(layout, [one]), 201).indices[0, 1] == first


def test_a_value_keeps_its_row_until_the_end_of_its_block() -> None:
    """Otherwise a value that took the row over would also learn the first one's labels."""
    layout = features(buckets=2, admit=1, expire_rows=2)
    vocabulary = Vocabulary(layout)
    first, _ = layout.tables["user"]
    one, two = hashes(2)
    filled, taken = vocabulary.admit(block_of(layout, [one, 0, 0, 0, two, one], first_row=10))
    assert filled.indices[:, 1].tolist() == [first + 1, first, first, first, first, first + 1]
    assert not len(taken)
    filled, taken = vocabulary.admit(block_of(layout, [0, 0, 0, two], first_row=16))
    assert (filled.indices[3, 1], taken.tolist()) == (first + 1, [first + 1])


def test_published_keys_exclude_expired_values() -> None:
    layout = features(buckets=100, admit=1, expire_rows=100)
    vocabulary = Vocabulary(layout)
    keys = hashes(40)
    vocabulary.admit(block_of(layout, keys[:20]))
    vocabulary.admit(block_of(layout, keys[20:], first_row=500))
    living = vocabulary.living_keys(600)
    assert not np.isin(keys[:20], living["user"]).any()
    assert np.isin(keys[20:], living["user"]).all()
    assert (living["user"] == GONE).any(), "rows that nobody has taken over yet"
    block = block_of(layout, keys)
    indices = block.indices.copy()
    look_up(layout, living, keys.reshape(-1, 1), indices)
    first, _ = layout.tables["user"]
    assert set(indices[:20, 1].tolist()) == {first}
    assert indices[20:, 1].tolist() == vocabulary.look_up(block, 600).indices[20:, 1].tolist()


def test_further_values_that_are_not_there_are_left_out() -> None:
    layout = features(admit=1, values=3)
    first, _ = layout.tables["user"]
    filled = Vocabulary(layout).look_up(block_of(layout, [0, 0, 0, 5 * 2**32, 6 * 2**32, 0]), 0)
    assert filled.indices[:, 1:].tolist() == [[first, 0, 0], [first, 0, 0]]


def test_a_state_goes_on_where_it_was() -> None:
    layout = features(admit=2, expire_rows=300)
    left, right = Vocabulary(layout), Vocabulary(layout)
    keys = np.random.default_rng(1).choice(hashes(300), 2000)
    left.admit(block_of(layout, keys[:1000]))
    right.restore({name: array.copy() for name, array in left.state().items()})
    for vocabulary in (left, right):
        vocabulary.admit(block_of(layout, keys[1000:], first_row=1000))
    for name, array in left.state().items():
        assert np.array_equal(array, right.state()[name])


def test_a_state_of_another_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected an array of shape"):
        Vocabulary(features(buckets=10)).restore(Vocabulary(features(buckets=20)).state())


@pytest.mark.parametrize("kind", ["lr", "ffm", "deepfm"])
def test_a_model_predicts_what_its_version_does_also_of_values_that_have_expired(kind: Kind) -> None:
    layout = features(buckets=100, admit=1, expire_rows=100)
    model = create(ModelSettings(kind=kind, factors=2, hidden=(4,)), layout)
    keys = hashes(60)
    for first_row, part in ((0, keys[:30]), (200, keys[30:])):
        block = block_of(layout, part, first_row)
        block.labels[::2] = 1
        model.learn(block)
    weights, block = model.strip(), block_of(layout, keys, first_row=230)
    indices = block.indices.copy()
    look_up(layout, weights.keys, keys.reshape(-1, 1), indices)
    assert (indices[:30, 1] == layout.tables["user"][0]).all()
    expected = scorer(model.settings, layout, weights).predict(indices, block.dense)
    assert model.predict(block).tolist() == expected.tolist()


def test_the_state_of_a_model_without_exact_fields_is_refused() -> None:
    with pytest.raises(ConfigError, match="without exact fields"):
        create(ModelSettings(kind="lr"), features()).restore({"linear": np.zeros((1011, 2), np.float32)})


class CountingModel(LearningModel):
    """Remembers what it was given."""

    def __init__(self, layout: Features) -> None:
        self.settings, self.features = ModelSettings(kind="lr"), layout
        self.learnt: list[Array] = []
        self.forgot: list[int] = []

    def learn(self, block: Block) -> Array:
        self.learnt.append(block.indices)
        return np.full(len(block), 0.5, np.float32)

    def predict(self, block: Block) -> Array:
        return np.full(len(block), 0.5, np.float32)

    def forget(self, rows: Array) -> None:
        self.forgot += rows.tolist()

    def state(self) -> dict[str, Array]:
        return {}

    def restore(self, state: Mapping[str, Array]) -> None:
        assert not state

    def strip(self) -> Weights:
        return Weights({}, {})


def test_a_row_that_changes_hands_is_forgotten_before_it_is_learnt() -> None:
    layout = features(buckets=2, admit=1, expire_rows=10)
    inner = CountingModel(layout)
    model = AdmittingModel(inner)
    one, two = hashes(2)
    model.learn(block_of(layout, [one]))
    assert inner.forgot == []
    model.learn(block_of(layout, [two], first_row=50))
    first, _ = layout.tables["user"]
    assert inner.forgot == [first + 1]
    assert model.strip().keys["user"].tolist() == [0, two]
    assert not np.count_nonzero(inner.learnt[0][:, 0] != 3)
