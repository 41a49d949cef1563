"""Texts hashed where they lie have the rows and keys of those that are objects, as learning makes them."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.base.tensors import STRING, Array
from headrace.model.packed_columns import HEAD, PLACE
from headrace.runtimes.ctr_inputs import TextFields, packed, place_texts
from headrace.stream.hashing import keys_of, rows_of
from headrace.stream.schema import Field

FIELDS = (
    Field(name="user", role="categorical", buckets=500, text=True),
    Field(name="tags", role="categorical", buckets=70, text=True, values=3),
    Field(name="site", role="categorical", buckets=90, text=True, keys="exact"),
    Field(name="words", role="categorical", buckets=80, text=True, values=2, keys="exact"),
)
STARTS, COLUMNS = (1, 501, 0, 0), (0, 1, 0, 1)


def texts(rows: int, seed: int) -> list[Array]:
    """Some empty, some longer than XXH64's stripes."""
    random = np.random.default_rng(seed)
    found = []
    for field in FIELDS:
        sizes = random.choice([0, 0, 1, 3, 4, 7, 8, 12, 31, 32, 33, 100], rows * field.values)
        made = np.array([*(random.bytes(size) for size in sizes), None], STRING)[:-1]
        found.append(made.reshape(rows, field.values) if field.values > 1 else made)
    return found


def wanted(arrays: list[Array]) -> tuple[Array, Array]:
    rows = len(arrays[0])
    columns = [rows_of(arrays[at], FIELDS[at], STARTS[at]).reshape(rows, -1) for at in (0, 1)]
    keys = [keys_of(arrays[at], FIELDS[at]).reshape(rows, -1) for at in (2, 3)]
    return np.concatenate(columns, axis=1), np.concatenate(keys, axis=1)


@pytest.mark.parametrize("counts", [(1,), (40,), (3, 1, 12)])
def test_many_requests_have_the_rows_and_keys_of_each(counts: tuple[int, ...]) -> None:
    requests = [texts(rows, seed) for seed, rows in enumerate(counts)]
    parts = [packed(arrays, rows) for arrays, rows in zip(requests, counts, strict=True)]
    # A request without any text has a byte that is nobody's; here all have some.
    data, places = (np.concatenate(some) for some in zip(*parts, strict=True))
    indices, keys = placed(data, places, sum(counts))
    for made, some in zip((indices, keys), zip(*map(wanted, requests), strict=True), strict=True):
        assert made.tolist() == np.concatenate(some).tolist()


def test_one_row_stands_for_all() -> None:
    once, rows = texts(1, 7), 4
    data, places = packed(once, 1)
    places = places.copy()
    places[1] = rows
    assert places[HEAD : HEAD + len(FIELDS)].tolist() == [1] * len(FIELDS)
    indices, keys = placed(data, places, rows)
    one, key = wanted(once)
    assert (indices == one).all()
    assert (keys == key).all()


def test_no_texts_at_all() -> None:
    empty = [np.full((2, field.values), b"", STRING) for field in FIELDS]
    indices, keys = placed(*packed(empty, 2), 2)
    assert indices.tolist() == [[1, 501, 0, 0]] * 2
    assert not keys.any()


def placed(data: Array, places: Array, rows: int) -> tuple[Array, Array]:
    fields = TextFields.of(FIELDS, STARTS, COLUMNS)
    indices, keys = np.full((rows, 4), 9, np.uint32), np.full((rows, 3), 9, np.uint64)
    data, places = (np.frombuffer(one.tobytes(), one.dtype) for one in (data, places))
    assert places.dtype == PLACE
    place_texts(data, places, fields, indices, keys)
    return indices, keys
