"""Values of an input in the model's dtype: numbers that fit are cast, and nothing is completed."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.base.errors import InvalidRequest
from headrace.base.tensors import STRING
from headrace.model.servable import TensorSpec
from headrace.model.typed_inputs import typed

SMALL = TensorSpec("x", np.dtype(np.int8), ())
TEXT = TensorSpec("t", STRING, ())


def test_numbers_that_fit_are_cast_in_any_shape() -> None:
    made = typed(SMALL, [[1, 2], [3, 127]])
    assert made.dtype == np.int8
    assert made.tolist() == [[1, 2], [3, 127]]
    assert typed(SMALL, np.array([True])).tolist() == [1]


def test_an_array_of_the_dtype_is_returned_as_it_is() -> None:
    given = np.array([1, 2], np.int8)
    assert typed(SMALL, given, exact=True) is given


def test_texts_become_bytes() -> None:
    assert typed(TEXT, ["ä", b"\xff"]).tolist() == ["ä".encode(), b"\xff"]
    assert typed(TEXT, np.array([["a"], ["b"]])).tolist() == [[b"a"], [b"b"]]


@pytest.mark.parametrize(
    ("spec", "value", "said"),
    [
        (SMALL, [128], "128 does not fit in INT8"),
        (SMALL, [1.0], "convert it before sending"),
        (SMALL, ["1"], r"^x: row 0: expected a whole number \(INT8\), got '1'; send it without quotes$"),
        (SMALL, [1, None], "mix of types"),
        (SMALL, [[1], [1, 2]], "ragged or not as deep"),
        (TEXT, ["a", None], "row 1: expected text or bytes, got null"),
        (TEXT, np.array([1]), "send text or bytes"),
        (TEXT, ["\ud800"], "row 0: text that is not Unicode"),
    ],
)
def test_a_value_that_does_not_fit_is_an_error_that_names_the_input(
    spec: TensorSpec, value: object, said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said) as caught:
        typed(spec, value)
    assert caught.value.field == spec.name


def test_declared_dtypes_are_only_widened() -> None:
    with pytest.raises(InvalidRequest, match="convert it before sending"):
        typed(SMALL, np.array([1], np.int16), exact=True)
