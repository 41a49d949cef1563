"""Default answers: in time or upon a refusal, flagged, counted; another model is heard only if needed."""

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
from headrace.batching.request import NO_DEADLINE, Answer, Origin, Request, Settlement
from headrace.batching.statistics import VersionStatistics
from headrace.config import DefaultPolicy
from headrace.model.servable import DEFAULT_SIGNATURE, EXPLAIN_SIGNATURE, CheckedInputs, Signature, TensorSpec
from headrace.predictors.default_answers import DefaultModel, DefaultValues, OtherVersion, default_rows
from headrace.predictors.predictor import Predictor
from tests.unit.predictors.doubles import (
    FLOAT,
    ONE,
    Around,
    Told,
    answer_of,
    asked,
    asked_by,
    of_priority,
    turns,
)
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


def test_a_request_whose_caller_has_left_is_still_settled() -> None:
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


def test_an_abandoned_request_is_not_wanted_and_gets_no_default() -> None:
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
        ({"y": "high"}, "y: row 0: expected a number"),
        ({"y": [1, 2]}, r"y: expected y FP32 \[rows\], got shape \[1, 2\]"),
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


class Cost:
    """What a call is predicted to take."""

    def seconds(self, rows: int) -> float:
        return 0.010


class Other(Around):
    """The other model, with its Batcher in one."""

    def __init__(self, signature: Signature = ONE) -> None:
        super().__init__()
        self.signatures = {signature.name: signature}
        self.batcher = self
        self.cost = Cost()


def with_default(
    around: Predictor, other: OtherVersion, clock: VirtualClock, after: float = 0.0
) -> DefaultModel:
    def find(name: str) -> OtherVersion:
        if name != "other":
            raise NotFound(f"no model {name}")
        return other

    policy = DefaultPolicy(model="other", after_seconds=after)
    return DefaultModel(around, {ONE.name: ONE}, policy, find, statistics=VersionStatistics(), clock=clock)


def test_the_other_model_is_asked_in_time_and_its_answer_kept_until_it_is_needed() -> None:
    clock, settlements = VirtualClock(1000.0), list[Settlement]()
    around, other = Around(), Other()
    default, request = with_default(around, other, clock), asked(settlements)  # type: ignore[arg-type]
    default.submit(request)
    clock.advance(0.87)
    assert other.requests == []
    clock.advance(0.01)  # a tenth, twice the cost and a millisecond before the deadline
    (second,) = other.requests
    assert second.rows == 3
    second.settle(answer_of(second, 4.0))
    assert settlements == []
    around.requests[0].settle(DeadlineExceeded("late"))
    (answer,) = settlements
    assert isinstance(answer, Answer)
    assert answer.tensor("y").tolist() == [4.0, 4.0, 4.0]
    assert answer.origin == Origin("m", 3, is_default=True)
    assert request.call == Told([answer.origin])
    assert default.statistics.defaults == 1


def test_a_refusal_asks_the_other_model_at_once() -> None:
    clock, settlements = VirtualClock(1000.0), list[Settlement]()
    other = Other()
    full = Around(Overloaded("full", retry_after_seconds=1.0))
    with_default(full, other, clock).submit(asked(settlements))  # type: ignore[arg-type]
    (second,) = other.requests
    assert clock.timers == 0
    second.settle(answer_of(second, 4.0))
    (answer,) = settlements
    assert isinstance(answer, Answer)


def test_the_other_model_is_asked_for_the_same_caller_and_priority() -> None:
    """A refusal may come while another caller's request is submitted."""
    clock, around, other = VirtualClock(1000.0), Around(), Other()
    request = asked([])
    request.call = of_priority(3)
    with asked_by("one"):
        with_default(around, other, clock).submit(request)  # type: ignore[arg-type]
    with asked_by("two"):
        around.requests[0].settle(Overloaded("full", retry_after_seconds=1.0))
    assert turns(other.requests) == [(3, "one")]


def test_another_model_that_hangs_is_not_waited_for_without_end() -> None:
    """A request without a deadline has none of its own to end it."""
    clock, settlements = VirtualClock(1000.0), list[Settlement]()
    around, other = Around(), Other()
    request = asked(settlements, deadline=NO_DEADLINE)
    with_default(around, other, clock, after=5.0).submit(request)  # type: ignore[arg-type]
    clock.advance(5.0)
    (second,) = other.requests
    around.requests[0].settle(late := DeadlineExceeded("late"))
    assert second.deadline == 1010.0
    second.settle(DeadlineExceeded("late, too"))
    assert settlements == [late]


@pytest.mark.parametrize(("deadline", "after", "until"), [(NO_DEADLINE, 0.1, 1001.1), (1000.5, 0.1, 1000.5)])
def test_another_model_has_a_second_more_or_the_requests_own_deadline(
    deadline: float, after: float, until: float
) -> None:
    clock, other = VirtualClock(1000.0), Other()
    with_default(Around(), other, clock, after).submit(asked([], deadline=deadline))  # type: ignore[arg-type]
    clock.advance(after)
    assert [second.deadline for second in other.requests] == [pytest.approx(until)]


def test_a_model_that_answers_in_time_leaves_no_timer_and_no_second_question() -> None:
    clock, settlements = VirtualClock(1000.0), list[Settlement]()
    around, other = Around(), Other()
    with_default(around, other, clock).submit(asked(settlements))  # type: ignore[arg-type]
    assert clock.timers == 1
    (first,) = around.requests
    answer = answer_of(first, 2.0)
    first.settle(answer)
    assert settlements == [answer]
    assert clock.timers == 0


def test_the_first_model_wins_after_the_other_one_was_asked() -> None:
    clock, settlements = VirtualClock(1000.0), list[Settlement]()
    around, other = Around(), Other()
    with_default(around, other, clock).submit(asked(settlements))  # type: ignore[arg-type]
    clock.advance(0.95)
    (second,) = other.requests
    first = answer_of(around.requests[0], 2.0)
    around.requests[0].settle(first)
    assert settlements == [first]
    assert not second.wanted


def test_the_other_model_computes_nothing_for_a_caller_who_has_left() -> None:
    clock, settlements = VirtualClock(1000.0), list[Settlement]()
    around, other = Around(), Other()
    default = with_default(around, other, clock)  # type: ignore[arg-type]
    early, late = asked(settlements, rows=1), asked(settlements, rows=2)
    for request in (early, late):
        default.submit(request)
    early.abandon()
    clock.advance(0.95)
    (second,) = other.requests
    assert (second.rows, second.deadline) == (2, late.deadline)
    late.abandon()
    assert not second.wanted
    around.requests[1].settle(DeadlineExceeded("late"))
    second.settle(answer_of(second, 4.0))
    assert settlements == []


@pytest.mark.parametrize(
    ("signature", "said"),
    [
        (Signature("serving_default", (TensorSpec("z", FLOAT, ()),), ONE.outputs), "it takes z"),
        (Signature("serving_default", (TensorSpec("x", FLOAT, (3,)),), ONE.outputs), "rows of"),
        (Signature("named", ONE.inputs, ONE.outputs), "serving_default"),
    ],
)
def test_another_model_that_cannot_take_the_request_leaves_the_refusal(
    signature: Signature, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock, settlements = VirtualClock(1000.0), list[Settlement]()
    refusal = Overloaded("full", retry_after_seconds=1.0)
    default = with_default(Around(refusal), Other(signature), clock)  # type: ignore[arg-type]
    for _ in range(2):
        default.submit(asked(settlements))
    assert settlements == [refusal, refusal]
    assert default.statistics.defaults == 0
    (logged,) = caplog.messages  # once, not with each request
    assert said in logged


def test_another_model_that_gives_other_outputs_leaves_the_refusal(caplog: pytest.LogCaptureFixture) -> None:
    settlements: list[Settlement] = []
    refusal, other = Overloaded("full", retry_after_seconds=1.0), Other()
    with_default(Around(refusal), other, VirtualClock()).submit(asked(settlements))  # type: ignore[arg-type]
    answer = answer_of(other.requests[0], 1.0)
    answer.outputs.tensors = {"p": np.zeros(3, FLOAT)}
    other.requests[0].settle(answer)
    assert settlements == [refusal]
    assert "it does not give y" in caplog.text


def test_reasons_with_numbers_in_them_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    clock, settlements = VirtualClock(1000.0), list[Settlement]()
    refusal, other = Overloaded("full", retry_after_seconds=1.0), Other()
    default = with_default(Around(refusal), other, clock)  # type: ignore[arg-type]
    for number in range(5):
        clock.advance(20.0)
        default.submit(asked(settlements, deadline=2000.0))
        other.requests[-1].settle(Overloaded(f"it would take {number} ms", retry_after_seconds=1.0))
    assert len(settlements) == 5
    assert [message[-4:] for message in caplog.messages] == ["0 ms", "3 ms"]


def test_a_model_that_fails_leaves_no_timer_and_no_second_question() -> None:
    clock, settlements = VirtualClock(1000.0), list[Settlement]()
    around, other = Around(), Other()
    default = with_default(around, other, clock)  # type: ignore[arg-type]
    default.submit(asked(settlements, deadline=5000.0))
    around.requests[0].settle(ModelError("no"))
    assert clock.timers == 0  # else each would be held until the deadline, which clients choose
    default.submit(asked(settlements, deadline=1001.0))
    clock.advance(0.95)
    around.requests[1].settle(ModelError("no"))
    (second,) = other.requests
    assert not second.wanted
    assert [type(one) for one in settlements] == [ModelError, ModelError]


def test_a_model_that_settles_at_once_leaves_no_timer() -> None:
    clock, settlements = VirtualClock(1000.0), list[Settlement]()
    default = with_default(Around(ModelError("no")), Other(), clock)  # type: ignore[arg-type]
    default.submit(asked(settlements))
    assert len(settlements) == 1
    assert clock.timers == 0


def test_another_model_that_is_not_there_yet_is_looked_for_when_it_is_needed() -> None:
    clock, settlements, there = VirtualClock(1000.0), list[Settlement](), list[OtherVersion]()

    def find(name: str) -> OtherVersion:
        if not there:
            raise NotFound(f"no model {name}")
        return there[0]

    default = with_default(Around(), Other(), clock)  # type: ignore[arg-type]
    default.find = find
    default.submit(asked(settlements))
    clock.advance(0.5)
    there.append(other := Other())  # type: ignore[arg-type]
    clock.advance(0.45)
    assert len(other.requests) == 1


def test_both_refuse() -> None:
    settlements: list[Settlement] = []
    refusal, other = Overloaded("full", retry_after_seconds=1.0), Other()
    with_default(Around(refusal), other, VirtualClock()).submit(asked(settlements))  # type: ignore[arg-type]
    other.requests[0].settle(DeadlineExceeded("late"))
    assert settlements == [refusal]


def test_inputs_that_the_other_model_does_not_take_are_left_out() -> None:
    settlements: list[Settlement] = []
    wide = Signature(DEFAULT_SIGNATURE, (TensorSpec("a", FLOAT, ()), *ONE.inputs), ONE.outputs)
    other = Other()
    refusal = Overloaded("full", retry_after_seconds=1.0)
    default = with_default(Around(refusal), other, VirtualClock())  # type: ignore[arg-type]
    inputs: CheckedInputs = wide.check({"a": [1.0], "x": [[5.0, 6.0]]})
    default.submit(Request(*inputs, settlements.append))
    (second,) = other.requests
    assert [np.asarray(column).tolist() for column in second.columns] == [[[5.0, 6.0]]]
    assert second.layout is ONE.layout(((2,),))
