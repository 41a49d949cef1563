"""The quick look at cells recognises nothing as a plain number that a close look would not."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.stream.text_or_number import (
    are_numbers,
    are_plain_integers,
    are_plain_numbers,
    are_whole,
    may_hold_words,
)

NUMERALS = st.one_of(
    st.integers(-(10**20), 10**20).map(str),
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(str),
    st.text("0123456789", max_size=20),
    st.text("+-.0123456789eE", max_size=8),
    st.sampled_from(["", "007", "0", "-0", "-0.5", "0.5", "+1", "NA", ".5", "5.", "1e-05", "-"]),
)
CELLS = st.lists(st.one_of(st.none(), NUMERALS), max_size=8)
KINDS = st.sampled_from([pa.string(), pa.large_string()])


@given(CELLS, KINDS, st.integers(0, 3))
def test_plain_numbers_need_no_closer_look(cells: list[str | None], kind: pa.DataType, start: int) -> None:
    texts = pa.array(cells, kind)[start:]
    if are_plain_integers(texts):
        texts.cast(pa.int64())
        assert pc.all(are_whole(texts), min_count=0).as_py()
    if are_plain_numbers(texts):
        texts.cast(pa.float64())
        assert pc.all(are_numbers(texts), min_count=0).as_py()
    if not may_hold_words(texts):
        assert not pc.any(pc.is_in(texts, pa.array(["NA", "null", "\\N"], kind))).as_py()


@pytest.mark.parametrize("cells", [["1", "-7", None, "0", "999999999999999999"], [], [None]])
def test_integers_are_recognised(cells: list[str | None]) -> None:
    assert are_plain_integers(pa.array(cells, pa.string()))


@pytest.mark.parametrize("cells", [["1.5", "-0.25", None, "12", ".5"], ["0.8444218515250481"], ["-0.0"]])
def test_numbers_are_recognised(cells: list[str | None]) -> None:
    assert are_plain_numbers(pa.array(cells, pa.string()))
