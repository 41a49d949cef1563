"""Texts are looked at together where they are ASCII, and as strictly as one by one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headrace.stream.batch_validation import Validator

KINDS = {pa.string(): np.int32, pa.large_string(): np.int64}


def validate(kind: pa.DataType, data: bytes, ends: list[int], nulls: int = 0) -> None:
    offsets = pa.py_buffer(np.array([0, *ends], KINDS[kind]).tobytes())
    valid = pa.py_buffer(b"\xfe") if nulls else None
    column = pa.Array.from_buffers(kind, len(ends), [valid, offsets, pa.py_buffer(data)], null_count=nulls)
    batch = pa.record_batch([column], names=["text"])
    Validator(batch.schema).validate(batch, new_dictionaries=False)


@pytest.mark.parametrize("kind", KINDS)
def test_texts_pass(kind: pa.DataType) -> None:
    validate(kind, b"", [0, 0])
    validate(kind, b"abcdef", [2, 2, 6])
    validate(kind, "aüo".encode(), [1, 3, 4])
    validate(kind, b"abcdef", [2, 6], nulls=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("data", "ends"),
    [
        (b"a\xff", [1, 2]),
        ("aüo".encode(), [2, 4]),
        (b"abcdef", [4, 2, 6]),
        (b"abcdef", [2, 7]),
        (b"abcdef", [-1, 6]),
    ],
    ids=["no UTF-8", "cut within a letter", "backwards", "beyond the data", "before the data"],
)
def test_what_is_wrong_is_refused(kind: pa.DataType, data: bytes, ends: list[int]) -> None:
    with pytest.raises(pa.ArrowInvalid):
        validate(kind, data, ends)


@pytest.mark.parametrize("kind", KINDS)
def test_offsets_may_be_followed_by_part_of_another(kind: pa.DataType) -> None:
    offsets = pa.py_buffer(np.array([0, 1, 3], KINDS[kind]).tobytes() + b"\0")
    column = pa.Array.from_buffers(kind, 2, [None, offsets, pa.py_buffer(b"abc")])
    batch = pa.record_batch([column.slice(1)], names=["text"])
    Validator(batch.schema).validate(batch, new_dictionaries=False)


def test_a_wrong_number_of_nulls_is_refused() -> None:
    with pytest.raises(pa.ArrowInvalid):
        validate(pa.string(), b"abcdef", [2, 6], nulls=2)
