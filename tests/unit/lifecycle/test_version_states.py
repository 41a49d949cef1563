"""The states of a version: the table is the law."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from headrace.lifecycle.version_states import TRANSITIONS, Event, IllegalTransition, State, after, diagram

LEGAL = {
    (State.NEW, Event.LOAD): State.LOADING,
    (State.LOADING, Event.LOADED): State.WARMING,
    (State.LOADING, Event.FAIL): State.FAILED,
    (State.WARMING, Event.WARMED): State.READY,
    (State.WARMING, Event.FAIL): State.FAILED,
    (State.WARMING, Event.DRAIN): State.DRAINING,
    (State.READY, Event.DRAIN): State.DRAINING,
    (State.DRAINING, Event.DRAINED): State.UNLOADED,
    (State.FAILED, Event.RETRY): State.NEW,
}
PAIRS = sorted(product(State, Event), key=lambda pair: (pair[0].value, pair[1].value))


@pytest.mark.parametrize(("state", "event"), PAIRS)
def test_an_event_leads_where_the_table_says_or_is_refused(state: State, event: Event) -> None:
    expected = LEGAL.get((state, event))
    if expected is not None:
        assert after(state, event) is expected
        return
    with pytest.raises(
        IllegalTransition, match=rf"^{event.value} in state {state.value}; allowed: "
    ) as caught:
        after(state, event)
    assert all(known.value in str(caught.value) for known in TRANSITIONS[state])


def test_every_state_has_a_row_and_all_but_unloaded_lead_on() -> None:
    assert set(TRANSITIONS) == set(State)
    assert [state for state, row in TRANSITIONS.items() if not row] == [State.UNLOADED]


def test_the_diagram_has_one_arrow_a_transition() -> None:
    arrows = [line for line in diagram().splitlines() if ": " in line]
    assert len(arrows) == len(LEGAL)
    for (state, _), to in LEGAL.items():
        assert any(line.strip().startswith(f"{state.value} --> {to.value}: ") for line in arrows)


def test_the_documentation_shows_exactly_this_table() -> None:
    page = (Path(__file__).parents[3] / "docs" / "versions.md").read_text("utf-8")
    assert f"```mermaid\n{diagram()}\n```" in page
