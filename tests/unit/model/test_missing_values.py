"""What is put in for values that a request leaves out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import InvalidRequest, TooLarge
from headrace.base.tensors import BY_OIP
from headrace.model.missing_values import complete, fitted
from headrace.model.servable import Expanded, Signature, TensorSpec


def spec(datatype: str, *shape: int | None, absent: Any = None, shorter: bool = False) -> TensorSpec:
    return TensorSpec("x", BY_OIP[datatype].dtype, shape, absent=absent, shorter=shorter)


TAGS = spec("BYTES", 3, absent="", shorter=True)
IDS = spec("INT64", 2, absent=-1, shorter=True)


@pytest.mark.parametrize(
    ("of", "given", "wanted"),
    [
        (spec("FP32", absent=0.0), [1.0, None], [1.0, 0.0]),
        (spec("FP32", 2, absent=0.0), [[1.0, None], None], [[1.0, 0.0], [0.0, 0.0]]),
        (spec("FP32", 2, 1, absent=0.0), [[[None], [2.0]]], [[[0.0], [2.0]]]),
        (spec("FP32", 1), [1.0, 2.0], [[1.0], [2.0]]),
        (spec("BYTES", 1), ["rome", {"b64": "YQ=="}], [["rome"], [{"b64": "YQ=="}]]),
        (TAGS, [["a"], [], None, ["a", "b", "c"]], [["a", "", ""], [""] * 3, [""] * 3, ["a", "b", "c"]]),
        (TAGS, ["a", None], [["a", "", ""], ["", "", ""]]),
        (IDS, [[None, 5], [7]], [[-1, 5], [7, -1]]),
    ],
)
def test_what_was_left_out_is_put_in(of: TensorSpec, given: Any, wanted: Any) -> None:
    assert complete(of, given, Expanded()) == wanted


@pytest.mark.parametrize(
    ("of", "given"),
    [
        (TAGS, [["a", "b", "c"]]),
        (spec("FP32", absent=math.nan), [1.0, math.nan]),
        (spec("FP32", 2), [[1.0], [1.0, 2.0]]),  # ragged, but nothing says that rows may be shorter
        (spec("FP32", 2), [1.0]),
        (spec("FP32"), 1.0),
    ],
)
def test_where_nothing_was_left_out_the_rows_stay_the_same_ones(of: TensorSpec, given: Any) -> None:
    assert complete(of, given, Expanded()) is given


@pytest.mark.parametrize(
    ("datatype", "way_out"),
    [
        ("FP32", "send a value; TensorFlow Serving's JSON, gRPC and binary data may have NaN"),
        ("INT32", "send a value"),
        ("BYTES", "send a value"),
    ],
)
def test_a_null_where_nothing_may_be_missing_is_explained(datatype: str, way_out: str) -> None:
    said = f"^x: row 1: got null, but this input has no replacement for missing values; {way_out}$"
    with pytest.raises(InvalidRequest, match=said):
        complete(spec(datatype, 2), [[1.0, 2.0], [None, 2.0]], Expanded())


def test_arrays_with_fewer_values_a_row_are_filled_up() -> None:
    short = np.array([[b"a"], [b"b"]], object)
    assert fitted(TAGS, short, Expanded()).tolist() == [[b"a", b"", b""], [b"b", b"", b""]]
    assert fitted(IDS, np.array([4]), Expanded()).tolist() == [[4, -1]]
    assert fitted(spec("FP32", 1), np.array([4.0], np.float32), Expanded()).tolist() == [[4.0]]
    longer = np.array([[1, 2, 3]])
    assert fitted(IDS, longer, Expanded()) is longer


WIDE = spec("INT64", 4096, absent=-1, shorter=True)


def test_few_bytes_are_not_filled_up_to_many() -> None:
    with pytest.raises(TooLarge, match=r"^x: values sent once would take 268\d+ bytes or more"):
        complete(WIDE, [[]] * 10_000, Expanded())
    with pytest.raises(TooLarge, match=r"^x: values sent once would take 327680000 bytes"):
        fitted(WIDE, np.empty((10_000, 0), np.int64), Expanded())


class Counted:
    """What a request pays."""

    def __init__(self) -> None:
        self.count = self.size = 0

    def values(self, count: int, field: str) -> None:
        self.count += count

    def expanded(self, size: int, field: str) -> None:
        self.size += size


@pytest.mark.parametrize(
    ("of", "given", "paid"),
    [
        (TAGS, [["a", "b", "c"], ["a", "b", None]], 0),
        (TAGS, [["a"], [], None, "a"], 2 + 3 + 3 + 2),
        (spec("FP32", 2, 2, absent=0.0), [None, [[1.0, None], None]], (2 + 2 + 2) + 2),
        (spec("FP32", absent=0.0), [None, 1.0], 0),
    ],
)
def test_what_is_put_in_where_nothing_came_is_paid_for(of: TensorSpec, given: Any, paid: int) -> None:
    counted = Counted()
    complete(of, given, counted)
    assert (counted.count, counted.size) == (paid, 8 * paid)


def test_a_text_that_is_put_in_counts_with_its_length_each_time() -> None:
    long = spec("BYTES", 3, absent="\N{EURO SIGN}" * 4, shorter=True)
    lists, arrays = Counted(), Counted()
    complete(long, [["a"], []], lists)
    assert (lists.count, lists.size) == (5, 5 * (8 + 12))
    fitted(long, np.array([[b"a"], [b"b"]] * 8, object), arrays)
    assert (arrays.count, arrays.size) == (2, 32 * (8 + 12))


def test_callers_in_the_same_process_leave_out_values_too() -> None:
    signature = Signature("s", (TAGS, TensorSpec("age", BY_OIP["FP32"].dtype, (), absent=0.0)), ())
    checked = signature.check({"x": [["a"], ["b", "c"]], "age": [None, 2.5]})
    assert np.asarray(checked.columns[0]).tolist() == [[b"a", b"", b""], [b"b", b"c", b""]]
    assert np.asarray(checked.columns[1]).tolist() == [0.0, 2.5]
    with pytest.raises(InvalidRequest, match=r"got shape \[1, 4\]"):
        signature.check({"x": [["a"] * 4], "age": [1.0]})


def test_rows_that_are_arrays_are_filled_up_as_lists_are() -> None:
    numbers = TensorSpec("x", BY_OIP["FP32"].dtype, (3,), absent=0.0, shorter=True)
    rows = [np.array([1.0, 2.0], np.float32), np.array([3.0]), [4.0], np.zeros(0)]
    checked = Signature("s", (numbers,), ()).check({"x": rows})
    assert np.asarray(checked.columns[0]).tolist() == [[1, 2, 0], [3, 0, 0], [4, 0, 0], [0, 0, 0]]
    texts = [np.array(["a", "b"]), np.array([b"c"], object)]
    assert complete(TAGS, texts, Expanded()) == [["a", "b", ""], [b"c", "", ""]]


@pytest.mark.parametrize("of", [spec("FP32", 1), spec("FP32", 3, absent=0.0, shorter=True), spec("FP32", 3)])
def test_rows_that_are_arrays_of_wrong_sizes_are_refused(of: TensorSpec) -> None:
    with pytest.raises(InvalidRequest, match="x: expected x FP32"):
        Signature("s", (of,), ()).check({"x": [np.ones(4), np.ones(2)]})
