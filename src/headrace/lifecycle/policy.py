"""Which versions to serve, and what to do next to get there: pure decisions, tested as truth tables.

Each takes the whole situation and gives one answer; the Manager applies it and asks again until nothing is to
be done.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from headrace.config import VersionPolicy
from headrace.errors import NotLoadable, Unavailable
from headrace.lifecycle.state import Event, State

_FIRST_RETRY_SECONDS = 1.0
_MOST_DOUBLINGS = 30
_MOST_CAUSES = 16

_PASSING = {
    getattr(errno, name, None)
    for name in (
        *("EMFILE", "ENFILE", "ENOMEM", "EAGAIN", "ENOSPC", "EDQUOT"),  # something is short
        *("EIO", "ESTALE", "ETIMEDOUT", "ENOTCONN", "EHOSTDOWN"),  # a disk, a mount
    )
} - {None}
"""Errors of the system that say nothing of the files: they pass when somebody has seen to it."""


@dataclass(frozen=True, slots=True)
class VersionView:
    """What a decision sees of one version.

    Attributes:
        version: Its number.
        state: Where it is in its life.
        wanted: Whether it shall be served.
        labelled: Whether a label points at it now.
        retry_at: When a failed one may be tried again, on the monotonic clock; None for never.
    """

    version: int
    state: State
    wanted: bool
    labelled: bool = False
    retry_at: float | None = None


class Action(NamedTuple):
    """The next event for one version: LOAD, RETRY or DRAIN.

    Attributes:
        event: What shall happen.
        version: To which version.
    """

    event: Event
    version: int


def availability_preserving(versions: Sequence[VersionView], now: float) -> Action | None:
    """Load before unloading: while anything is wanted, what requests may ask for now is not taken away.

    The lowest unwanted version is drained that is neither the default nor labelled. Then the highest wanted
    version that can be loaded is loaded. TensorFlow Serving's rule of this name also drains the default as
    soon as any wanted version is ready; here it stays until the one that is to follow it is ready.

    Args:
        versions: All versions of one model.
        now: The monotonic time in seconds.
    """
    ready = [view for view in versions if view.state is State.READY]
    wanted = [view.version for view in versions if view.wanted]
    default = default_version([view.version for view in ready], wanted)
    kept = {view.version for view in ready if view.wanted or view.labelled} | {default}
    droppable = [view.version for view in ready if not wanted or view.version not in kept]
    return Action(Event.DRAIN, min(droppable)) if droppable else _load_highest(versions, now)


def resource_preserving(versions: Sequence[VersionView], now: float) -> Action | None:
    """Unload before loading, for models of which only one version fits. TensorFlow Serving's rule too.

    Unwanted versions are drained first; nothing is loaded until they are gone.

    Args:
        versions: All versions of one model.
        now: The monotonic time in seconds.
    """
    unwanted_ready = [view.version for view in versions if not view.wanted and view.state is State.READY]
    if unwanted_ready:
        return Action(Event.DRAIN, min(unwanted_ready))
    if any(_holds_resources(view) for view in versions):
        return None
    return _load_highest(versions, now)


Transition = Callable[[Sequence[VersionView], float], Action | None]

TRANSITION_POLICIES: Mapping[Literal["availability", "resource"], Transition] = {
    "availability": availability_preserving,
    "resource": resource_preserving,
}


def choose(policy: VersionPolicy, numbers: Collection[int], pin: int | None = None) -> frozenset[int]:
    """Say which of the versions that exist shall be served.

    A pin hides every version above it, whatever the policy: what was rolled back from does not serve.
    ``latest`` and ``all`` also serve what labels point at; ``specific`` also serves the pin.

    Args:
        policy: The model's version policy.
        numbers: The versions that exist.
        pin: The version that the operator went back to.
    """
    visible = sorted(number for number in numbers if pin is None or number <= pin)
    if policy.policy == "all":
        return frozenset(visible)
    if policy.policy == "specific":
        return frozenset(number for number in visible if number in policy.numbers or number == pin)
    labelled = set(policy.labels.values())
    return frozenset(visible[-policy.count :]) | frozenset(number for number in visible if number in labelled)


def default_version(ready: Collection[int], wanted: Collection[int]) -> int | None:
    """Say which version answers requests that name none.

    Args:
        ready: The versions that are ready.
        wanted: The versions that shall be served.

    Returns:
        The highest wanted version, once it is ready; until then the highest that is ready; None if none is.
    """
    highest = max(wanted, default=None)
    return highest if highest in ready else max(ready, default=None)


def place_labels(
    labels: Mapping[str, int], previous: Mapping[str, int], ready: Collection[int]
) -> dict[str, int]:
    """Say where labels point: onto ready versions only.

    Args:
        labels: Where they shall point.
        previous: Where they point now.
        ready: The versions that are ready.

    Returns:
        The labels that point somewhere: at their target if it is ready, else where they pointed before if
        that is.
    """
    placed = {}
    for label, target in labels.items():
        version = target if target in ready else previous.get(label)
        if version is not None and version in ready:
            placed[label] = version
    return placed


def retry_seconds(attempts: int, longest_seconds: float) -> float:
    """How long to wait before a failed load is tried again: a second, then twice as long each time.

    Args:
        attempts: How often it has failed, at least once.
        longest_seconds: The longest wait.
    """
    return float(min(longest_seconds, _FIRST_RETRY_SECONDS * 2 ** min(attempts - 1, _MOST_DOUBLINGS)))


def pause_before_retry(error: BaseException, attempts: int, policy: VersionPolicy) -> float | None:
    """How long to wait before a failed load is tried again, in seconds; None for never.

    Never is until its files or its settings change, or it is loaded by hand. What the system is short of may
    be short for hours: then it is tried again and again, with the longest pause in between.

    Args:
        error: Why it failed.
        attempts: How often it has failed, at least once.
        policy: The model's version policy.
    """
    if isinstance(error, NotLoadable):
        return None
    if attempts < policy.load_attempts:
        return retry_seconds(attempts, policy.load_retry_seconds)
    return max(_FIRST_RETRY_SECONDS, policy.load_retry_seconds) if _is_of_the_system(error) else None


def _is_of_the_system(error: BaseException) -> bool:
    """Whether the system had too little of something, or a disk or store failed: of all, or of one cause."""
    cause: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if isinstance(cause, MemoryError | Unavailable) or (
            isinstance(cause, OSError) and cause.errno in _PASSING
        ):
            return True
        if type(cause) is RuntimeError and "can't start new thread" in str(cause):  # Python's, without a type
            return True
        if cause is None:
            break
        cause = cause.__cause__ or cause.__context__
    return False


def _load_highest(versions: Sequence[VersionView], now: float) -> Action | None:
    loadable = [view for view in versions if view.wanted and (view.state is State.NEW or _is_due(view, now))]
    if not loadable:
        return None
    highest = max(loadable, key=lambda view: view.version)
    return Action(Event.LOAD if highest.state is State.NEW else Event.RETRY, highest.version)


def _is_due(view: VersionView, now: float) -> bool:
    return view.state is State.FAILED and view.retry_at is not None and view.retry_at <= now


def _holds_resources(view: VersionView) -> bool:
    if view.state is State.DRAINING:
        return True
    return not view.wanted and view.state in (State.LOADING, State.WARMING)
