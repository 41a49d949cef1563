"""What the cells of text files are read as: nothing merges, and no digit is lost, unless it is said."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.stream.text_or_number import read_column, trimmed, whole_floats


def values(*cells: str) -> list[object]:
    found: list[object] = read_column(trimmed(pa.array(cells))).values.to_pylist()
    return found


@pytest.mark.parametrize(
    ("cells", "read"),
    [
        (("1", "-2", "0"), [1, -2, 0]),
        (("1", "", "NA", "null"), [1, None, None, None]),
        ((" 1", "2 "), [1, 2]),
        (("1012.0", "7.0"), [1012, 7]),
        (("1.5", "2"), [1.5, 2.0]),
        (("1.5", "NaN", ""), [1.5, None, None]),
        (("1e-05", "2.5e+3", "-.5"), [1e-05, 2500.0, -0.5]),
        (("999999999999999999",), [999999999999999999]),
    ],
)
def test_numbers_are_numbers(cells: tuple[str, ...], read: list[object]) -> None:
    assert values(*cells) == read


@pytest.mark.parametrize(
    "cells",
    [
        ("007", "7"),
        ("01234", "12345"),  # postcodes
        ("+49301234", "+1555"),  # phone numbers
        ("12345678901234567890", "1"),  # more digits than int64 holds
        ("1234567890123456789",),
        ("12345678901234567.5",),  # more than float64 holds
        ("1E5", "2E7"),  # codes
        ("12E-4", "0E+1"),
        ("123456789012345678", "123456789012345679", "0.5"),  # ids among fractions
        ("1.1", "1.10", "1.2"),  # versions
        ("+0.5", "+49.301234"),
        ("1,5", "2,5"),
        ("12-05", "3"),
        ("NA", "DE"),
        ("a", "1"),
    ],
)
def test_numbers_that_would_merge_or_lose_digits_stay_text(cells: tuple[str, ...]) -> None:
    assert values(*cells) == list(cells)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (("007", "7"), "'007' would change if read as a number"),
        (("1012.0", "7.0"), "whole numbers are written as floats (1012.0)"),
        (("1", "NA", "NA"), "'NA' is treated as a missing number, in 2 rows"),
        (("DE", "NA"), "'NA' is treated as ordinary text, in 1 row"),
        (("1", "2", "3", "?"), "3 of 4 values are numbers, but '?' is not"),
        (("1.1", "1.10"), "'1.10' would change if read as a number"),
        (("1.23457E+11", "2.5"), "an id whose last digits a spreadsheet has cut off"),
        (("", "NA"), "it has no values to infer a type from"),
        (("1", ""), ""),
        (("1.10", "2.25"), ""),
        (("a", "b"), ""),
        (("1.5", "2.5"), ""),
    ],
)
def test_surprising_conversions_are_reported(cells: tuple[str, ...], said: str) -> None:
    told = read_column(trimmed(pa.array(cells))).said
    assert said in told
    assert bool(said) == bool(told)


def test_whole_floats_are_written_as_requests_write_them() -> None:
    cells = pa.array(["1012.0", "1012", "1.50", "a.0", None, "-3.00"])
    assert whole_floats(cells).to_pylist() == ["1012", "1012", "1.50", "a.0", None, "-3"]
