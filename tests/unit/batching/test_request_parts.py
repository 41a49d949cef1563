"""A request larger than a batch: cut, answered in parts, and joined as if nothing had happened."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future

import numpy as np
import pytest

from headrace.base.errors import Cancelled, DeadlineExceeded, ModelError, TooLarge
from headrace.base.tensors import Array
from headrace.batching.request import NO_DEADLINE, Answer, BatchOutputs, Request, Settlement, Timings
from headrace.batching.request_parts import parts_within, split
from tests.unit.batching.stage import SUMS


class Whole:
    """A request of the rows 0, 1, 2, …, and what it was answered with."""

    def __init__(self, rows: int, deadline: float = NO_DEADLINE) -> None:
        self.settlements: list[Settlement] = []
        self.values = np.arange(rows, dtype=np.float32).reshape(-1, 1)
        layout, columns, _ = SUMS.check({"x": self.values})
        self.request = Request(layout, columns, rows, self.settlements.append, deadline=deadline)

    @property
    def settlement(self) -> Settlement:
        (settlement,) = self.settlements
        return settlement


def answer(part: Request, outputs: Mapping[str, Array] | None = None) -> Answer:
    if outputs is None:
        outputs = {"y": np.array(part.columns[0])[:, 0]}
    return Answer(BatchOutputs(outputs), 0, part.rows, Timings(0.0, part.rows, 1))


@pytest.mark.parametrize(("rows", "limit", "sizes"), [(10, 4, [4, 4, 2]), (8, 4, [4, 4]), (3, 1, [1, 1, 1])])
def test_parts_hold_all_rows_in_order(rows: int, limit: int, sizes: list[int]) -> None:
    whole = Whole(rows, deadline=7.0)
    parts = split(whole.request, parts_within(whole.request.rows, limit))
    assert [part.rows for part in parts] == sizes
    assert {part.deadline for part in parts} == {7.0}
    assert np.concatenate([part.columns[0] for part in parts]).tolist() == whole.values.tolist()


def test_the_answer_is_joined_in_the_order_of_rows_not_of_answers() -> None:
    whole = Whole(10)
    parts = split(whole.request, parts_within(whole.request.rows, 4))
    for part in (parts[2], parts[0]):
        part.settle(answer(part))
        assert whole.settlements == []
    parts[1].settle(answer(parts[1]))
    assert isinstance(whole.settlement, Answer)
    assert whole.settlement.rows == 10
    assert whole.settlement.tensor("y").tolist() == list(range(10))
    assert whole.settlement.raw("y", 4) == whole.values.tobytes()


def test_an_answer_that_neighbours_would_make_enormous_is_refused() -> None:
    whole = Whole(1000)
    parts = split(whole.request, parts_within(whole.request.rows, 999), fill=True)
    parts[0].settle(answer(parts[0], {"y": np.zeros((999, 1), np.float32)}))
    parts[1].settle(answer(parts[1], {"y": np.zeros((1, 1 << 15), np.float32)}))
    assert isinstance(whole.settlement, TooLarge)
    assert (
        "output 'y' would take 131072000 bytes with all rows padded to the longest one; "
        "send fewer rows at once"
    ) in str(whole.settlement)


def test_a_request_whose_caller_has_left_hears_that_it_is_over() -> None:
    whole, left = Whole(10), Future[None]()
    whole.request._waiter = left
    parts = split(whole.request, parts_within(whole.request.rows, 4))
    left.cancel()
    assert not parts[0].settle(DeadlineExceeded("late"))
    assert whole.request.settled
    assert whole.settlements == []


class Hearing(Request):
    """A request that says what it is settled with, also where nobody waits, as those do that stand around."""

    __slots__ = ("heard",)
    heard: Settlement

    def settle(self, settlement: Settlement) -> bool:
        self.heard = settlement
        return super().settle(settlement)


def test_a_parts_answer_is_never_taken_for_the_answer_of_the_whole() -> None:
    left = Future[None]()
    layout, columns, rows = SUMS.check({"x": np.zeros((10, 1), np.float32)})
    whole = Hearing(layout, columns, rows, lambda _: None, waiter=left)
    parts = split(whole, parts_within(rows, 4))
    left.cancel()
    assert not parts[0].settle(answer(parts[0]))
    assert isinstance(whole.heard, Cancelled)


def test_the_first_error_is_the_answer_and_the_other_parts_are_not_wanted_any_more() -> None:
    whole = Whole(10)
    first, second, third = split(whole.request, parts_within(whole.request.rows, 4))
    first.settle(answer(first))
    second.settle(DeadlineExceeded("too late"))
    assert isinstance(whole.settlement, DeadlineExceeded)
    assert not third.wanted
    assert third.settle(answer(third)) is False


def test_parts_of_a_request_that_was_abandoned_are_not_wanted() -> None:
    whole = Whole(10)
    parts = split(whole.request, parts_within(whole.request.rows, 4))
    assert all(part.wanted for part in parts)
    whole.request.abandon()
    assert not any(part.wanted for part in parts)


def settle_with_lengths(whole: Whole, *, fill: bool, shapes: list[tuple[int, ...]]) -> None:
    for part, shape in zip(
        split(whole.request, parts_within(whole.request.rows, 1), fill=fill), shapes, strict=True
    ):
        text = np.full((1, *shape), b"t", object)
        part.settle(answer(part, {"y": np.ones((1, *shape), np.float32), "t": text}))


def test_parts_answered_with_different_lengths_are_filled_up_where_the_policy_fills() -> None:
    whole = Whole(2)
    settle_with_lengths(whole, fill=True, shapes=[(1, 2), (2, 1)])
    assert isinstance(whole.settlement, Answer)
    assert whole.settlement.tensor("y").tolist() == [[[1, 1], [0, 0]], [[1, 0], [1, 0]]]
    assert whole.settlement.tensor("t").tolist() == [[[b"t", b"t"], [b"", b""]], [[b"t", b""], [b"t", b""]]]


@pytest.mark.parametrize(
    ("fill", "shapes"), [(False, [(1,), (2,)]), (True, [(1,), (1, 1)])], ids=["no filling", "other ranks"]
)
def test_parts_whose_answers_do_not_fit_together_are_an_error_not_an_exception(
    fill: bool, shapes: list[tuple[int, ...]]
) -> None:
    whole = Whole(2)
    settle_with_lengths(whole, fill=fill, shapes=shapes)
    assert isinstance(whole.settlement, ModelError)
    assert "'y'" in whole.settlement.message
    assert "fewer rows" in whole.settlement.message


def test_parts_that_cannot_be_joined_are_an_error_for_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_memory(*_: object, **__: object) -> Array:
        raise MemoryError

    whole = Whole(5)
    parts = split(whole.request, [3, 2], fill=False)
    monkeypatch.setattr(np, "concatenate", without_memory)
    for part in parts:
        part.settle(answer(part))
    assert isinstance(whole.settlement, ModelError)
    assert "MemoryError" in whole.settlement.message
