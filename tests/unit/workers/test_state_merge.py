"""What several workers tell, as one: truth tables."""

from __future__ import annotations

import pytest

from headrace.lifecycle.version_states import State, VersionStatus
from headrace.workers import state_merge
from headrace.workers.messages import ModelState, States
from headrace.workers.shared_state import MergedStates
from headrace.workers.state_merge import Standing

NEW, LOADING, WARMING, READY, DRAINING, UNLOADED, FAILED = (
    *(State.NEW, State.LOADING, State.WARMING, State.READY),
    *(State.DRAINING, State.UNLOADED, State.FAILED),
)


@pytest.mark.parametrize(
    ("states", "wanted", "expected"),
    [
        ([READY, READY], True, READY),
        ([READY, WARMING], True, WARMING),
        ([READY, LOADING, WARMING], True, LOADING),
        ([READY, NEW], True, NEW),
        ([READY, None], True, NEW),  # it has not heard of it yet
        ([READY, None], False, UNLOADED),  # it has let it go already
        ([READY, DRAINING], False, DRAINING),
        ([DRAINING, None], False, DRAINING),
        ([UNLOADED, DRAINING], False, DRAINING),
        ([LOADING, DRAINING], True, DRAINING),
        ([READY, FAILED], True, FAILED),
        ([LOADING, FAILED, None], True, FAILED),
        ([READY], True, READY),
    ],
)
def test_states_of_a_version_are_merged_over_workers(
    states: list[State | None], wanted: bool, expected: State
) -> None:
    told = [None if one is None else VersionStatus(3, one, wanted) for one in states]
    for order in (told, told[::-1]):
        found = state_merge.version(order)
        assert (found.version, found.state, found.wanted) == (3, expected, wanted)


def test_a_failure_is_told_with_its_reason_whoever_has_it() -> None:
    failed = VersionStatus(1, FAILED, error="no memory", attempts=3, reason="no memory for /m/1")
    found = state_merge.version([VersionStatus(1, READY, attempts=1), failed])
    assert (found.state, found.error, found.attempts) == (FAILED, "no memory", 3)
    assert found.reason == "no memory for /m/1"


def model(*versions: tuple[int, State], answers: bool = True, problem: str = "") -> ModelState:
    statuses = tuple(VersionStatus(number, state) for number, state in versions)
    return ModelState(statuses, answers, (problem,) if problem else ())


@pytest.mark.parametrize(
    ("told", "numbers", "answers", "problems"),
    [
        ([model((1, READY)), model((1, READY))], [1], True, ()),
        # In the middle of a swap no version is ready in all of them, and the model answers in each.
        ([model((2, READY)), model((2, LOADING), (1, READY))], [2, 1], True, ()),
        ([model((1, READY)), model((1, LOADING), answers=False)], [1], False, ()),
        ([model((1, READY)), None], [1], False, ()),
        ([model(problem="a"), model(problem="a"), model(problem="b")], [], True, ("a", "b")),
    ],
)
def test_models_are_merged_over_workers(
    told: list[ModelState | None], numbers: list[int], answers: bool, problems: tuple[str, ...]
) -> None:
    found = state_merge.model(told)
    assert found is not None
    assert [one.version for one in found.versions] == numbers
    assert (found.answers, found.problems) == (answers, problems)


def test_a_model_unknown_to_all_workers_has_no_state() -> None:
    assert state_merge.model([None, None]) is None


@pytest.mark.parametrize(
    ("standings", "expected"),
    [
        ([], False),
        ([Standing(True, True, True)], True),
        ([Standing(True, True, False)], False),
        ([Standing(True, False, True)], False),  # it loads, and does not accept yet
        ([Standing(True, True, True), Standing(True, True, False)], False),  # the start: one still loads
        ([Standing(True, True, True), Standing(True, False, False)], False),
        ([Standing(True, True, True), Standing(False, False, False)], True),  # one takes a dead one's place
        ([Standing(True, True, True), Standing(False, True, True)], True),
        ([Standing(False, True, True)], True),
        ([Standing(False, False, False)], False),  # all have died
    ],
)
def test_whether_the_server_is_ready(standings: list[Standing], expected: bool) -> None:
    assert state_merge.ready(standings) is expected


def test_only_changed_models_are_reported() -> None:
    merged = MergedStates()
    both = {0: Standing(True, True, True), 1: Standing(True, True, True)}
    merged.begin(0)
    merged.begin(1)
    merged.take(0, States({"m": model((1, READY))}, True))
    view = merged.changes(both)
    assert view is not None
    told = view.models["m"]
    assert told is not None
    assert told.versions[0].state is NEW
    assert merged.changes(both) is None, "nothing new"
    merged.take(1, States({"m": model((1, READY))}, True))
    view = merged.changes(both)
    assert view is not None
    told = view.models["m"]
    assert told is not None
    assert (told.versions[0].state, told.answers) == (READY, True)
    merged.end(1)
    assert merged.changes({0: both[0]}) is None, "the other one has it, too"
    merged.begin(1)
    assert merged.changes({0: both[0], 1: Standing(False, False, False)}) is None, "it does not count yet"
    merged.take(0, States({"m": None}, True))
    view = merged.changes({0: both[0]})
    assert view is not None
    assert (view.models, merged.whole().models) == ({"m": None}, {})
