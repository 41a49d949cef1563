"""A Block's part is a Block of views."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.base.errors import ConfigError
from headrace.stream.block import Block, Features, Slice
from headrace.stream.schema import Schema
from tests.streams import schema_of

SCHEMA = schema_of(
    ad={"buckets": 10, "values": 2},
    user={"buckets": 20, "context": True},
    friend={"buckets": 20, "table": "user", "keys": "hash"},
    price={"role": "dense"},
    image={"role": "vector", "size": 3, "context": True},
)


def test_a_part_has_the_rows_in_between_as_views() -> None:
    whole = Block(
        indices=np.arange(12, dtype=np.uint32).reshape(6, 2),
        dense=np.zeros((6, 0), np.float32),
        labels=np.arange(6, dtype=np.float32),
        slices={"site": Slice(np.arange(6, dtype=np.int32), ("a",))},
        first_row=100,
    )
    part = whole.part(2, 5)
    assert len(part) == 3
    assert part.first_row == 102
    assert part.indices.base is not None
    assert part.indices[0, 0] == 4
    assert part.labels.tolist() == [2, 3, 4]
    assert part.weights is None
    assert part.slices["site"].codes.tolist() == [2, 3, 4]


def test_the_context_comes_first_then_names() -> None:
    features = Features.of(SCHEMA)
    assert [field.name for field in features.categorical] == ["user", "ad", "friend"]
    assert [field.name for field in features.numeric] == ["image", "price"]
    assert features.slot_starts.tolist() == [0, 1, 3, 4]
    assert (features.context_slots, features.context_dense, features.dense_width) == (1, 3, 4)


def test_the_order_of_fields_means_nothing() -> None:
    turned = Features.of(Schema(fields=SCHEMA.fields[::-1]))
    assert turned.tables == Features.of(SCHEMA).tables
    assert turned.categorical == Features.of(SCHEMA).categorical


def test_tables_follow_each_other_behind_row_0_and_shared_ones_are_there_once() -> None:
    features = Features.of(SCHEMA)
    assert features.tables == {"ad": (1, 10), "user": (11, 20)}
    assert features.rows == 31
    assert features.table_starts.tolist() == [11, 1, 11]


def test_exact_fields_have_keys_for_each_of_their_slots() -> None:
    features = Features.of(schema_of(a={}, b={"keys": "exact", "values": 2}))
    assert features.exact_slots == (1, 2)


def test_nothing_to_learn_from_is_an_error() -> None:
    with pytest.raises(ConfigError, match="nothing to learn from"):
        Features.of(schema_of(y={"role": "label"}))


def test_more_rows_than_numbers_is_an_error() -> None:
    with pytest.raises(ConfigError, match="rows; expected at most"):
        Features.of(schema_of(a={"buckets": 2**31}, b={"buckets": 2**31}))
