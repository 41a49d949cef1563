"""A Request is answered exactly once, or not at all when nobody waits; an Answer is its rows of the batch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import numpy as np
import pytest

from headrace.base.errors import DeadlineExceeded, HeadraceError
from headrace.batching.request import Answer, AwaitedRequest, BatchOutputs, Request, Settlement, Timings
from headrace.config import BatchingPolicy
from tests.unit.batching.stage import SUMS, Asked, Stage

LATE = DeadlineExceeded("late")


def made(asked: Asked) -> Request:
    layout, columns, rows = SUMS.check({"x": asked.values})
    return Request(layout, columns, rows, asked.respond, waiter=asked)


@pytest.fixture
def asked() -> Asked:
    return Asked(np.ones((2, 1), np.float32))


def test_only_the_first_outcome_counts(asked: Asked) -> None:
    request = made(asked)
    assert request.wanted
    assert request.settle(LATE) is True
    assert request.settle(HeadraceError("again")) is False
    assert asked.settlement is LATE
    assert not request.wanted
    assert request.columns == ()


def test_who_has_left_is_not_answered(asked: Asked) -> None:
    request = made(asked)
    asked.gone = True
    assert not request.wanted
    assert request.settle(LATE) is False
    assert asked.settlements == []
    assert request.settled


def test_an_abandoned_request_is_never_answered_and_lets_go_of_its_inputs(asked: Asked) -> None:
    request = made(asked)
    request.abandon()
    assert request.columns == ()
    assert request.settle(LATE) is False
    assert asked.settlements == []


def test_who_is_answered_may_abandon_or_settle_in_turn(asked: Asked) -> None:
    request = made(asked)
    asked.then = lambda: (request.settle(LATE), request.abandon())
    request.settle(LATE)
    assert asked.settlement is LATE


def test_a_respond_callback_that_raises_harms_nobody_and_is_logged(
    asked: Asked, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("the caller's own bug")

    asked.then = fail
    with caplog.at_level(logging.ERROR):
        assert made(asked).settle(LATE) is True
    assert "the caller's own bug" in caplog.text


async def awaited(use: Callable[[AwaitedRequest, asyncio.Future[Answer]], object]) -> None:
    future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    use(AwaitedRequest(SUMS.check({"x": [[1.0]]}), future, 7.0), future)


def test_an_awaited_request_gives_its_future_the_first_outcome_only() -> None:
    answer = Answer(BatchOutputs({}), 0, 1, Timings(0.0, 1, 1))

    def use(request: AwaitedRequest, future: asyncio.Future[Answer]) -> None:
        assert (request.rows, request.deadline, request.wanted) == (1, 7.0, True)
        assert request.settle(answer) is True
        assert request.settle(LATE) is False
        assert not request.wanted
        assert request.columns == ()
        assert future.result() is answer

    asyncio.run(awaited(use))


def test_an_awaited_request_raises_its_error() -> None:
    def use(request: AwaitedRequest, future: asyncio.Future[Answer]) -> None:
        assert request.settle(LATE) is True
        assert future.exception() is LATE

    asyncio.run(awaited(use))


@pytest.mark.parametrize("leave", ["cancel", "abandon"])
def test_an_awaited_request_that_is_left_is_not_wanted_and_not_answered(leave: str) -> None:
    def use(request: AwaitedRequest, future: asyncio.Future[Answer]) -> None:
        if leave == "cancel":
            future.cancel()
        else:
            request.abandon()
        assert not request.wanted
        assert request.settle(LATE) is False
        assert future.cancelled() is (leave == "cancel")

    asyncio.run(awaited(use))


def test_an_awaited_request_is_split_and_joined_like_any_other() -> None:
    async def use() -> None:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        with Stage(BatchingPolicy(max_batch_rows=2), inline=True) as stage:
            values = np.arange(5, dtype=np.float32).reshape(-1, 1)
            stage.batcher.submit(AwaitedRequest(SUMS.check({"x": values}), future))
            stage.turn()
        assert (await future).tensor("y").tolist() == [0, 1, 2, 3, 4]

    asyncio.run(use())


def test_an_answer_is_a_view_of_its_rows() -> None:
    y, name = (
        np.arange(12, dtype=np.float32).reshape(6, 2),
        np.array([b"a", b"b", b"c", b"d", b"e", b"f"], object),
    )
    outputs = BatchOutputs({"y": y, "name": name})
    answer = Answer(outputs, 2, 5, Timings(0.0, 6, 2))
    assert answer.rows == 3
    assert answer.tensor("y").tolist() == y[2:5].tolist()
    assert np.shares_memory(answer.tensor("y"), y)
    assert answer.raw("y", 8) == y[2:5].tobytes()
    assert list(answer.tensors()) == ["y", "name"]
    assert list(answer.tensors(["name"])) == ["name"]
    assert outputs.raw("y") is outputs.raw("y")


def test_raw_bytes_are_in_c_order_whatever_order_the_model_gave() -> None:
    y = np.asfortranarray(np.arange(12, dtype=np.int16).reshape(6, 2))
    answer: Settlement = Answer(BatchOutputs({"y": y}), 1, 3, Timings(0.0, 6, 1))
    assert isinstance(answer, Answer)
    assert answer.raw("y", 4) == np.array([[2, 3], [4, 5]], np.int16).tobytes()
