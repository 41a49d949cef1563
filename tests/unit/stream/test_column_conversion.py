"""Columns of files become columns of a stream, wherever their values begin in Arrow's buffers."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.base.errors import StreamError
from headrace.stream.column_conversion import stream_column
from headrace.stream.schema import Field


@pytest.mark.parametrize("make", [pa.ListArray, pa.LargeListArray])
def test_lists_may_begin_behind_other_values(make: type[pa.ListArray] | type[pa.LargeListArray]) -> None:
    lists = make.from_arrays([2, 3, 5], pa.array([1, 2, 3, 4, 5]))
    assert stream_column(Field(name="c", role="categorical", values=4), lists, 0).to_pylist() == [[3], [4, 5]]
    vectors = make.from_arrays([2, 4, 6], pa.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
    found = stream_column(Field(name="v", role="vector", size=2), vectors, 0)
    assert found.to_pylist() == [[3.0, 4.0], [5.0, 6.0]]
    field = Field(name="b", role="categorical", keys="bucket", buckets=5, values=4)
    with pytest.raises(StreamError, match="0 to 4") as caught:
        stream_column(field, lists, 7)
    assert caught.value.row == 8
