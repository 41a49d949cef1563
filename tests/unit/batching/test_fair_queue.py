"""Callers take turns: by rows, within priorities; who is alone is served as he came."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.access.caller import ASKING, Caller
from headrace.batching.cost import BatchCost
from headrace.batching.fair_queue import FairBatchQueue, FairQueue
from headrace.batching.plan import BatchLimits, plan
from headrace.batching.request import Request
from headrace.config import BatchingPolicy
from headrace.frontends.calls import GrpcCall
from headrace.model.servable import Signature, TensorSpec


def request(
    queue: FairQueue, caller: str, rows: int = 1, priority: int | None = None, at: float = 0.0
) -> Request:
    """One that waits from now on."""
    made = Request(None, (), rows, lambda _: None)  # type: ignore[arg-type]  # nothing here looks at rows
    made.enqueued = at
    if priority is not None:
        call = GrpcCall()
        call.priority = priority
        made.call = call
    token = ASKING.set(Caller(caller, 0))
    try:
        queue.append(made)
    finally:
        ASKING.reset(token)
    return made


def order(queue: FairQueue) -> list[str]:
    return [one.turn.caller for one in queue]


def test_one_caller_is_served_as_he_came() -> None:
    queue = FairQueue()
    made = [request(queue, "a", rows) for rows in (5, 1, 3, 9, 1)]
    assert list(queue) == made


def test_who_comes_later_and_has_had_nothing_is_ahead_of_a_backlog() -> None:
    queue = FairQueue()
    for _ in range(100):
        request(queue, "greedy")
    request(queue, "modest")
    assert order(queue)[:3] == ["greedy", "modest", "greedy"]


def test_what_was_answered_alone_is_no_debt() -> None:
    queue = FairQueue()
    for _ in range(100):
        request(queue, "regular")
        queue.clear()  # as the short path of a lone request does
    for _ in range(10):
        request(queue, "newcomer")
    request(queue, "regular")
    assert order(queue)[:3] == ["newcomer", "regular", "newcomer"]


def test_turns_are_by_rows() -> None:
    queue = FairQueue()
    for _ in range(10):
        request(queue, "large", 10)
    for _ in range(50):
        request(queue, "small", 1)
    first = order(queue)[:44]
    assert first.count("large") == 4
    assert first.count("small") == 40


def test_a_higher_class_is_first_whatever_it_has_had() -> None:
    queue = FairQueue()
    for priority in (3, 2, 1, 2, 3, 1):
        request(queue, "a", 4, priority)
    assert [one.turn.priority for one in queue] == [1, 1, 2, 2, 3, 3]


def test_who_was_away_has_saved_nothing_up() -> None:
    queue = FairQueue()
    for _ in range(1000):
        request(queue, "a")
        queue.popleft()
    for _ in range(10):
        request(queue, "a")
        request(queue, "b")
    found = order(queue)
    assert found.count("a") == found.count("b")
    assert "b" in found[:2]
    assert "a" in found[:3]


def test_what_is_put_back_is_first_again() -> None:
    queue = FairQueue()
    made = [request(queue, "a") for _ in range(4)]
    taken = [queue.popleft() for _ in range(2)]
    queue.extendleft(reversed(taken))
    assert list(queue) == made
    request(queue, "b")
    assert order(queue)[:3] == ["a", "b", "a"]


def test_the_last_in_turn_gives_way() -> None:
    queue = FairQueue()
    for _ in range(10):
        request(queue, "greedy", 2)
    late = Request(None, (), 3, lambda _: None)  # type: ignore[arg-type]  # as above
    late.asker = "modest"
    before = list(queue)
    assert queue.rows_before(late) == 3
    giving = queue.give_way(late, 3)
    assert giving == before[:-3:-1]
    assert list(queue) == before[:-2]
    mine = Request(None, (), 3, lambda _: None)  # type: ignore[arg-type]  # as above
    mine.asker = "greedy"
    assert queue.give_way(mine, 1) == []
    assert queue.give_way(late, 1000) == []
    assert len(queue) == 8


def test_a_part_of_a_larger_request_gives_way_to_nobody() -> None:
    queue = FairQueue()
    whole = Request(None, (), 10, lambda _: None)  # type: ignore[arg-type]  # as above

    class Part(Request):
        __slots__ = ("whole",)

    for _ in range(3):
        part = Part(None, (), 5, lambda _: None)  # type: ignore[arg-type]  # as above
        part.whole = whole
        token = ASKING.set(Caller("greedy" if not len(queue) else "whoever runs just now", 0))
        queue.append(part)
        ASKING.reset(token)
    assert order(queue) == ["greedy"] * 3
    late = Request(None, (), 1, lambda _: None)  # type: ignore[arg-type]  # as above
    late.asker = "modest"
    assert queue.give_way(late, 1) == []
    assert order(queue) == ["greedy"] * 3


def test_nobody_moves_where_there_are_too_few_to_give_way() -> None:
    queue = FairQueue()
    for caller in ("a", "b", "a", "b", "a"):
        request(queue, caller, 2)
    before = list(queue)
    late = Request(None, (), 1, lambda _: None)  # type: ignore[arg-type]  # as above
    late.asker = "modest"
    assert queue.give_way(late, 1000) == []
    assert list(queue) == before


asked = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(1, 9), st.sampled_from([1, 2, 3])), max_size=60
)


@given(asked, st.integers(1, 20))
def test_nobody_is_lost_overtaken_by_himself_or_kept_out(
    asks: Iterable[tuple[str, int, int]], most: int
) -> None:
    queue = FairQueue()
    made = [request(queue, *one) for one in asks]
    served: list[Request] = []
    while queue:
        found = plan(queue, 0.0, BatchLimits(most))
        assert found.taken > 0
        served += [queue.popleft() for _ in range(found.taken)]
    assert sorted(map(id, served)) == sorted(map(id, made))
    by_caller = defaultdict(list)
    for one in served:
        by_caller[one.turn.caller, one.turn.priority].append(made.index(one))
    assert all(places == sorted(places) for places in by_caller.values())
    assert queue._rows == {}


@given(st.integers(1, 200), st.integers(1, 9))
def test_a_backlog_costs_a_newcomer_no_more_than_his_own_rows(backlog: int, rows: int) -> None:
    queue = FairQueue()
    for _ in range(backlog):
        request(queue, "greedy", 1)
    mine = request(queue, "modest", rows)
    ahead = list(queue).index(mine)
    assert ahead <= rows


def test_one_caller_dominates_nobody() -> None:
    queue = FairQueue()
    for number in range(10):
        request(queue, "greedy", at=number / 10)
    assert not queue.is_dominated


def test_who_has_most_of_the_queue_dominates_it_for_a_second_after_others_have_asked() -> None:
    queue = FairQueue()
    for number in range(10):
        request(queue, "greedy", at=number / 100)
    request(queue, "modest", at=0.1)
    assert queue.is_dominated
    request(queue, "greedy", at=0.2)
    while "modest" in order(queue):
        queue.popleft()
    assert queue.is_dominated, "also while the other has been answered: he comes again"
    request(queue, "greedy", at=1.1)
    assert queue.is_dominated
    request(queue, "greedy", at=1.3)
    assert not queue.is_dominated


def test_where_all_have_about_as_much_nobody_dominates() -> None:
    queue = FairQueue()
    for number in range(12):
        request(queue, f"caller {number % 4}", at=number / 100)
    assert not queue.is_dominated
    queue.clear()
    assert not queue.is_dominated


def test_batches_are_short_while_one_caller_crowds_others() -> None:
    signature = Signature("m", (TensorSpec("x", np.dtype(np.float32), ()),), ())
    cost = BatchCost()
    lane = FairBatchQueue(signature, BatchingPolicy(max_batch_rows=256), cost)
    for rows in (1, 100, 200, 1, 100, 200):
        cost.observe(rows, 0.0005 + 0.0002 * rows)
    usual = lane.rows_within(0.05)
    assert usual == 247
    for _ in range(10):
        request(lane.queue, "greedy")
    assert lane.rows_within(0.05) == usual
    request(lane.queue, "modest")
    assert lane.rows_within(0.05) == 10, "a fifth of 2.5 ms is the call's own"


def test_requests_without_rows_come_and_go() -> None:
    queue = FairQueue()
    nothing = request(queue, "a", rows=0)
    some = request(queue, "b", rows=2)
    assert queue.popleft() is nothing
    assert queue.popleft() is some
    assert not queue
