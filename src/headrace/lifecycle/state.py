"""The states of a version, and the one table of how it may pass from one to another.

Rule: every legal transition is in ``TRANSITIONS``, and nothing but ``after`` changes a state.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """Where a version is in its life."""

    NEW = "new"
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    UNLOADED = "unloaded"
    FAILED = "failed"


class Event(Enum):
    """What happens to a version."""

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
    State.WARMING: {Event.WARMED: State.READY, Event.FAIL: State.FAILED},
    State.READY: {Event.DRAIN: State.DRAINING},
    State.DRAINING: {Event.DRAINED: State.UNLOADED},
    State.UNLOADED: {},
    State.FAILED: {Event.RETRY: State.NEW},
}


class IllegalTransition(RuntimeError):
    """An event came that the state does not allow; nothing has changed. This is a bug in headrace."""


def after(state: State, event: Event) -> State:
    """The state after an event.

    Raises:
        IllegalTransition: The event is not allowed in this state.
    """
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        allowed = ", ".join(known.value for known in TRANSITIONS[state]) or "nothing"
        raise IllegalTransition(f"{event.value} in state {state.value}; allowed: {allowed}") from None


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """What can be told about one version.

    Attributes:
        version: Its number.
        state: Where it is in its life.
        wanted: Whether its Source wants it.
        error: Why it failed the last time, or "".
        attempts: How often loading has been tried.
    """

    version: int
    state: State
    wanted: bool = True
    error: str = ""
    attempts: int = 0
