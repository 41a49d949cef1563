"""Columns with a dictionary: a few bytes of indices do not become gigabytes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.base.errors import InvalidRequest, StreamError
from headrace.stream.column_conversion import stream_column
from headrace.stream.dictionaries import MOST_BYTES, plain
from headrace.stream.schema import Field

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


def test_what_nobody_names_does_not_count() -> None:
    values = pa.array(["a", "x" * 100_000])
    column = pa.DictionaryArray.from_arrays(pa.array([0, None] * 30_000, pa.int8()), values)
    assert plain(column).to_pylist()[:2] == ["a", None]
    numbers = pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.int8()), pa.array([1.5, 2.5]))
    assert plain(numbers).to_pylist() == [2.5, 1.5]
    assert plain(values) is values


def test_a_stream_says_which_row_and_field() -> None:
    with pytest.raises(StreamError, match="row 7, field 'title': the values of one batch would take"):
        stream_column(Field(name="title", role="categorical", text=True), BOMB, 7)
