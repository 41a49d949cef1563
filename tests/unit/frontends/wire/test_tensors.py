"""Tensors as they come off the wire, checked and turned into columns."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.base.errors import InvalidRequest
from headrace.frontends.wire.tensors import WireTensor, as_array, check
from headrace.frontends.wire.texts import join_strings
from headrace.model.servable import Signature
from tests.unit.frontends.oip.doubles import spec

TWO = Signature("serving_default", (spec("a", "FP32", 2), spec("b", "INT64", None)), (spec("y", "FP32"),))
A = WireTensor("a", "FP32", (1, 2), np.float32([1, 2]).tobytes())
B = WireTensor("b", "INT64", (1, 3), np.int64([1, 2, 3]).tobytes())


def test_raw_bytes_of_the_right_datatype_are_columns_as_they_are_in_the_signatures_order() -> None:
    inputs = check(TWO, [B, A])
    assert inputs.columns[0] is A.values
    assert inputs.columns[1] is B.values
    assert inputs.rows == 1
    assert inputs.layout is TWO.layout(((2,), (3,)))


def test_the_same_shapes_give_the_same_layout_however_they_came() -> None:
    as_half = A._replace(datatype="FP16", values=np.float16([1, 2]).tobytes())
    assert check(TWO, [as_half, B]).layout is check(TWO, [A, B]).layout


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ([A], "missing input 'b'"),
        ([A, B, A], "input 'a' is given twice"),
        ([A, B._replace(name="c")], "missing input 'b', unknown input 'c'"),
        ([A, B, B._replace(name="c")], "unknown input 'c'"),
        ([A._replace(datatype="FP64", values=bytes(16)), B], r"a: expected a FP32 \[rows, 2\], got FP64"),
        ([A._replace(datatype="FP8"), B], "a: unknown datatype 'FP8'; expected one of FP32"),
        ([A._replace(shape=(2,)), B], r"a: expected a FP32 \[rows, 2\], got shape \[2\]"),
        ([A._replace(shape=()), B], r"a: expected 4 bytes"),
        ([A._replace(shape=(), values=bytes(4)), B], r"a: expected a list of rows, got 0.0; send a list"),
        ([A._replace(shape=(2, 1)), B], r"a: expected a FP32 \[rows, 2\], got shape \[2, 1\]"),
        ([A._replace(shape=(1, -2)), B], r"a: expected sizes of 0 or more in the shape, got \[1, -2\]"),
        ([A._replace(shape=(-1, -2)), B], "a: expected sizes of 0 or more"),
        ([A._replace(shape=(1 << 62, 1 << 62)), B], "a: shape .* is too large"),
        ([A, B._replace(shape=(1 << 60, 0), values=b"")], "b: shape .* is too large"),
        ([A._replace(shape=(1,) * 40), B], "a: expected at most 32 dimensions, got 40"),
        ([A._replace(values=bytes(7)), B], r"a: expected 8 bytes for FP32 \[1, 2\], got 7"),
        ([A._replace(values=bytes(16)), B], r"a: expected 8 bytes for FP32 \[1, 2\], got 16"),
        ([A._replace(shape=(2, 2), values=bytes(16)), B], "b: has 1 row where a has 2"),
        (
            [A._replace(shape=(0, 2), values=b""), B._replace(shape=(0, 3), values=b"")],
            "a: expected at least one row",
        ),
    ],
)
def test_wrong_tensors_are_refused_with_the_reason(tensors: list[WireTensor], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        check(TWO, tensors)


def test_rows_without_values_are_allowed_where_the_model_says_so() -> None:
    inputs = check(TWO, [A, B._replace(shape=(1, 0), values=b"")])
    assert inputs.layout.shapes == ((2,), (0,))


def test_bfloat16_is_widened_exactly() -> None:
    values = np.array([1.0, -2.5, np.inf, 3.3895314e38], np.float32)
    raw = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    assert np.array_equal(
        as_array(WireTensor("x", "BF16", (4,), raw)), np.array([1, -2.5, np.inf, 3.3895314e38], "f4")
    )
    signature = Signature("serving_default", (spec("x", "FP32"),), ())
    assert check(signature, [WireTensor("x", "BF16", (4,), raw)]).rows == 4


def test_bfloat16_does_not_go_where_it_would_be_rounded() -> None:
    signature = Signature("serving_default", (spec("x", "FP16"),), ())
    with pytest.raises(InvalidRequest, match="expected x FP16"):
        check(signature, [WireTensor("x", "BF16", (1,), bytes(2))])


def test_any_byte_but_zero_is_true() -> None:
    signature = Signature("serving_default", (spec("x", "BOOL"),), ())
    (column,) = check(signature, [WireTensor("x", "BOOL", (4,), b"\0\1\2\xff")]).columns
    assert bytes(memoryview(column).cast("B")) == b"\0\1\1\1"


def test_strings_keep_every_byte() -> None:
    strings = [b"", b"a\0", b"\xff", "č".encode()]
    raw = join_strings(strings)
    assert raw.startswith(b"\0\0\0\0\2\0\0\0a\0")
    for values in (raw, strings, as_array(WireTensor("x", "BYTES", (4,), raw))):
        assert as_array(WireTensor("x", "BYTES", (2, 2), values)).ravel().tolist() == strings


def test_the_number_of_strings_must_fit_the_shape() -> None:
    with pytest.raises(InvalidRequest, match=r"x: expected 3 strings for its shape, got 2"):
        as_array(WireTensor("x", "BYTES", (3,), [b"a", b"b"]))
