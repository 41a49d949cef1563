"""Rows of columns: packed as they were given, and refused where they are not what they should be."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.archive.model.columns import (
    Column,
    ColumnSettings,
    columns_of,
    default_row,
    fingerprint,
    row_dtype,
    rows_of,
    values_of,
)
from headrace.base.errors import ConfigError, InvalidRequest

USERS = columns_of(
    {
        "age": "int64",
        "country": "text",
        "bio": ColumnSettings(dtype="text", bytes=8, default="–"),
        "score": ColumnSettings(dtype="float32", default=0.5),
        "visits": "int32",
    }
)
GIVEN = {
    "age": np.array([7, -(2**63)]),
    "country": ["CH", "Österreich"],
    "bio": np.array([b"", "naïve".encode()], object),
    "score": [1, 2.5],
    "visits": np.array([1, 2], np.uint8),
}


def test_values_come_back_as_they_were_given() -> None:
    rows = rows_of(USERS, GIVEN)
    assert rows.dtype == row_dtype(USERS)
    assert rows.dtype.itemsize == 8 + 64 + 8 + 4 + 4
    back = values_of(USERS, rows.view(np.uint8).reshape(2, -1))
    assert {name: values.tolist() for name, values in back.items()} == {
        "age": [7, -(2**63)],
        "country": [b"CH", "Österreich".encode()],
        "bio": [b"", "naïve".encode()],
        "score": [1.0, 2.5],
        "visits": [1, 2],
    }
    assert [str(values.dtype) for values in back.values()] == [
        "int64",
        "object",
        "object",
        "float32",
        "int32",
    ]


def test_zero_rows_are_packed_and_unpacked() -> None:
    rows = rows_of(USERS, {name: [] for name in GIVEN})
    back = values_of(USERS, rows.view(np.uint8).reshape(0, rows.dtype.itemsize))
    assert [len(values) for values in back.values()] == [0] * 5


def test_a_missing_row_holds_the_defaults() -> None:
    row = default_row(USERS)
    assert {name: values[0] for name, values in values_of(USERS, row[None]).items()} == {
        "age": 0,
        "country": b"",
        "bio": "–".encode(),
        "score": 0.5,
        "visits": 0,
    }


def test_a_column_with_a_default_may_be_left_out_and_so_may_single_values() -> None:
    given = {**GIVEN, "bio": [None, "x"]}
    del given["score"]
    back = values_of(USERS, rows_of(USERS, given).view(np.uint8).reshape(2, -1))
    assert back["bio"].tolist() == ["–".encode(), b"x"]
    assert back["score"].tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("name", "values", "problem"),
    [
        (
            "age",
            [1, None],
            r"columns.age\[1\]: expected a whole number of int64, got null; give the column a d",
        ),
        ("age", [1, 2**63], r"columns.age\[1\]: expected a whole number of int64, got one that is too large"),
        ("age", [-(2**63), 2**64], r"columns.age\[1\]: .*got one that is too large"),
        ("age", [1, -(2**63) - 1], r"columns.age\[1\]: .*got one that is too large"),
        ("age", [1.0, 2], r"columns.age\[0\]: expected a whole number of int64, got 1.0"),
        ("age", [True, 2], r"columns.age\[0\]: .*got true"),
        ("age", [1], r"columns.*: expected . values, as in the other columns, got ."),
        ("age", [[1], [2]], r"columns.age\[0\]: expected a whole number of int64, got a list"),
        ("age", np.ones((2, 1), int), r"columns.age: expected one value per key, got \[2, 1\]"),
        ("age", np.array([1.0, 2.0]), r"columns.age: expected numbers of int64, got float64"),
        ("age", np.array([1, 2**63], np.uint64), r"columns.age\[1\]: .*got 9223372036854775808"),
        ("visits", [1, 2**31], r"columns.visits\[1\]: expected a whole number of int32, got 2147483648"),
        ("score", [1, float("nan")], r"columns.score\[1\]: expected a finite number of float32, got nan"),
        ("score", [1e39, 1], r"columns.score\[0\]: expected a finite number of float32, got 1e\+39"),
        ("score", ["1", 1], r"columns.score\[0\]: .* got the text '1'"),
        ("country", [1, "a"], r"columns.country\[0\]: expected a text, got 1"),
        ("country", ["a", None], r"columns.country\[1\]: expected a text, got null"),
        ("country", np.array([1, 2]), r"columns.country: expected texts, got int64"),
        ("country", ["a", b"\xff"], r"columns.country\[1\]: expected text in Unicode"),
        ("country", [b"\xc3", b"\xa4"], r"columns.country\[0\]: expected text in Unicode"),
        ("country", ["a", "\ud800"], r"columns.country\[1\]: expected text in Unicode"),
        ("country", ["a\0", "b"], r"columns.country\[0\]: expected a text that does not end with NUL"),
        ("bio", ["a", "ä" * 5], r"columns.bio\[1\]: expected a text of up to 8 bytes of UTF-8, got 10"),
        ("other", [1, 2], r"columns.other: no such column; there are .*age"),
    ],
)
def test_invalid_values_are_named(name: str, values: object, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        rows_of(USERS, {**GIVEN, name: values})  # type: ignore[dict-item]


def test_a_whole_number_beyond_float64_is_named() -> None:
    problem = r"columns\.price\[1\]: expected a finite number, got one that is too large"
    with pytest.raises(InvalidRequest, match=problem):
        rows_of(columns_of({"price": "float64"}), {"price": [2**63, 10**400]})


def test_a_column_without_a_default_must_be_given() -> None:
    with pytest.raises(
        InvalidRequest, match=r"columns\.country: expected a value per key, got no such column"
    ):
        rows_of(USERS, {name: values for name, values in GIVEN.items() if name != "country"})


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"a": "int8"}, r"columns\.a: expected one of float32, .*, or a table with a dtype, got 'int8'"),
        ({"": "text"}, r"columns: expected a column's name"),
        ({"a": ColumnSettings(dtype="text", bytes=0)}, r"columns\.a\.bytes: expected a whole number"),
        ({"a": ColumnSettings(dtype="int32", default=2**31)}, r"columns\.a\.default: expected a whole"),
        ({"a": ColumnSettings(dtype="text", bytes=2, default="abc")}, r"columns\.a\.default: .*2 bytes"),
        ({"a": ColumnSettings(dtype="text", bytes=40_000), "b": ColumnSettings(dtype="text", bytes=40_000)},
         r"expected rows of up to 65536 bytes, got 80000"),
        ({}, r"expected 1 to 1000 columns, got 0"),
    ],
)  # fmt: skip
def test_columns_that_cannot_be_are_refused(settings: dict[str, str | ColumnSettings], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        columns_of(settings)


def test_schemas_are_told_apart_by_all_but_their_order() -> None:
    age, country = Column(name="age", dtype="int64"), Column(name="country", dtype="text")
    assert fingerprint((age, country)) == fingerprint((country, age))
    others = [(age,), (age, Column(name="country", dtype="text", bytes=65)),
              (age, Column(name="country", dtype="text", default="CH")),
              (country, Column(name="age", dtype="int32"))]  # fmt: skip
    assert len({fingerprint(one) for one in [(age, country), *others]}) == 5
