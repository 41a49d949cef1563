"""What a request may cost beside its bytes: a truth table of the limits."""

from __future__ import annotations

import pytest

from headrace.base.errors import Overloaded, TooLarge
from headrace.config import Limits
from headrace.frontends.calls import Account, GrpcCall, HttpCall
from headrace.frontends.wire.request_budget import RequestBudget


def test_how_many_values_a_request_may_have() -> None:
    request_budget = RequestBudget(Limits(max_values=100))
    request_budget.values(99, "x")
    request_budget.values(1, "y")
    with pytest.raises(
        TooLarge, match=r"^z: expected at most 100 values.*limits\.max_values.*got 101 or more"
    ):
        request_budget.values(1, "z")


def test_what_is_spread_and_repeated_adds_up_over_all_inputs() -> None:
    request_budget = RequestBudget(Limits(max_expanded_bytes=1000))
    request_budget.expanded(600, "a")
    request_budget.expanded(400, "b")
    with pytest.raises(TooLarge, match=r"^c: .*1001 bytes.*at most 1000.*limits\.max_expanded_bytes"):
        request_budget.expanded(1, "c")


def test_what_is_parsed_counts_on_the_calls_account() -> None:
    taken: list[int] = []

    def take(size: int) -> None:
        if sum(taken) + size > 100:
            raise Overloaded("full")
        taken.append(size)

    account = Account(take)
    request_budget = RequestBudget(Limits(), account)
    request_budget.hold(60)
    request_budget.hold(40)
    with pytest.raises(Overloaded):
        request_budget.hold(1)
    assert (account.held, taken) == (100, [60, 40])
    RequestBudget(Limits()).hold(1 << 40)  # nothing is counted where there is no account


class _Budget:
    def __init__(self) -> None:
        self.held = 0

    def hold_of_stream(self, size: int) -> None:
        self.held += size

    def release(self, size: int) -> None:
        self.held -= size


def test_a_small_http_call_has_an_account_once_something_is_held_for_it() -> None:
    budget, call = _Budget(), HttpCall("POST", "/", {}, body=b"12345")
    call.budget = budget
    budget.hold_of_stream(5)  # as the transport does when the body has come
    request_budget = RequestBudget.of(Limits(), call)
    request_budget.expanded(100, "x")
    assert call.account is not None
    assert (call.account.held, budget.held) == (100, 105)  # and the transport settles it


def test_messages_of_one_grpc_call_hold_each_on_their_own_until_they_are_settled() -> None:
    budget = _Budget()
    call = GrpcCall(budget=budget)
    with RequestBudget.of(Limits(), call) as first:
        first.expanded(100, "x")
        with RequestBudget.of(Limits(), call) as second:
            second.expanded(10, "x")
            assert budget.held == 110
        assert budget.held == 100
    assert budget.held == 0


def test_rows_are_limited_once_the_model_is_known() -> None:
    request_budget = RequestBudget(Limits())
    request_budget.rows(1 << 40, "x")
    request_budget.most_rows = 100
    request_budget.rows(100, "x")
    with pytest.raises(TooLarge, match=r"^x: the request has 101 rows.*max_queue_rows = 100"):
        request_budget.rows(101, "x")
