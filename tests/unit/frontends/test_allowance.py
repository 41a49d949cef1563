"""What a request may cost beside its bytes: a truth table of the limits."""

from __future__ import annotations

import pytest

from headrace.config import Limits
from headrace.errors import Overloaded, TooLarge
from headrace.frontends.allowance import ALWAYS_ALLOWED_VALUES, Allowance
from headrace.frontends.calls import Account, GrpcCall, HttpCall


@pytest.mark.parametrize(
    ("most", "wire_bytes", "expected"),
    [
        (1_000_000, 10, ALWAYS_ALLOWED_VALUES),  # small bodies may compress well
        (1_000_000, 200_000, 100_000),
        (1_000_000, 10_000_000, 1_000_000),
        (100, 10_000_000, 100),  # what the operator says holds for all
    ],
)
def test_how_many_values_a_request_may_have(most: int, wire_bytes: int, expected: int) -> None:
    allowance = Allowance(Limits(max_values=most), wire_bytes)
    assert allowance.most_values == expected
    allowance.values(expected - 1, "x")
    allowance.values(1, "y")
    with pytest.raises(
        TooLarge, match=rf"^z: expected at most {expected} values .* got {expected + 1} or more"
    ):
        allowance.values(1, "z")


def test_the_error_names_the_limit_that_was_met() -> None:
    with pytest.raises(TooLarge, match=r"limits\.max_values"):
        Allowance(Limits(max_values=5), 100).values(6, "x")
    with pytest.raises(TooLarge, match=r"came as 100 bytes.*uncompressed"):
        Allowance(Limits(), 100).values(ALWAYS_ALLOWED_VALUES + 1, "x")


def test_what_is_spread_and_repeated_adds_up_over_all_inputs() -> None:
    allowance = Allowance(Limits(max_expanded_bytes=1000), 10)
    allowance.expanded(600, "a")
    allowance.expanded(400, "b")
    with pytest.raises(TooLarge, match=r"^c: .*1001 bytes.*at most 1000.*limits\.max_expanded_bytes"):
        allowance.expanded(1, "c")


@pytest.mark.parametrize("call", [HttpCall("POST", "/", {}), GrpcCall()], ids=["http", "grpc"])
def test_a_call_says_what_arrived(call: HttpCall | GrpcCall) -> None:
    assert Allowance.of(Limits(), call, b"12345").wire_bytes == 5
    call.wire_bytes = 3
    assert Allowance.of(Limits(), call, b"12345").wire_bytes == 3


def test_what_is_parsed_counts_on_the_calls_account() -> None:
    taken: list[int] = []

    def take(size: int) -> None:
        if sum(taken) + size > 100:
            raise Overloaded("full")
        taken.append(size)

    account = Account(take)
    allowance = Allowance(Limits(), 10, account)
    allowance.hold(60)
    allowance.hold(40)
    with pytest.raises(Overloaded):
        allowance.hold(1)
    assert (account.held, taken) == (100, [60, 40])
    Allowance(Limits(), 10).hold(1 << 40)  # nothing is counted where there is no account


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
    allowance = Allowance.of(Limits(), call, call.body)
    allowance.expanded(100, "x")
    assert call.account is not None
    assert call.account.held == budget.held == 105  # and the transport settles it


def test_messages_of_one_grpc_call_hold_each_on_their_own_until_they_are_settled() -> None:
    budget = _Budget()
    call = GrpcCall(budget=budget)
    with Allowance.of(Limits(), call, b"1") as first:
        first.expanded(100, "x")
        with Allowance.of(Limits(), call, b"2") as second:
            second.expanded(10, "x")
            assert budget.held == 110
        assert budget.held == 100
    assert budget.held == 0


def test_rows_are_limited_once_the_model_is_known() -> None:
    allowance = Allowance(Limits(), 10)
    allowance.rows(1 << 40, "x")
    allowance.most_rows = 100
    allowance.rows(100, "x")
    with pytest.raises(TooLarge, match=r"^x: the request has 101 rows.*max_queue_rows = 100"):
        allowance.rows(101, "x")
