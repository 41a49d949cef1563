"""Vectors as a store keeps them."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.archive.model.records import HEAD, Form, joined
from headrace.base.errors import InvalidRequest

NOW = 1_800_000_000_000


def vectors(rows: int = 5, dimension: int = 7) -> np.ndarray:
    return np.random.default_rng(3).normal(size=(rows, dimension)).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_floats_come_back_as_they_were_stored(dtype: str) -> None:
    form = Form(7, dtype)
    records = form.encode(vectors(), NOW)
    assert records.shape == (5, form.record_bytes)
    assert form.decode(records).dtype == form.answered == np.dtype(dtype)
    np.testing.assert_array_equal(form.decode(records), vectors().astype(dtype))
    assert form.written(records).tolist() == [NOW] * 5


def test_int8_is_off_by_half_a_scale_at_the_most() -> None:
    form = Form(300, "int8")
    given = vectors(50, 300) * np.logspace(-30, 30, 50, dtype=np.float32)[:, None]
    records = form.encode(given, NOW)
    back = form.decode(records)
    assert back.dtype == np.float32
    bound = np.abs(given).max(axis=1) / 254 * 1.0001
    assert (np.abs(back - given).max(axis=1) <= bound).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_a_vector_of_zeros_is_a_vector(dtype: str) -> None:
    form = Form(3, dtype)
    records = form.encode(np.zeros((2, 3), np.float32), NOW)
    assert form.are_records(records).all()
    assert not form.decode(records).any()


def test_a_number_that_float16_cannot_be_is_refused_and_named() -> None:
    given = vectors()
    given[3, 2] = 1e6
    with pytest.raises(InvalidRequest, match=r"vectors: row 3: a number is too large for float16"):
        Form(7, "float16").encode(given, NOW)


def test_the_missing_value_is_not_a_record() -> None:
    form = Form(7, "float16")
    records = joined([form.missing, form.encode(vectors(1), NOW)[0].tobytes()], form)
    assert form.are_records(records).tolist() == [False, True]


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\x01",
        b"garbage" * 100,
        Form(7, "float32").encode(vectors(1), NOW)[0].tobytes(),
        Form(8, "int8").encode(vectors(1, 8), NOW)[0].tobytes(),
        bytes(HEAD.itemsize) + b"\x01" * 14,
    ],
    ids=["nothing", "a byte", "garbage", "another type", "a type of the same length", "no head"],
)
def test_a_malformed_record_is_a_miss_and_affects_no_other(damaged: bytes) -> None:
    form = Form(7, "float16")
    good = form.encode(vectors(2), NOW)
    records = joined([good[0].tobytes(), damaged, good[1].tobytes()], form)
    assert form.are_records(records).tolist() == [True, False, True]
    np.testing.assert_array_equal(records[[0, 2]], good)


def test_a_key_behind_the_vector_is_left_out() -> None:
    form = Form(7, "float32")
    good = form.encode(vectors(2), NOW)
    records = joined([good[0].tobytes() + b"a long key", good[1].tobytes()], form)
    np.testing.assert_array_equal(records, good)
