"""Errors that name the one value of an input that does not fit."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.base.tensors import STRING
from headrace.model.misfits import misfit, position_in, ragged, said
from headrace.model.servable import TensorSpec

NUMBER = TensorSpec("age", np.dtype(np.float64), ())
WHOLE = TensorSpec("age", np.dtype(np.uint8), (2, 3))
FLAG = TensorSpec("flag", np.dtype(np.bool_), ())
ANY = TensorSpec("scores", np.dtype(np.float64), (None,))


@pytest.mark.parametrize(
    ("spec", "value", "place", "text"),
    [
        (NUMBER, "4", (0,), "age: row 0: expected a number (FP64), got '4'; send it without quotes"),
        (NUMBER, "four", (7,), "age: row 7: expected a number (FP64), got 'four'"),
        (NUMBER, None, (0,), "age: row 0: expected a number (FP64), got null"),
        (NUMBER, {}, (0,), "age: row 0: expected a number (FP64), got an object"),
        (
            NUMBER,
            4,
            (),
            "age: expected a list of rows, got 4; send a list, with one value for each row; "
            "the input is age FP64 [rows]",
        ),
        (WHOLE, 1.5, (0, 1, 2), "age: row 0, position [1, 2]: expected a whole number (UINT8), got 1.5"),
        (
            WHOLE,
            300,
            (0, 0, 0),
            "age: row 0, position [0, 0]: expected a whole number (UINT8) from 0 to 255, got 300",
        ),
        (WHOLE, "1.5", (0, 0, 0), "age: row 0, position [0, 0]: expected a whole number (UINT8), got '1.5'"),
        (FLAG, 0, (2,), "flag: row 2: expected true or false (BOOL), got 0; send false"),
        (FLAG, 2, (2,), "flag: row 2: expected true or false (BOOL), got 2"),
    ],
)
def test_the_error_names_row_value_and_way_out(
    spec: TensorSpec, value: object, place: tuple[int, ...], text: str
) -> None:
    assert misfit(spec, value, place).message == text


@pytest.mark.parametrize(
    "text", ["nan", "inf", "NaN", "1_000", "+4", "04", "\u0663", "1e999", "", "[4]", "\ud800"]
)
@pytest.mark.parametrize("spec", [NUMBER, TensorSpec("count", np.dtype(np.int64), ())])
def test_a_text_that_is_no_number_of_json_is_not_to_be_sent_without_quotes(
    spec: TensorSpec, text: str
) -> None:
    assert misfit(spec, text, (0,)).message.endswith(f"got {said(text)}")
    assert misfit(spec, "-12", (0,)).message.endswith("got '-12'; send it without quotes")
    assert misfit(NUMBER, "1.5e3", (0,)).message.endswith("got '1.5e3'; send it without quotes")


def test_long_values_are_shortened() -> None:
    assert len(misfit(NUMBER, "4" * 10_000, (0,)).message) < 200
    assert (said(10**10_000), said(-(10**10_000))) == ("a larger number", "a smaller number")
    assert said(b"\xff") == repr(b"\xff")


def test_the_number_of_an_element_gives_its_row_if_the_lengths_are_fixed() -> None:
    assert position_in(NUMBER, 5) == "row 5: "
    assert position_in(WHOLE, 11) == "row 1, position [1, 2]: "
    assert position_in(ANY, 5) == "value 5: "


def test_the_first_row_of_another_length_is_named() -> None:
    text = ragged(ANY, [[1.0], [1.0], [1.0, 2.0]]).message
    assert text.startswith(
        "scores: row 2: expected 1 value as in row 0 (scores FP64 [rows, any]), got 2; give"
    )
    words = TensorSpec("words", STRING, (2,))
    assert ragged(words, [["a"]]).message == "words: row 0: expected 2 values (words BYTES [rows, 2]), got 1"
    assert "ragged" in ragged(WHOLE, [[[1], [1, 2]], [[1], [1]]]).message
