"""The ledger of a soak adds up, and says so when it does not."""

from __future__ import annotations

import pytest

from benchmarks.soak.ledger import Ledger, Outcome, counted, disagreements

HERE, THERE = ("plain", "TFS REST"), ("workers", "OIP gRPC")


def test_each_request_is_counted_where_it_was_sent() -> None:
    ledger = Ledger()
    numbers = [ledger.open(HERE), ledger.open(HERE), ledger.open(THERE)]
    assert numbers == [1, 2, 3]
    ledger.close(2, Outcome.LOST, 1.0, 0.1, "kill server")
    ledger.close(1, Outcome.RIGHT, 1.1, 0.2)
    ledger.close(3, Outcome.RIGHT, 1.1, 0.2)
    assert counted(ledger) == {HERE: {Outcome.RIGHT: 1, Outcome.LOST: 1}, THERE: {Outcome.RIGHT: 1}}
    assert disagreements(ledger) == []
    assert not ledger.open_now


def test_what_has_not_ended_is_told() -> None:
    ledger = Ledger()
    ledger.open(HERE)
    ledger.open(THERE)
    ledger.close(2, Outcome.RIGHT, 1.0, 0.1)
    assert disagreements(ledger) == ["plain, TFS REST: 1 sent, 0 ended"]
    assert ledger.open_now == {1: HERE}


def test_nothing_ends_twice() -> None:
    ledger = Ledger()
    number = ledger.open(HERE)
    ledger.close(number, Outcome.RIGHT, 1.0, 0.1)
    with pytest.raises(ValueError, match="request 1 is not open"):
        ledger.close(number, Outcome.LOST, 1.0, 0.1)
