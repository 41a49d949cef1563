from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from headrace.base.errors import InvalidRequest
from headrace.base.tensors import STRING
from headrace.model.servable import Signature, TensorSpec

FP64 = np.dtype(np.float64)
SIGNATURE = Signature(
    "serving_default",
    (
        TensorSpec("age", FP64, (), absent=np.nan),
        TensorSpec("country", STRING, (), absent=""),
        TensorSpec("visits", np.dtype(np.int64), ()),
    ),
    (),
)
MATRIX = Signature("serving_default", (TensorSpec("features", FP64, (2,), absent=np.nan),), ())

FRAMES: dict[str, Any] = {
    "pandas": pd.DataFrame({"age": [31.0, None], "country": ["de", None], "visits": [3, 4]}),
    "pandas_nullable": pd.DataFrame(
        {
            "age": pd.array([31, None], "Int64"),
            "country": pd.array(["de", None], "string"),
            "visits": pd.array([3, 4], "Int32"),
        }
    ),
    "pandas_category": pd.DataFrame(
        {"age": [31.0, None], "country": pd.Categorical(["de", None]), "visits": [3, 4]}
    ),
    "pandas_other_order": pd.DataFrame({"visits": [3, 4], "country": ["de", None], "age": [31.0, None]}),
    "polars": pl.DataFrame({"age": [31, None], "country": ["de", None], "visits": [3, 4]}),
    "polars_category": pl.DataFrame(
        {"age": [31.0, None], "country": pl.Series(["de", None], dtype=pl.Categorical), "visits": [3, 4]}
    ),
}


@pytest.mark.parametrize("name", FRAMES)
def test_columns_are_inputs_and_missing_values_are_replaced(name: str) -> None:
    checked = SIGNATURE.check(FRAMES[name])
    age, country, visits = (np.asarray(column) for column in checked.columns)
    assert checked.rows == 2
    np.testing.assert_array_equal(age, [31.0, np.nan])
    assert country.tolist() == [b"de", b""]
    assert visits.tolist() == [3, 4]


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_the_only_input_gets_all_columns(frame: Any) -> None:
    checked = MATRIX.check(frame({"first": [1, 2, 3], "second": [0.5, None, 1.5]}))
    np.testing.assert_array_equal(np.asarray(checked.columns[0]), [[1, 0.5], [2, np.nan], [3, 1.5]])


DEFAULTED = Signature(
    "serving_default",
    (
        TensorSpec("score", FP64, (), absent=-1.0),
        TensorSpec("count", np.dtype(np.int64), (), absent=-1),
        TensorSpec("is_new", np.dtype(np.bool_), ()),
    ),
    (),
)
BIG = 2**53 + 1
SCORES, COUNTS, FLAGS = [0.5, None, float("nan")], [BIG, None, 3], [True, False, True]


@pytest.mark.parametrize(
    "frame",
    [
        pl.DataFrame({"score": SCORES, "count": COUNTS, "is_new": FLAGS}),
        pd.DataFrame(
            {
                "score": pd.arrays.ArrowExtensionArray(pa.array(SCORES)),
                "count": pd.array(COUNTS, "Int64"),
                "is_new": FLAGS,
            }
        ),
    ],
)
def test_a_null_among_numbers_is_missing_and_others_stay_exact(frame: Any) -> None:
    score, count, is_new = (np.asarray(column) for column in DEFAULTED.check(frame).columns)
    np.testing.assert_array_equal(score, [0.5, -1.0, np.nan])
    assert count.tolist() == [BIG, -1, 3]
    assert is_new.tolist() == FLAGS


@pytest.mark.parametrize(
    "scores",
    [
        pl.Series(SCORES),
        pd.Series(pd.arrays.ArrowExtensionArray(pa.array(SCORES))),
        np.ma.masked_array([0.5, 7.0, np.nan], [False, True, False]),
        np.array(SCORES, object),
    ],
)
def test_a_value_missing_in_an_array_or_a_column_is_replaced(scores: object) -> None:
    score = np.asarray(DEFAULTED.check({"score": scores, "count": [1, 2, 3], "is_new": FLAGS}).columns[0])
    np.testing.assert_array_equal(score, [0.5, -1.0, np.nan])
    strict = Signature("serving_default", (TensorSpec("score", FP64, ()),), ())
    with pytest.raises(InvalidRequest, match="row 1: got null"):
        strict.check({"score": scores})


PAIRS = np.ma.masked_array([[1.0, 99.0], [2.0, np.nan]], [[False, True], [False, False]])
POLARS_PAIRS = [pl.Series([1.0, None]), pl.Series([2.0, np.nan])]


@pytest.mark.parametrize(
    "rows",
    [
        list(PAIRS),
        tuple(PAIRS),
        [[1.0, None], PAIRS[1]],
        POLARS_PAIRS,
        [POLARS_PAIRS[0], [2.0, np.nan]],
        [pd.Series([1, None], dtype="Int64"), np.array([2.0, np.nan])],
        [pd.array([1, None], dtype="Int64"), [2.0, np.nan]],
        pl.Series([[1.0, None], [2.0, np.nan]], dtype=pl.Array(pl.Float64, 2)),
        pl.Series([[1.0, None], [2.0, np.nan]]),
    ],
)
def test_a_value_missing_within_rows_is_replaced(rows: Any) -> None:
    signature = Signature("serving_default", (TensorSpec("pairs", FP64, (2,), absent=-1.0),), ())
    strict = Signature("serving_default", (TensorSpec("pairs", FP64, (2,)),), ())
    pairs = np.asarray(signature.check({"pairs": rows}).columns[0])
    np.testing.assert_array_equal(pairs, [[1.0, -1.0], [2.0, np.nan]])
    with pytest.raises(InvalidRequest, match="row 0: got null"):
        strict.check({"pairs": rows})


def test_a_value_missing_deeper_is_replaced() -> None:
    spec = TensorSpec("grid", np.dtype(np.int64), (2, 2), absent=-1)
    signature = Signature("serving_default", (spec,), ())
    inner = pl.Array(pl.Array(pl.Int64, 2), 2)
    masked = np.ma.masked_array([[1, 9], [2, 3]], [[False, True], [False, False]])
    for rows in (pl.Series([[[1, None], [2, 3]]], dtype=inner), [masked], [list(masked)]):
        assert np.asarray(signature.check({"grid": rows}).columns[0]).tolist() == [[[1, -1], [2, 3]]]


def test_a_text_missing_within_rows_is_replaced() -> None:
    signature = Signature("serving_default", (TensorSpec("tags", STRING, (2,), absent="?"),), ())
    masked = np.ma.masked_array([["a", "x"], ["b", "c"]], [[False, True], [False, False]])
    for rows in (list(masked), [pl.Series(["a", None]), pl.Series(["b", "c"])]):
        tags = np.asarray(signature.check({"tags": rows}).columns[0])
        assert tags.tolist() == [[b"a", b"?"], [b"b", b"c"]]


@pytest.mark.parametrize("dtype", [np.str_, np.bytes_, object])
def test_a_masked_text_is_replaced(dtype: Any) -> None:
    texts = np.ma.masked_array(np.array(["oslo", "rome"], dtype), [False, True])
    signature = Signature("serving_default", (TensorSpec("city", STRING, (), absent="?"),), ())
    assert np.asarray(signature.check({"city": texts}).columns[0]).tolist() == [b"oslo", b"?"]
    strict = Signature("serving_default", (TensorSpec("city", STRING, ()),), ())
    with pytest.raises(InvalidRequest, match="row 1: got null"):
        strict.check({"city": texts})
    numbers = np.ma.masked_array(np.array([b"oslo", 7], object))
    with pytest.raises(InvalidRequest, match="row 1: expected text or bytes, got 7"):
        strict.check({"city": numbers})


@pytest.mark.parametrize(
    "frame", [pl.DataFrame({"age": [1.0, None]}), pd.DataFrame({"age": pd.array([1.0, None], "Float64")})]
)
def test_a_null_is_refused_where_no_value_may_be_missing(frame: Any) -> None:
    signature = Signature("serving_default", (TensorSpec("age", FP64, ()),), ())
    with pytest.raises(InvalidRequest, match="row 1: got null"):
        signature.check(frame)


def test_a_date_among_all_columns_is_an_error() -> None:
    with pytest.raises(InvalidRequest, match="a mix of types"):
        MATRIX.check(pd.DataFrame({"a": [1.0], "b": pd.to_datetime(["2026-01-01"])}))


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (pa.table({"a": [1.0], "b": [2.0]}), "got Table; pass table.to_pandas()"),
        (pl.LazyFrame({"a": [1.0], "b": [2.0]}), "got LazyFrame; pass frame.collect()"),
    ],
)
def test_a_table_that_is_no_data_frame_is_an_error_with_the_way_out(table: Any, said: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        MATRIX.check(table)
    assert raised.value.message.endswith(said)


def test_texts_of_several_columns_are_one_input() -> None:
    signature = Signature("serving_default", (TensorSpec("features", STRING, (2,)),), ())
    checked = signature.check(pd.DataFrame({"a": ["x", "y"], "b": ["z", "w"]}))
    assert np.asarray(checked.columns[0]).tolist() == [[b"x", b"z"], [b"y", b"w"]]


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (pd.DataFrame({"age": [1.0], "country": ["de"]}), "visits"),
        (pd.DataFrame({"age": [1.0], "land": ["de"], "visits": [1]}), "land"),
        (pd.DataFrame({"age": ["old"], "country": ["de"], "visits": [1]}), "age"),
        (pd.DataFrame({"age": [1.0], "country": ["de"], "visits": [None]}), "visits"),
        (pd.DataFrame({"age": pd.to_datetime(["2026-01-01"]), "country": ["de"], "visits": [1]}), "age"),
        (FRAMES["pandas"][:0], "at least one row"),
        (pd.DataFrame([[1.0, 2.0]], columns=["age", "age"]), "have this name"),
        (pd.DataFrame({0: [1.0], "0": [2.0]}), "have this name"),
        ({"age": [1.0], "country": ["de"], "visits": [1], 5: [1]}, "unknown input '5'"),
        (pl.DataFrame({"age": [1.0], "country": [5], "visits": [1]}), "country"),
        ([[1.0, "de", 1]], "got list"),
        ([{"age": 1.0, "country": "de", "visits": 1}], "got list; pass pandas.DataFrame(rows)"),
        (FRAMES["pandas"].iloc[0], "got Series; pass pandas.DataFrame([row]) for one row"),
        ({"age": 1.0, "country": "de", "visits": 1}, "age: expected a list of rows, got 1.0; send a list"),
        ({"age": [1.0, 2.0], "country": ["de"], "visits": [1, 2]}, "same number; repeat the row of country"),
        (
            {"age": ["31"], "country": ["de"], "visits": [1]},
            "age: row 0: expected a number (FP64), got '31'; send",
        ),
        (
            {"age": [1, "x"], "country": ["de"] * 2, "visits": [1, 1]},
            "age: row 1: expected a number (FP64), got 'x'",
        ),
        (
            {"age": [1, 2], "country": ["de", 7], "visits": [1, 1]},
            "country: row 1: expected text or bytes, got 7",
        ),
    ],
)
def test_a_column_that_does_not_fit_is_an_error_that_names_it(frame: Any, said: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        SIGNATURE.check(frame)
    assert said in f"{raised.value.field} {raised.value.message}"


def test_columns_that_are_no_inputs_are_ignored() -> None:
    frame = FRAMES["pandas"].assign(born=pd.to_datetime("1990-01-01"))
    assert SIGNATURE.check(frame).rows == 2


def test_three_columns_are_not_an_input_of_two() -> None:
    with pytest.raises(InvalidRequest, match=r"features") as raised:
        MATRIX.check(pd.Series([1.0, 2.0]).tolist())  # type: ignore[arg-type]
    assert raised.value.message.endswith("got list; pass {'features': values}")
    with pytest.raises(InvalidRequest, match="features"):
        MATRIX.check(pd.DataFrame({"a": [1], "b": [2], "c": [3]}))
