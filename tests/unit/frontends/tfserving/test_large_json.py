"""Large bodies of REST: how often other requests may run while they are decoded."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import InvalidRequest
from headrace.base.tensors import Array
from headrace.config import Limits
from headrace.frontends.tfserving import large_json
from headrace.frontends.wire import long_lists
from headrace.frontends.wire.request_budget import RequestBudget
from headrace.model.servable import Signature
from tests.unit.frontends.oip.doubles import spec
from tests.unit.frontends.turns import CountingLane

IMAGE = {"b64": base64.b64encode(bytes(100_000)).decode()}
MANY = 40


def decoded(given: Any, *shape: int | None, datatype: str = "BYTES") -> tuple[Array, int]:
    """The only input of a body, and the number of steps."""
    signature = Signature("serving_default", (spec("x", datatype, *shape),), (spec("y", "FP32"),))
    lane = CountingLane()

    async def decode() -> Array:
        async with lane as slicer:
            columns, _ = await large_json.columns_of(given, signature, RequestBudget(Limits()), slicer)
        return columns["x"]

    return asyncio.run(decode()), lane.steps


@pytest.mark.parametrize("key", ["instances", "inputs"])
@pytest.mark.parametrize(
    ("text", "length"), [(IMAGE, 100_000), ("e" * 70_000, 70_000), ("é" * 4000 * 9, 72_000)]
)
def test_other_requests_run_after_each_long_text(text: Any, length: int, key: str) -> None:
    """200 images of 150 KB stopped all others for 0.3 s."""
    column, steps = decoded({key: [text] * MANY})
    assert [len(one) for one in column] == [length] * MANY
    assert steps >= MANY


@pytest.mark.parametrize(("text", "length"), [("é" * 4000, 8000), ({"b64": ""}, 0)])
def test_many_short_texts_are_decoded_in_steps_by_their_bytes(text: Any, length: int) -> None:
    column, steps = decoded({"instances": [text] * long_lists.STEP})
    assert {len(one) for one in column} == {length}
    assert steps >= long_lists.STEP * (length + 256) // (80 * 1024)


def test_wide_rows_are_joined_in_steps_by_their_values() -> None:
    """2,000 rows of 500 numbers were joined in one step of 20 ms."""
    rows, width = 64, 1000
    column, steps = decoded({"inputs": [[1.5] * width for _ in range(rows)]}, width, datatype="FP32")
    assert column.shape == (rows, width)
    assert np.all(column == 1.5)
    assert steps >= rows // 2 + rows * width // long_lists.STEP


def test_images_in_one_example_are_decoded_one_by_one() -> None:
    signature = Signature("serving_default", (spec("x", "BYTES", None),), (spec("y", "FP32"),))
    lane = CountingLane()

    async def decode() -> Any:
        document: Any = {"examples": [{"x": [IMAGE] * MANY, "y": IMAGE["b64"]}]}
        async with lane as slicer:
            return await large_json.examples_of(document, signature, RequestBudget(Limits()), slicer)

    ((example,), _) = asyncio.run(decode())
    assert [len(one) for one in example["x"]] == [100_000] * MANY
    assert [len(one) for one in example["y"]] == [len(IMAGE["b64"])]
    assert lane.steps >= MANY


@pytest.mark.parametrize(
    ("given", "shape", "datatype", "said"),
    [
        (
            [*[0.5] * 5000, "4"],
            (),
            "FP64",
            r"^x: row 5000: expected a number \(FP64\), got '4'; send it without",
        ),
        (
            [*[[1, 2] for _ in range(5000)], [1, True]],
            (2,),
            "INT64",
            r"^x: row 5000, column 1: expected a whole number",
        ),
        ([*["a"] * 5000, 7], (), "BYTES", r"^x: row 5000: expected a string or .*, got 7; put it in quotes"),
        ([[1], [1, 2]], (None,), "FP64", "ragged or not as deep; give all rows the same length"),
    ],
)
def test_a_wrong_value_is_named_with_its_row(
    given: list[Any], shape: tuple[int | None, ...], datatype: str, said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said):
        decoded({"instances": given}, *shape, datatype=datatype)
