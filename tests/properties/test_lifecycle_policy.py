"""Properties of the version policies, and of the Manager that applies them, in any order of events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.lifecycle.policy import (
    Transition,
    VersionView,
    availability_preserving,
    default_version,
    resource_preserving,
)
from headrace.lifecycle.version_states import Event, State, after
from tests.unit.lifecycle.stage import Stage, wanted

NOW = 100.0
BOTH = pytest.mark.parametrize("policy", [availability_preserving, resource_preserving])


@st.composite
def situations(draw: st.DrawFn) -> list[VersionView]:
    numbers = draw(st.lists(st.integers(0, 20), unique=True, max_size=6))
    return [
        VersionView(
            number,
            draw(st.sampled_from(State)),
            draw(st.booleans()),
            draw(st.booleans()),
            draw(st.sampled_from([None, NOW - 1, NOW, NOW + 1])),
        )
        for number in numbers
    ]


def applied(versions: list[VersionView], number: int, event: Event) -> list[VersionView]:
    return [
        replace(view, state=after(view.state, event)) if view.version == number else view for view in versions
    ]


@BOTH
@given(versions=situations())
def test_what_a_policy_asks_for_is_legal_and_decided_by_the_situation_alone(
    policy: Transition, versions: list[VersionView]
) -> None:
    action = policy(versions, NOW)
    assert action == policy(list(reversed(versions)), NOW)
    if action is None:
        return
    (view,) = (view for view in versions if view.version == action.version)
    after(view.state, action.event)  # raises where it is not legal
    assert view.wanted is (action.event is not Event.DRAIN)


@given(versions=situations())
def test_availability_never_takes_the_default_away_while_anything_is_wanted(
    versions: list[VersionView],
) -> None:
    action = availability_preserving(versions, NOW)
    wanted_numbers = [view.version for view in versions if view.wanted]
    ready = [view.version for view in versions if view.state is State.READY]
    if action is not None and action.event is Event.DRAIN and wanted_numbers:
        assert action.version != default_version(ready, wanted_numbers)
        assert len(ready) > 1


def finish(versions: list[VersionView], policy: Transition) -> list[VersionView]:
    """Apply a policy and let everything that it starts succeed, until it asks for nothing."""
    for _ in range(100):
        action = policy(versions, NOW)
        if action is not None:
            versions = applied(versions, action.version, action.event)
            continue
        for view in versions:
            event = {State.LOADING: Event.LOADED, State.WARMING: Event.WARMED, State.DRAINING: Event.DRAINED}
            if view.state in event:
                versions = applied(versions, view.version, event[view.state])
                break
        else:
            return versions
    raise AssertionError(f"never done: {versions}")


@BOTH
@given(versions=situations())
def test_the_wanted_set_is_reached_when_loads_succeed(
    policy: Transition, versions: list[VersionView]
) -> None:
    # What drains or is gone comes back as a new record, which is the Manager's to make.
    fresh = [
        replace(view, state=State.NEW, retry_at=None)
        if view.wanted and view.state in (State.DRAINING, State.UNLOADED, State.FAILED)
        else view
        for view in versions
    ]
    # Labels move on in the end.
    done = finish([replace(view, labelled=False) for view in fresh], policy)
    ready = {view.version for view in done if view.state is State.READY}
    assert ready == {view.version for view in done if view.wanted}


numbers = st.frozensets(st.integers(1, 5), max_size=3)
events = st.one_of(
    st.tuples(st.just("want"), numbers),
    st.tuples(st.just("step"), st.just(frozenset[int]())),
    st.tuples(st.just("advance"), st.just(frozenset[int]())),
    st.tuples(st.just("hold"), st.just(frozenset[int]())),
    st.tuples(st.just("release"), st.just(frozenset[int]())),
)


@given(
    script=st.lists(events, max_size=40),
    failures=st.dictionaries(st.integers(1, 5), st.integers(1, 3)),
    transition=st.sampled_from(["availability", "resource"]),
)
def test_the_manager_serves_without_a_gap_and_arrives_at_what_is_wanted(
    script: list[tuple[str, frozenset[int]]], failures: Mapping[int, int], transition: str
) -> None:
    stage, held = Stage(), []
    toml = f'[versions]\ntransition = "{transition}"'
    for number, times in failures.items():
        stage.loader.fail("load", "m", number, times)
    stage.want(m=wanted(toml=toml))
    now_wanted: frozenset[int] = frozenset()
    served = False
    for event, said in [*script, ("want", frozenset({3}))]:
        if event == "want":
            now_wanted = said
            stage.want(m=wanted(*said, toml=toml))
        elif event == "step" and len(stage.executor):
            stage.step()
        elif event == "advance":
            stage.clock.advance(1.0)
        elif event == "hold" and stage.ready():
            held.append(stage.manager.get("m"))
            held[-1].acquire()
        elif event == "release" and held:
            held.pop().release()
        if transition == "availability":
            # Once a version serves, one serves as long as any is wanted.
            assert stage.ready() or not (served and now_wanted)
            served = bool(stage.ready())
        assert not any(loaded.closed for loaded in held)
    for loaded in held:
        loaded.release()
    for _ in range(20):
        stage.run()
        stage.clock.advance(60.0)
    assert stage.states() == {3: State.READY}
    assert stage.loader.open == {"m/3"}
