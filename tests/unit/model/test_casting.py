"""Casts between declared and given dtypes: what does not fit is an error, never another value."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.base.errors import InvalidRequest
from headrace.base.tensors import STRING
from headrace.model.casting import DoesNotFit, cast, may_cast, typed
from headrace.model.servable import TensorSpec

SMALL = TensorSpec("x", np.dtype(np.int8), ())
TEXT = TensorSpec("t", STRING, ())
FLOAT = TensorSpec("x", np.dtype(np.float32), ())


@pytest.mark.parametrize(
    ("values", "given", "wanted"),
    [
        ([127, -128], np.int64, np.int8),
        ([255, 0], np.int64, np.uint8),
        ([0, 2**63], np.uint64, np.uint64),
        ([True, False], np.bool_, np.int8),
        ([1, 2], np.int64, np.float32),
        ([65504.0], np.float64, np.float16),
        ([float("inf"), float("-inf"), float("nan")], np.float64, np.float16),
        ([1.0], np.float16, np.float64),
        ([], np.int64, np.int8),
    ],
)
def test_what_fits_is_cast(values: list[float], given: type, wanted: type) -> None:
    made = cast(np.array(values, given), np.dtype(wanted))
    assert made.dtype == wanted
    assert np.array_equal(made, np.array(values, wanted), equal_nan=made.dtype.kind == "f")


@pytest.mark.parametrize(
    ("values", "given", "wanted", "said"),
    [
        ([1, 257], np.int64, np.int8, "257 does not fit in INT8"),
        ([-1, 1], np.int64, np.uint8, "-1 does not fit in UINT8"),
        ([2**64 - 1], np.uint64, np.int64, "18446744073709551615 does not fit in INT64"),
        ([1.0, 1e300], np.float64, np.float32, "1e[+]300 does not fit in FP32"),
        ([float("nan"), -70000.0], np.float32, np.float16, "-70000.0 does not fit in FP16"),
        ([70000], np.int64, np.float16, "70000 does not fit in FP16"),
    ],
)
def test_what_does_not_fit_is_an_error(values: list[float], given: type, wanted: type, said: str) -> None:
    with pytest.raises(DoesNotFit, match=said):
        cast(np.array(values, given), np.dtype(wanted))


@pytest.mark.parametrize("given", [np.int64, np.uint8, np.bool_, np.float32])
@pytest.mark.parametrize("wanted", [np.int8, np.uint64, np.float16, np.bool_])
def test_only_integers_become_integers(given: type, wanted: type) -> None:
    allowed = {"i": "iub", "u": "iub", "f": "iufb", "b": "b"}[np.dtype(wanted).kind]
    assert may_cast(np.dtype(given), np.dtype(wanted)) == (np.dtype(given).kind in allowed)


def test_floats_are_not_cut_to_integers() -> None:
    with pytest.raises(DoesNotFit, match="FP64 cannot become INT8 without losing values"):
        cast(np.array([1.5]), np.dtype(np.int8))


def test_an_array_of_the_dtype_is_not_copied() -> None:
    array = np.arange(3.0)
    assert cast(array, array.dtype) is array


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


def test_floats_may_come_as_integers_of_more_than_64_bits() -> None:
    assert typed(FLOAT, [1.5, 2**64]).tolist() == [1.5, 2.0**64]


@pytest.mark.parametrize(
    ("spec", "value", "said"),
    [
        (SMALL, [128], "128 does not fit in INT8"),
        (SMALL, [1.0], "convert it before sending"),
        (SMALL, ["1"], r"^x: row 0: expected a whole number \(INT8\), got '1'; send it without quotes$"),
        (SMALL, [1, None], "mix of types"),
        (
            SMALL,
            [1, 2**64],
            r"^x: row 1: expected a whole number \(INT8\) from -128 to 127, got a larger number$",
        ),
        (
            FLOAT,
            [[1.5, -(10**400)]],
            r"^x: row 0, column 1: expected a number \(FP32\) from .* a smaller number$",
        ),
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
