"""Casts between declared and given dtypes: what does not fit is an error, never another value."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.model.casting import DoesNotFit, cast, may_cast


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
