"""Values find their rows: XXH64, seeded by the table, as any other program computes it."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash

from headrace.base.errors import InvalidRequest
from headrace.jit.packed_arguments import Standing
from headrace.stream.hashing import (
    IntegerFields,
    _hash_integers,
    hash_integers,
    hash_texts,
    keys_of,
    place_integers,
    rows_of,
    seed_of,
)
from headrace.stream.schema import Field

SEEDS = (0, 7, 2**64 - 1)


def texts(*values: bytes) -> np.ndarray:
    made = np.empty(len(values), object)
    made[:] = values
    return made


@pytest.mark.parametrize("seed", SEEDS)
def test_texts_of_every_length_hash_as_the_reference_does(seed: int) -> None:
    random = np.random.default_rng(1)
    values = [random.bytes(length) for length in range(150)]
    assert hash_texts(texts(*values), np.uint64(seed)).tolist() == [
        xxhash.xxh64_intdigest(value, seed) for value in values
    ]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint32, np.int64, np.uint64])
def test_integers_hash_as_their_eight_bytes(seed: int, dtype: type[np.integer]) -> None:
    limits = np.iinfo(dtype)
    values = np.random.default_rng(1).integers(limits.min, limits.max, 50, dtype, endpoint=True)
    assert hash_integers(values, np.uint64(seed)).tolist() == [
        xxhash.xxh64_intdigest((int(value) % 2**64).to_bytes(8, "little"), seed) for value in values
    ]


def test_a_table_s_seed_is_the_hash_of_its_name() -> None:
    assert int(seed_of("user")) == xxhash.xxh64_intdigest(b"user")


def test_hashed_rows_are_spread_over_all_buckets_but_the_first() -> None:
    rows = rows_of(np.arange(100_000), Field(name="user", role="categorical", buckets=101), 1000)
    counts = np.bincount(rows - 1000, minlength=101)
    assert counts[0] == 0
    assert counts[1:].min() > 800
    assert counts[1:].max() < 1200


def test_no_value_is_the_first_row_of_the_table() -> None:
    field = Field(name="user", role="categorical", buckets=101)
    assert rows_of(np.array([-1]), field, 1000).tolist() == [1000]
    assert rows_of(texts(b""), field, 1000).tolist() == [1000]
    assert rows_of(np.array([2**32 - 1], np.uint32), field, 1000)[0] > 1000


def test_of_several_values_only_the_first_place_can_be_missing() -> None:
    field = Field(name="tags", role="categorical", keys="bucket", buckets=10, values=2)
    rows = rows_of(np.array([[3, -1], [-1, 4], [-1, -1]]), field, 100)
    assert rows.tolist() == [[103, 0], [0, 104], [100, 0]]


@pytest.mark.parametrize("bucket", [-2, 10, 2**40])
def test_a_bucket_that_the_table_does_not_have_is_refused(bucket: int) -> None:
    field = Field(name="tags", role="categorical", keys="bucket", buckets=10)
    with pytest.raises(InvalidRequest, match=rf"tags: row 1: .* 0 to 9.* got {bucket}"):
        rows_of(np.array([9, bucket]), field, 1)


def test_exact_keys_are_hashes_and_0_is_for_no_value() -> None:
    field = Field(name="user", role="categorical", keys="exact")
    keys = keys_of(np.array([5, -1]), field)
    assert keys.tolist() == [xxhash.xxh64_intdigest((5).to_bytes(8, "little"), int(seed_of("user"))), 0]
    assert keys_of(texts(b"", b"x"), field).tolist()[0] == 0


def test_integers_of_many_fields_are_placed_as_one_by_one() -> None:
    fields = [
        Field(name="a", role="categorical", buckets=1000),
        Field(name="b", role="categorical", buckets=50, keys="bucket"),
        Field(name="c", role="categorical", buckets=70, table="a_longer_name"),
    ]
    values = np.random.default_rng(5).integers(-1, 50, (3, 40))
    starts, slots = [1, 2000, 3000], [2, 0, 1]
    indices = np.zeros((40, 3), np.uint32)
    assert place_integers(values, Standing(IntegerFields.of(fields, starts, slots)), indices) == -1
    for number, field in enumerate(fields):
        alone = rows_of(values[number], field, starts[number])
        assert indices[:, slots[number]].tolist() == alone.tolist()
    values[1, 7] = 50
    assert place_integers(values, Standing(IntegerFields.of(fields, starts, slots)), indices) == 1


def test_integers_that_may_and_may_not_be_written_are_hashed_by_one_kernel() -> None:
    """A request's are read-only: a second type of array was compiled, seconds long, while others waited."""
    values = np.arange(5)
    locked = np.frombuffer(values.tobytes(), np.int64)
    assert hash_integers(values, np.uint64(7)).tolist() == hash_integers(locked, np.uint64(7)).tolist()
    assert len(_hash_integers.signatures) == 1
    assert values.flags.writeable
