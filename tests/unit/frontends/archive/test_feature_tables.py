"""Feature tables over REST and gRPC: columns in and out, and what is wrong with them by its name."""

from __future__ import annotations

import random

import numpy as np
import pytest

from headrace.base.errors import TooLarge
from headrace.config import Limits
from headrace.frontends.archive.service import spaces
from tests.unit.frontends.archive.doors import a_door, ask, error_of, post

GIVEN = {"age": [30, 40], "country": ["CH", "Ö"], "score": [0.25, 0.5]}
ROW = np.dtype([("age", "<i8"), ("country", "S8"), ("score", "<f4")])
COLUMNS = [
    {"name": "age", "dtype": "int64", "size_bytes": 8},
    {"name": "country", "dtype": "text", "size_bytes": 8},
    {"name": "score", "dtype": "float32", "size_bytes": 4},
]


def test_what_was_put_is_found_and_what_was_not_is_the_defaults() -> None:
    with a_door() as service:
        assert post(service, "users:put", {"keys": ["a", "b"], "columns": GIVEN}) == {}
        assert post(service, "users:lookup", {"keys": ["b", "c", "a"]}) == {
            "columns": {"age": [40, 0, 30], "country": ["Ö", "??", "CH"], "score": [0.5, 0, 0.25]},
            "found": [True, False, True],
            "version": 1,
        }
        written = post(service, "users:lookup", {"keys": ["a", "c"], "written": True})["written"]
        assert written[0] > 1e12
        assert written[1] == 0
        assert post(service, "users:lookup", {"keys": []})["columns"] == {
            "age": [],
            "country": [],
            "score": [],
        }


def test_many_rows_are_taken_and_printed_in_slices_as_few_are() -> None:
    draw = random.Random(1)
    keys = [f"key {number}" for number in range(9000)]
    given = {
        "age": [draw.randrange(-(2**40), 2**40) for _ in keys],
        "country": [draw.choice(["CH", "", '"\\\n', "日本", None]) for _ in keys],
        "score": [draw.randrange(1000) / 8 for _ in keys],
    }
    with a_door() as service:
        assert post(service, "users:put", {"keys": keys, "columns": given}) == {}
        answer = post(service, "users:lookup", {"keys": [*keys, "new"]})
    countries = ["??" if country is None else country for country in given["country"]]
    assert answer["columns"] == {
        "age": [*given["age"], 0],
        "country": [*countries, "??"],
        "score": [*given["score"], 0],
    }
    assert answer["found"] == [True] * 9000 + [False]


def test_wide_rows_are_held_before_they_are_made_and_so_limited() -> None:
    """A text has its full room in each row: a few bytes of a body become 60,000 of a row."""
    keys = [f"k{one}" for one in range(200)]
    with a_door(limits=Limits(max_expanded_bytes=100 * 60_008)) as service:
        for columns in ({"text": ["a"] * 200, "n": [1] * 200}, {"n": [1] * 200}):
            error = error_of(
                lambda columns=columns: post(service, "texts:put", {"keys": keys, "columns": columns})
            )
            assert isinstance(error, TooLarge)
            assert "would take 12001600 bytes; expected at most 6000800 in a request" in error.message
        column = {"name": "n", "dtype": "int64", "size_bytes": 8}
        rows = {"space": "texts", "keys": keys, "dtype": "row", "columns": [column]}
        error = error_of(lambda: ask(service, "Put", vectors=bytes(200 * 8), **rows))
        assert isinstance(error, TooLarge)
        assert post(service, "texts:lookup", {"keys": keys[:3]})["found"] == [False] * 3


def test_wide_rows_are_taken_part_by_part() -> None:
    keys = [f"k{one}" for one in range(200)]
    texts = [f"text {one}" * (one * 30) for one in range(200)]
    with a_door() as service:
        given = {"text": [text or None for text in texts], "n": list(range(200))}
        assert post(service, "texts:put", {"keys": keys, "columns": given}) == {}
        answer = post(service, "texts:lookup", {"keys": keys})
        assert answer["columns"] == {"text": ["none", *texts[1:]], "n": given["n"]}
        error = error_of(
            lambda: post(service, "texts:put", {"keys": keys, "columns": {**given, "n": [*range(199), "x"]}})
        )
        assert error.message.startswith("columns.n[199]: expected a whole number of int64, got the text")


def test_an_answer_that_would_be_too_long_is_refused() -> None:
    with a_door(limits=Limits(max_expanded_bytes=200_000)) as service:
        error = error_of(lambda: post(service, "users:lookup", {"keys": [f"k{one}" for one in range(5000)]}))
        assert isinstance(error, TooLarge)
        assert "the answer would take about 280000 bytes as text; expected at most 200000" in error.message


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({}, "columns: expected an object with a list of values for each column, got null"),
        (
            {"vectors": [[1.0]]},
            "columns: expected an object with a list of values for each column, got vectors",
        ),
        ({"columns": []}, "columns: expected an object with a list of values for each column, got a list"),
        ({"columns": {"age": 3}}, "columns.age: expected a list of 2 values, one per key, got 3"),
        ({"columns": {"age": [1]}}, "columns.age: expected a list of 2 values, one per key, got a list of 1"),
        ({"columns": {"age": [1, 2]}}, "columns.score: expected a value per key, got no such column"),
        ({"columns": GIVEN | {"x": [1, 2]}}, "columns.x: no such column; there are"),
        (
            {"columns": GIVEN | {"age": [1, "2"]}},
            "columns.age[1]: expected a whole number of int64, got the t",
        ),
        (
            {"columns": GIVEN | {"age": [1, None]}},
            "columns.age[1]: expected a whole number of int64, got null",
        ),
        ({"columns": GIVEN | {"score": [1, 1e300]}}, "columns.score[1]: expected a finite number of float32"),
        (
            {"columns": GIVEN | {"country": ["a", "b" * 9]}},
            "columns.country[1]: expected a text of up to 8 b",
        ),
        ({"columns": GIVEN, "rows": 1}, "rows: unknown; expected one of columns, keys, vectors, version"),
    ],
)
def test_what_is_wrong_is_named(body: dict[str, object], problem: str) -> None:
    with a_door() as service:
        error = error_of(lambda: post(service, "users:put", {"keys": ["a", "b"]} | body))
        assert error.message.startswith(problem)


def test_a_wrong_value_has_its_number_among_all() -> None:
    keys = [f"key {number}" for number in range(5000)]
    ages: list[object] = [1] * 5000
    ages[4321] = "x"
    with a_door() as service:
        body = {"keys": keys, "columns": {"age": ages, "score": [1] * 5000}}
        assert "columns.age[4321]: " in error_of(lambda: post(service, "users:put", body)).message


@pytest.mark.parametrize("count", [1, 256, 257, 5000])
def test_rows_are_raw_bytes_over_grpc_and_say_how_they_lie(count: int) -> None:
    keys, rows = [f"key {number:040}" for number in range(count)], np.zeros(count, ROW)
    rows["age"], rows["country"], rows["score"] = np.arange(count), b"CH", np.arange(count) / 4
    with a_door() as service:
        ask(service, "Put", space="users", keys=keys, vectors=rows.tobytes(), dtype="row", columns=COLUMNS)
        answer = ask(service, "Lookup", space="users", keys=[*keys, "new"], written=True)
    assert (answer.dtype, answer.dimension, answer.version) == ("row", ROW.itemsize, 1)
    told = [{"name": one.name, "dtype": one.dtype, "size_bytes": one.size_bytes} for one in answer.columns]
    assert told == COLUMNS
    found = np.frombuffer(answer.vectors, ROW)
    assert np.array_equal(found[:-1], rows)
    assert found[-1].tolist() == (0, b"??", 0.0)
    assert answer.found == b"\1" * count + b"\0"


def test_columns_may_come_in_another_order_and_those_with_defaults_be_left_out() -> None:
    narrow = np.array([(0.5, 7)], [("score", "<f8"), ("age", "<i4")])
    columns = [{"name": "score", "dtype": "float64"}, {"name": "age", "dtype": "int32"}]
    with a_door() as service:
        ask(service, "Put", space="users", keys=["a"], vectors=narrow.tobytes(), dtype="row", columns=columns)
        answer = ask(service, "Lookup", space="users", keys=["a"])
        assert np.frombuffer(answer.vectors, ROW)[0].tolist() == (7, b"??", 0.5)


def test_what_is_wrong_is_named_over_grpc() -> None:
    good = {"space": "users", "keys": ["a"], "dtype": "row", "columns": COLUMNS, "vectors": bytes(20)}

    def told(**other: object) -> str:
        with a_door() as service:
            return str(error_of(lambda: ask(service, "Put", **(good | other))).message)

    assert told(vectors=bytes(19)) == "vectors: expected 1 rows of 20 bytes, one per key, got 19 bytes"
    assert told(keys=[]) == "vectors: expected 0 rows of 20 bytes, one per key, got 20 bytes"
    assert told(columns=[COLUMNS[0]] * 2).startswith("columns: expected 1 to 1000 columns, each once")
    assert told(columns=[], vectors=b"").startswith("columns: expected 1 to 1000 columns, each once, got 0")
    assert told(columns=[{"name": "age", "dtype": "i8"}]).startswith("columns.age: expected a name, one of f")
    assert told(columns=[{"name": "a", "dtype": "text"}]).startswith("columns.a: expected a name, one of fl")
    assert told(columns=[{"dtype": "int64"}], vectors=bytes(8)).startswith("columns.: expected a name, one o")
    assert told(columns=[COLUMNS[0] | {"size_bytes": 4}]) == "columns.age: expected size_bytes of 8, got 4"
    assert told(columns=[COLUMNS[0]], vectors=bytes(8)).startswith("columns.score: expected a value per key")
    assert told(space="items").startswith("columns: expected vectors, as for any space that is not a feature")
    assert told(dtype="float32").startswith("vectors: expected rows of columns, as for any feature table")
    text = np.array([(1, b"\xff", 1)], ROW).tobytes()
    assert told(vectors=text).startswith("columns.country[0]: expected text in Unicode")


def test_a_table_is_described_with_its_columns() -> None:
    with a_door() as service:
        (told,) = spaces(service.archive, "users")
        assert told["versions"][0]["columns"] == COLUMNS  # type: ignore[index]
        (space,) = ask(service, "Describe", space="users").spaces
    assert (space.versions[0].dtype, space.versions[0].answered) == ("row", "row")
    assert [one.name for one in space.versions[0].columns] == ["age", "country", "score"]


def test_more_columns_than_any_table_has_are_refused() -> None:
    columns = [{"name": f"c{number}", "dtype": "int64"} for number in range(1001)]
    put = {"space": "users", "keys": ["a"], "dtype": "row", "columns": columns, "vectors": bytes(8008)}
    with a_door() as service:
        error = error_of(lambda: ask(service, "Put", **put))
    assert "columns: expected 1 to 1000 columns, each once, got 1001" in error.message
