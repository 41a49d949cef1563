"""How the answers of two models are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import InvalidRequest
from headrace.base.tensors import STRING, Array, Tensors
from headrace.model.servable import DEFAULT_SIGNATURE, Signature, TensorSpec
from headrace.profiling.comparison import Difference, compare, inputs_of

FLOAT = np.dtype(np.float32)


class Answering:
    """Answers its input, changed by a function, under a name."""

    platform = "test"

    def __init__(self, change: Any, output: str = "y", rows: int | None = None) -> None:
        self._change, self._output = change, output
        signature = Signature(
            DEFAULT_SIGNATURE,
            (TensorSpec("x", FLOAT, ()),),
            (TensorSpec(output, FLOAT, ()),),
            rows=rows,
        )
        self.signatures: Mapping[str, Signature] = {DEFAULT_SIGNATURE: signature}
        self.sizes: list[int] = []

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        self.sizes.append(len(inputs["x"]))
        return {self._output: self._change(inputs["x"])}

    def close(self) -> None:
        pass


def difference(change: Any, other: Any, x: Any, tolerance: float = 0.1) -> Difference:
    (found,) = compare(Answering(change), Answering(other), {"x": np.asarray(x, np.float32)}, tolerance)
    return found


def same(x: Array) -> Array:
    return x


def test_rows_beyond_the_tolerance_are_counted_and_the_worst_is_shown() -> None:
    found = difference(same, lambda x: x + (x > 2) * 0.5 + (x > 5) * 0.5, np.arange(8))
    assert (found.rows, found.differing, found.largest, found.worst_row) == (8, 5, 1.0, 6)
    assert found.example == (6.0, 7.0)


def test_equal_answers_have_no_worst_row() -> None:
    found = difference(same, same, [1.0, np.nan, np.inf])
    assert (found.differing, found.largest, found.worst_row) == (0, 0.0, None)


def test_a_number_where_the_other_has_none_differs_beyond_any_tolerance() -> None:
    found = difference(same, lambda x: np.where(x > 1, np.nan, x), [1.0, 2.0], tolerance=1e9)
    assert (found.differing, found.largest, found.worst_row) == (1, np.inf, 1)


def test_labels_are_the_same_as_text_and_as_numbers() -> None:
    texts = {0: b"0", 1: b"1", 2: b"two"}

    def number(x: Array) -> Array:
        return x.astype(np.int64)

    def text(x: Array) -> Array:
        return np.array([texts[int(one)] for one in x], STRING)

    found = difference(number, text, [0, 1, 2, 1])
    assert (found.differing, found.largest, found.worst_row, found.example) == (1, None, 2, (2, "two"))


def test_rows_come_in_batches_that_the_models_take() -> None:
    one, other = Answering(same), Answering(same, rows=100)
    (found,) = compare(one, other, {"x": np.arange(300, dtype=np.float32)}, 0.0)
    assert (one.sizes, other.sizes) == ([256, 44], [100, 100, 100])
    assert (found.rows, found.differing) == (300, 0)
    (found,) = compare(one, other, {"x": np.arange(250, dtype=np.float32)}, 0.0)
    assert (other.sizes[3:], found.rows) == ([100, 100, 100], 250)


def test_models_without_an_output_in_common_are_not_compared() -> None:
    def two(name: str) -> Answering:
        model = Answering(same)
        outputs = (TensorSpec(f"{name}1", FLOAT, ()), TensorSpec(f"{name}2", FLOAT, ()))
        signature = Signature(DEFAULT_SIGNATURE, (TensorSpec("x", FLOAT, ()),), outputs)
        model.signatures = {DEFAULT_SIGNATURE: signature}
        model.predict = lambda inputs, signature="": {  # type: ignore[method-assign]
            f"{name}1": inputs["x"],
            f"{name}2": inputs["x"],
        }
        return model

    with pytest.raises(InvalidRequest, match="no output in common: a1, a2; and b1, b2"):
        compare(two("a"), two("b"), {"x": np.ones(2, np.float32)}, 0.0)


ONE = Signature("s", (TensorSpec("features", FLOAT, (2,)),), ())
APART = Signature("s", (TensorSpec("a", FLOAT, ()), TensorSpec("b", FLOAT, (1,))), ())
MATRIX = np.array([[1.0, 2.0], [3.0, 4.0]])


@pytest.mark.parametrize(
    ("signature", "given", "wanted"),
    [
        (ONE, {"rows": MATRIX}, {"features": MATRIX}),
        (ONE, {"a": MATRIX[:, 0], "b": MATRIX[:, 1]}, {"features": MATRIX}),
        (APART, {"rows": MATRIX}, {"a": MATRIX[:, 0], "b": MATRIX[:, 1]}),
        (APART, {"b": MATRIX[:, 1], "a": MATRIX[:, 0], "c": 1}, {"a": MATRIX[:, 0], "b": MATRIX[:, 1]}),
    ],
)
def test_inputs_are_found_in_rows_of_another_form(signature: Signature, given: Any, wanted: Any) -> None:
    found = inputs_of(signature, given)
    assert {name: array.tolist() for name, array in found.items()} == {
        name: array.tolist() for name, array in wanted.items()
    }
    signature.check(found)


def test_empty_cells_get_the_models_missing_value() -> None:
    inputs = (TensorSpec("age", np.dtype(np.int64), (), absent=-1), TensorSpec("price", FLOAT, (), absent=0))
    signature = Signature("s", inputs, ())
    found = inputs_of(signature, {"age": np.array([30, np.nan]), "price": np.array([np.nan, 0.1])})
    assert {name: array.tolist() for name, array in found.items()} == {"age": [30, -1], "price": [0, 0.1]}
    signature.check(found)
    with pytest.raises(InvalidRequest, match="age: expected age INT64"):
        signature.check(inputs_of(signature, {"age": np.array([30.5, np.nan]), "price": np.array([1, 2])}))


def test_rows_that_a_model_does_not_take_are_explained() -> None:
    with pytest.raises(InvalidRequest, match=r"rows: expected columns named 'a', 'b', or .* got 'c', 'd'"):
        inputs_of(APART, {"c": MATRIX[:, 0], "d": MATRIX[:, 1]})
