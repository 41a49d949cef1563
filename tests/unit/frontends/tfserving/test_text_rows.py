"""Rows with texts in JSON are packed, and mean what they mean as objects."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.base.errors import HeadraceError
from headrace.config import Limits
from headrace.frontends.calls import HttpCall
from headrace.frontends.tfserving import rest
from headrace.model.packed_columns import HEAD, PackedColumns
from tests.unit.frontends.words import plain, words

ROW = {"user": "ann", "words": ["red", ""], "price": 0.5}


def decoded(model: Any, rows: Any, decode: Any = rest.predict_inputs) -> Any:
    call = HttpCall("POST", "", {}, body=json.dumps({"instances": rows}, ensure_ascii=False).encode())
    return decode(model, call, Limits())[1]


def general(model: Any, rows: Any) -> Any:
    return decoded(model, rows, rest.general_predict_inputs)


@pytest.mark.parametrize(
    "rows",
    [
        [ROW],
        [ROW, {"user": "", "words": ["é", "😀"], "price": 2}],
        [{**ROW, "user": f"user {number}"} for number in range(40)],
        [{**ROW, "user": "", "words": ["", ""]}],
    ],
)
def test_rows_of_texts_are_packed_and_mean_the_same(rows: Any) -> None:
    model = words()
    for _ in range(2):  # what requests of so many rows have in common is made once
        found, wanted = decoded(model, rows), general(model, rows)
        assert isinstance(found.columns, PackedColumns)
        assert found.layout is wanted.layout
        assert found.rows == wanted.rows == len(rows)
        assert list(map(plain, found.columns)) == list(map(plain, wanted.columns))
        places = found.columns.places.tolist()
        assert places[:HEAD] == [len(places), len(rows), len(found.columns.message)]
        texts = [text.encode() for row in rows for text in (row["user"], *row["words"])]
        assert found.columns.text_bytes == sum(map(len, texts))


@pytest.mark.parametrize(
    "row",
    [
        {**ROW, "user": {"b64": "YW5u"}},
        {**ROW, "user": None},
        {**ROW, "user": 3},
        {**ROW, "words": ["one"]},
        {**ROW, "words": "one"},
        {**ROW, "price": "0.5"},
        {"user": "ann", "price": 0.5},
        {**ROW, "more": 1},
        "ann",
    ],
)
def test_what_is_unusual_is_looked_at_closely(row: Any) -> None:
    model, said = words(), []
    for decode in (decoded, general):
        try:
            said.append(list(map(plain, decode(model, [ROW, row]).columns)))
        except HeadraceError as error:
            said.append([type(error), error.message])
    assert said[0] == said[1]


def test_half_a_surrogate_pair_is_refused_by_name() -> None:
    body = json.dumps({"instances": [{**ROW, "user": "\ud800"}]}).encode()
    for _ in range(2):
        with pytest.raises(HeadraceError):
            rest.predict_inputs(words(), HttpCall("POST", "", {}, body=body), Limits())


def test_models_that_want_objects_get_them() -> None:
    assert not isinstance(decoded(words(takes_packed=False), [ROW]).columns, PackedColumns)
