"""Texts are checked together as strictly as one by one; a few bytes of indices do not become gigabytes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headrace.base.errors import InvalidRequest, StreamError
from headrace.stream.column_conversion import stream_column
from headrace.stream.record_batches import MOST_BYTES, Validator, plain, plain_type
from headrace.stream.schema import Field

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
def test_invalid_offsets_and_texts_are_refused(kind: pa.DataType, data: bytes, ends: list[int]) -> None:
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


BOMB = pa.DictionaryArray.from_arrays(pa.array([0] * 60_000, pa.int8()), pa.array(["x" * 100_000]))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.string_view()])
def test_values_that_would_take_too_much_are_refused_before_they_are_made(kind: pa.DataType) -> None:
    values = pa.array(["x" * 100_000]).cast(kind)
    bomb = pa.DictionaryArray.from_arrays(BOMB.indices, values)
    before = pa.total_allocated_bytes()
    said = f"would take 6000.* bytes when expanded; expected at most {MOST_BYTES}"
    with pytest.raises(InvalidRequest, match=said):
        plain(bomb, "column 'a'")
    assert pa.total_allocated_bytes() - before < 2**20


def test_lists_in_a_dictionary_count_too() -> None:
    values = pa.array([["x" * 100_000]])
    with pytest.raises(InvalidRequest, match="would take"):
        plain(pa.DictionaryArray.from_arrays(BOMB.indices, values))


@pytest.mark.parametrize("kind", [pa.ListArray, pa.LargeListArray])
def test_lists_of_what_is_in_a_dictionary_count_by_its_values(
    kind: type[pa.ListArray] | type[pa.LargeListArray],
) -> None:
    indices, offsets = pa.array([0] * 4000, pa.int8()), [0, 1000, 4000]
    large = pa.DictionaryArray.from_arrays(indices, pa.array(["x" * 2**20]))
    small = pa.DictionaryArray.from_arrays(indices, pa.array(["x"]))
    with pytest.raises(InvalidRequest, match=f"would take {4000 * 2**20} bytes"):
        plain(kind.from_arrays(offsets, large))
    with pytest.raises(InvalidRequest, match=f"would take {4000 * 2**20} bytes"):
        plain(pa.FixedSizeListArray.from_arrays(large, 4))
    made = plain(kind.from_arrays(offsets, small))
    assert made.type == plain_type(pa.list_(small.type)) == pa.list_(pa.string())
    assert made.to_pylist() == [["x"] * 1000, ["x"] * 3000]


def test_lists_keep_their_rows_wherever_they_begin() -> None:
    values = pa.array(["a", "b", None, "", "c"])
    for inner in (values.dictionary_encode(), values.cast(pa.string_view())):
        lists = pa.ListArray.from_arrays([0, 1, 3, 3, 5], inner, mask=pa.array([False, False, True, False]))
        assert plain(lists.slice(1)).to_pylist() == [["b", None], None, ["", "c"]]


def test_each_value_counts_by_its_own_length() -> None:
    """Two thousand short ones in eight thousand rows are little."""
    for values in (
        pa.array([f"value {number}" for number in range(2000)]).cast(pa.string_view()),
        pa.array([[f"value {number}"] for number in range(2000)]),
    ):
        column = pa.DictionaryArray.from_arrays(pa.array([1999] * 8192, pa.int32()), values)
        assert plain(column).to_pylist()[-1] == values[1999].as_py()
    wide = pa.array([b"x" * 100_000], pa.binary(100_000))
    with pytest.raises(InvalidRequest, match="would take 6000000000 bytes"):
        plain(pa.DictionaryArray.from_arrays(BOMB.indices, wide))


def test_unused_dictionary_values_do_not_count() -> None:
    values = pa.array(["a", "x" * 100_000])
    column = pa.DictionaryArray.from_arrays(pa.array([0, None] * 30_000, pa.int8()), values)
    assert plain(column).to_pylist()[:2] == ["a", None]
    numbers = pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.int8()), pa.array([1.5, 2.5]))
    assert plain(numbers).to_pylist() == [2.5, 1.5]
    assert plain(values) is values


def test_a_stream_says_which_row_and_field() -> None:
    with pytest.raises(StreamError, match="row 7, field 'title': the values of one batch would take"):
        stream_column(Field(name="title", role="categorical", text=True), BOMB, 7)
