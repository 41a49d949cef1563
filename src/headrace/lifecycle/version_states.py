"""The states of a version, and the table of the legal transitions.

Rule: every legal transition is in ``TRANSITIONS``, and each new state comes from ``after``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """Life-cycle state of a version."""

    NEW = "new"
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    UNLOADED = "unloaded"
    FAILED = "failed"


class Event(Enum):
    """Event in the life cycle of a version."""

    LOAD = "load"
    LOADED = "loaded"
    WARMED = "warmed"
    DRAIN = "drain"
    DRAINED = "drained"
    FAIL = "fail"
    RETRY = "retry"


TRANSITIONS: dict[State, dict[Event, State]] = {
    State.NEW: {Event.LOAD: State.LOADING},
    State.LOADING: {Event.LOADED: State.WARMING, Event.FAIL: State.FAILED},
    State.WARMING: {Event.WARMED: State.READY, Event.FAIL: State.FAILED, Event.DRAIN: State.DRAINING},
    State.READY: {Event.DRAIN: State.DRAINING},
    State.DRAINING: {Event.DRAINED: State.UNLOADED},
    State.UNLOADED: {},
    State.FAILED: {Event.RETRY: State.NEW},
}


_MEANINGS: dict[Event, str] = {
    Event.LOAD: "a loader thread begins",
    Event.LOADED: "it is loaded",
    Event.WARMED: "it is warmed up",
    Event.DRAIN: "it is not wanted any more",
    Event.DRAINED: "no request holds it, and it is closed",
    Event.FAIL: "loading or warming up failed",
    Event.RETRY: "it is time to try again",
}


class IllegalTransition(RuntimeError):
    """The state does not allow the event; nothing has changed. This is a bug in headrace."""


def after(state: State, event: Event) -> State:
    """Return the state after an event.

    Raises:
        IllegalTransition: The event is not allowed in this state.
    """
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        allowed = ", ".join(known.value for known in TRANSITIONS[state]) or "nothing"
        raise IllegalTransition(f"{event.value} in state {state.value}; allowed: {allowed}") from None


def diagram() -> str:
    """Return the table as a Mermaid state diagram, for the docs."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.NEW.value}"]
    for state, row in TRANSITIONS.items():
        lines += [f"    {state.value} --> {to.value}: {_MEANINGS[event]}" for event, to in row.items()]
        lines += [] if row else [f"    {state.value} --> [*]"]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """Status of one version.

    Attributes:
        version: The version number.
        state: Life-cycle state.
        wanted: Whether its Source wants it.
        error: The last load failure, or why a ready version cannot answer; "" for none.
        attempts: Number of load attempts.
        outstanding: Number of requests and Leases that hold it, which a draining version waits for.
        reason: The error in full, for the operator only: with paths and messages of the model's own code.
    """

    version: int
    state: State
    wanted: bool = True
    error: str = ""
    attempts: int = 0
    outstanding: int = 0
    reason: str = ""

    @property
    def answers(self) -> bool:
        """Whether it is ready and able to answer."""
        return self.state is State.READY and not self.error
