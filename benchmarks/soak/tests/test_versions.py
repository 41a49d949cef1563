"""Which versions may answer, by what was done and what was seen."""

from __future__ import annotations

import pytest

from benchmarks.soak.versions import Shelf, Standing, is_at_rest


@pytest.mark.parametrize(
    ("shelf", "serving", "default"),
    [
        (Shelf(frozenset({1, 2, 3})), {2, 3}, 3),
        (Shelf(frozenset({1, 2, 3}), pin=2), {1, 2}, 2),
        (Shelf(frozenset({1, 2, 3}), pin=1), {1}, 1),
        (Shelf(frozenset({1, 2, 3}), damaged=frozenset({4})), {3}, 3),
        (Shelf(frozenset({5})), {5}, 5),
    ],
)
def test_two_versions_are_served_of_those_that_may(shelf: Shelf, serving: set[int], default: int) -> None:
    assert shelf.serving == serving
    assert shelf.default == default


def test_a_new_version_may_answer_at_once_and_the_old_one_until_the_server_was_seen_to_follow() -> None:
    standing = Standing()
    standing.change([1])
    standing.settle(Shelf(frozenset({1})), now=10.0)
    assert standing.allowed(sent=11.0) == {1}
    assert standing.served == {1}
    standing.change([2])
    assert standing.allowed(sent=12.0) == {1, 2}
    assert standing.served == frozenset()
    standing.settle(Shelf(frozenset({1, 2})), now=13.0)
    assert standing.allowed(sent=12.9) == {1, 2}, "it was sent before"
    assert standing.allowed(sent=13.1) == {2}
    assert standing.served == {1, 2}
    standing.change([1])  # a rollback
    standing.settle(Shelf(frozenset({1, 2}), pin=1), now=20.0)
    assert standing.allowed(sent=20.1) == {1}
    assert standing.changes == 3


@pytest.mark.parametrize(
    ("states", "is_there"),
    [
        ({3: "AVAILABLE", 2: "AVAILABLE", 1: "END"}, True),
        ({3: "AVAILABLE", 2: "AVAILABLE"}, True),
        ({3: "AVAILABLE", 2: "AVAILABLE", 1: "UNLOADING"}, False),
        ({3: "LOADING", 2: "AVAILABLE", 1: "AVAILABLE"}, False),
        ({3: "AVAILABLE"}, False),
        ({3: "AVAILABLE", 2: "AVAILABLE", 1: "AVAILABLE"}, False),
        ({}, False),
    ],
)
def test_a_server_is_at_rest_when_it_serves_just_what_it_shall(
    states: dict[int, str], is_there: bool
) -> None:
    assert is_at_rest(states, Shelf(frozenset({1, 2, 3}))) is is_there


def test_a_damaged_version_is_at_rest_when_it_has_failed() -> None:
    shelf = Shelf(frozenset({2}), damaged=frozenset({3}))
    assert is_at_rest({3: "END", 2: "AVAILABLE"}, shelf)
    assert not is_at_rest({3: "AVAILABLE", 2: "AVAILABLE"}, shelf)
