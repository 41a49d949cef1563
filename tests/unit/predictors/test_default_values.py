"""Default values: given at the deadline or upon a refusal, flagged, counted, never beside another answer."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import (
    DeadlineExceeded,
    InvalidRequest,
    ModelError,
    NotFound,
    NotLoadable,
    Overloaded,
)
from headrace.batching.request import NO_DEADLINE, Answer, Origin, Settlement
from headrace.batching.statistics import VersionStatistics
from headrace.model.servable import EXPLAIN_SIGNATURE, Signature, TensorSpec
from headrace.predictors.default_values import DefaultValues, default_rows
from headrace.predictors.predictor import Predictor
from tests.unit.predictors.doubles import FLOAT, ONE, Around, Told, answer_of, asked
from tests.virtual_clock import VirtualClock

DEFAULT = Origin("m", 0, is_default=True)


def values(around: Predictor, clock: VirtualClock, after_seconds: float = 0.0) -> DefaultValues:
    rows = default_rows({"y": 0.5}, {ONE.name: ONE})
    return DefaultValues(
        around, rows, origin=DEFAULT, statistics=VersionStatistics(), clock=clock, after_seconds=after_seconds
    )


@pytest.mark.parametrize("refusal", [Overloaded("full", retry_after_seconds=1.0), DeadlineExceeded("late")])
def test_a_refusal_is_answered_with_the_values_for_each_row(refusal: Exception) -> None:
    settlements: list[Settlement] = []
    default, request = values(Around(refusal), VirtualClock()), asked(settlements)
    default.submit(request)
    (answer,) = settlements
    assert isinstance(answer, Answer)
    assert answer.tensor("y").tolist() == [0.5, 0.5, 0.5]
    assert answer.tensor("y").dtype == FLOAT
    assert answer.origin == DEFAULT
    assert request.call == Told([DEFAULT])
    assert default._statistics.defaults == 1


def test_an_explanation_is_not_replaced_by_values() -> None:
    settlements: list[Settlement] = []
    explain = Signature(EXPLAIN_SIGNATURE, ONE.inputs, (TensorSpec("expected_value", FLOAT, ()),))
    rows = default_rows({"y": 0.5}, {ONE.name: ONE, EXPLAIN_SIGNATURE: explain})
    assert set(rows) == {ONE.name}
    refusal = Overloaded("full", retry_after_seconds=1.0)
    values(Around(refusal), VirtualClock()).submit(asked(settlements, signature=explain))
    assert settlements == [refusal]


def test_the_models_own_answer_is_passed_on_and_not_flagged() -> None:
    settlements: list[Settlement] = []
    around, request = Around(), asked(settlements)
    default = values(around, VirtualClock())
    default.submit(request)
    (passed,) = around.requests
    answer = answer_of(passed, 2.0)
    assert passed.settle(answer)
    assert settlements == [answer]
    assert request.call == Told([])
    assert default._statistics.defaults == 0


@pytest.mark.parametrize("error", [ModelError("it is broken"), InvalidRequest("wrong"), NotFound("gone")])
def test_mistakes_are_not_covered(error: Exception) -> None:
    settlements: list[Settlement] = []
    values(Around(error), VirtualClock()).submit(asked(settlements))
    assert settlements == [error]


def test_a_request_whose_caller_has_left_hears_that_it_is_over() -> None:
    around, request = Around(), asked([])
    left = Future[None]()
    request._waiter = left
    values(around, VirtualClock()).submit(request)
    left.cancel()
    (passed,) = around.requests
    assert not passed.settle(DeadlineExceeded("late"))
    assert request.settled


def test_an_answer_that_comes_after_the_default_is_thrown_away() -> None:
    settlements: list[Settlement] = []
    around = Around()
    values(around, VirtualClock()).submit(asked(settlements))
    (passed,) = around.requests
    assert passed.settle(DeadlineExceeded("late"))
    assert not passed.settle(answer_of(passed, 2.0))
    (answer,) = settlements
    assert isinstance(answer, Answer)
    assert answer.origin == DEFAULT


def test_what_nobody_waits_for_is_not_wanted_and_not_answered() -> None:
    settlements: list[Settlement] = []
    around, request = Around(), asked(settlements)
    default = values(around, VirtualClock())
    default.submit(request)
    (passed,) = around.requests
    assert passed.wanted
    request.abandon()
    assert not passed.wanted
    assert not passed.settle(DeadlineExceeded("late"))
    assert settlements == []
    assert default._statistics.defaults == 0


@pytest.mark.parametrize(
    ("deadline", "after", "expected"),
    [
        (1001.0, 0.25, 1000.25),
        (1000.1, 0.25, 1000.1),
        (1001.0, 0.0, 1001.0),
        (NO_DEADLINE, 0.25, 1000.25),
        (NO_DEADLINE, 0.0, NO_DEADLINE),
    ],
)
def test_the_model_has_until_the_deadline_or_as_long_as_is_set(
    deadline: float, after: float, expected: float
) -> None:
    around = Around()
    values(around, VirtualClock(1000.0), after).submit(asked([], deadline=deadline))
    assert around.requests[0].deadline == expected


def test_values_become_rows_of_every_output() -> None:
    text = TensorSpec("name", np.dtype(object), ())
    free = TensorSpec("scores", FLOAT, (None, 2))
    signature = Signature("s", ONE.inputs, (TensorSpec("y", np.dtype(np.int64), (2,)), text, free))
    rows = default_rows({"y": 7, "name": "none", "scores": [[1, 2], [3, 4]]}, {"s": signature})["s"]
    assert rows["y"].tolist() == [[7, 7]]
    assert rows["name"].tolist() == [b"none"]
    assert rows["scores"].tolist() == [[[1, 2], [3, 4]]]


def test_a_text_stands_for_all_elements_as_it_is() -> None:
    texts = Signature("s", ONE.inputs, (TensorSpec("name", np.dtype(object), (2,)),))
    assert default_rows({"name": "a\0"}, {"s": texts})["s"]["name"].tolist() == [[b"a\0", b"a\0"]]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "expected a value for output y"),
        ({"y": 0.5, "z": 1}, "unknown output 'z'; the model gives y"),
        ({"y": "high"}, "y: expected"),
        ({"y": [1, 2]}, "y: expected"),
    ],
)
def test_values_that_do_not_fit_keep_the_version_from_loading(given: dict[str, object], said: str) -> None:
    with pytest.raises(NotLoadable, match=f"default.values.*{said}"):
        default_rows(given, {ONE.name: ONE})


HALF, SMALL, WHOLE = np.dtype(np.float16), np.dtype(np.uint8), np.dtype(np.int64)


@pytest.mark.parametrize(
    ("dtype", "value", "said"),
    [
        (FLOAT, 1e300, r"y: 1e\+300 does not fit in FP32 \(-3.4028235e\+38 … 3.4028235e\+38\)"),
        (FLOAT, [[0.0, -1e39]], r"y: -1e\+39 does not fit in FP32"),
        (FLOAT, 10**400, r"y: a number of 1329 bits does not fit in FP32"),
        (HALF, 1e5, r"y: 100000.0 does not fit in FP16 \(-65504 … 65504\)"),
        (SMALL, 256, r"y: 256 does not fit in UINT8 \(0 … 255\)"),
        (SMALL, -1, r"y: -1 does not fit in UINT8"),
        (WHOLE, 2**63, r"y: 9223372036854775808 does not fit in INT64"),
        (WHOLE, [[-1, 2**64]], r"y: 18446744073709551616 does not fit in INT64"),
    ],
)
def test_numbers_that_the_outputs_dtype_does_not_have_keep_the_version_from_loading(
    dtype: np.dtype[Any], value: object, said: str
) -> None:
    wide = Signature("s", ONE.inputs, (TensorSpec("y", dtype, (2,)),))
    with pytest.raises(NotLoadable, match=rf"^default\.values\.{said}"):
        default_rows({"y": value}, {"s": wide})


@pytest.mark.parametrize("value", [np.inf, -np.inf, 3.4028235e38, 1e-300, 2**31])
def test_infinity_that_is_written_is_meant_and_rounding_is_no_mistake(value: float) -> None:
    (given,) = default_rows({"y": value}, {ONE.name: ONE})[ONE.name]["y"].tolist()
    assert given == np.float32(value)
