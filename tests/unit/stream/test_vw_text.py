"""VW's text: what a line says, and what is not supported."""

from __future__ import annotations

import pytest

from headrace.base.errors import StreamError
from headrace.stream.vw_text import Example, parse_line, read_batches

LINES = {
    "1 |u a b": Example(1, 1.0, {"u": ["a", "b"]}),
    "-1 0.5 |u a": Example(0, 0.5, {"u": ["a"]}),
    "0 'tag|u a": Example(0, 1.0, {"u": ["a"]}),
    "1 2 tag|u a": Example(1, 2.0, {"u": ["a"]}),
    "1|u a": Example(1, 1.0, {"u": ["a"]}),
    "1 2|u a": Example(1, 1.0, {"u": ["a"]}),
    "1 | a b": Example(1, 1.0, {"features": ["a", "b"]}),
    "1 |u a |i x:2.5 y:1 |u b": Example(1, 1.0, {"u": ["a", "b"], "i": ["y"]}, {"i.x": 2.5}),
    "1 |u:1 http:1": Example(1, 1.0, {"u": ["http"]}),
    "1 |u": Example(1, 1.0, {"u": []}),
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_says_an_example(line: str) -> None:
    assert parse_line(line, 0) == LINES[line]


@pytest.mark.parametrize(
    ("line", "field", "said"),
    [
        ("1 u a", "", "no '|'"),
        ("|u a", "label", "label"),
        ("3 |u a", "label", "0 or -1 or 1"),
        ("1:0.5:0.2 |u a", "label", "0 or -1 or 1"),
        ("shared |u a", "label", "0 or -1 or 1"),
        ("1 -2 |u a", "weight", "0 or more"),
        ("1 2 3 |u a", "", "base predictions"),
        ("1 |u:0.5 a", "u", "weights of namespaces"),
        ("1 |u a:x", "u.a", "finite number"),
        ("1 |u a:nan", "u.a", "finite number"),
    ],
)
def test_unsupported_syntax_is_named(line: str, field: str, said: str) -> None:
    with pytest.raises(StreamError, match=said) as caught:
        parse_line(line, 5)
    assert (caught.value.row, caught.value.field) == (5, field)


def test_numbers_are_columns_of_their_own_also_where_they_are_1_or_left_out() -> None:
    lines = ["1 |n x:2.5", "", "0 |n x:1", "0 |u a"]
    (batch,) = read_batches([lines], None)
    assert batch.to_pydict() == {
        "label": [1, 0, 0],
        "weight": [1.0, 1.0, 1.0],
        "u": [None, None, ["a"]],
        "n.x": [2.5, 1.0, 0.0],
    }


def test_a_number_without_a_column_is_refused_with_the_way_out() -> None:
    batches = read_batches([["1 |u a"], ["1 |u b"], ["0 |n x:2.5"]], None)
    next(batches)
    next(batches)
    with pytest.raises(StreamError, match="--schema") as caught:
        next(batches)
    assert (caught.value.row, caught.value.field) == (2, "n.x")


def test_known_columns_are_there_whatever_the_first_lines_hold() -> None:
    first, second = read_batches([["1 |u a"], ["0 |v b |n x:2"]], ["n.x"], ["u", "v"])
    assert first.schema == second.schema
    assert second.to_pydict()["v"] == [["b"]]


def test_names_with_dots_are_told_apart() -> None:
    (batch,) = read_batches([["1 |a.b x.y:2 z", "0 |a.b x.y:1 z"]], None)
    assert batch.to_pydict() == {
        "label": [1, 0],
        "weight": [1.0, 1.0],
        "a.b": [["z"], ["z"]],
        "a.b.x.y": [2.0, 1.0],
    }


@pytest.mark.parametrize("name", ["label", "weight"])
def test_a_namespace_with_the_name_of_another_column_is_refused(name: str) -> None:
    lines = ["1 |u a", f"1 |u b |{name} a b"]
    with pytest.raises(StreamError, match="rename the namespace") as caught:
        next(read_batches([lines], None))
    assert (caught.value.row, caught.value.field) == (1, name)
    (batch,) = read_batches([[], lines], [], ["u"])  # the columns of a schema that leaves it out
    assert batch.to_pydict() == {"label": [1, 1], "weight": [1.0, 1.0], "u": [["a"], ["b"]]}
