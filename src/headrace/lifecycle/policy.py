"""Decide which versions to serve and the next action to get there: pure functions, tested as truth tables.

Each function takes the whole state and returns one decision. The Manager applies it and calls again until
there is nothing left to do.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from headrace.base.errors import NotLoadable, Unavailable
from headrace.config import VersionPolicy
from headrace.lifecycle.version_states import Event, State

_FIRST_RETRY_SECONDS = 1.0
_MOST_DOUBLINGS = 30
_MOST_CAUSES = 16

_TRANSIENT = {
    getattr(errno, name, None)
    for name in (
        *("EMFILE", "ENFILE", "ENOMEM", "EAGAIN", "ENOSPC", "EDQUOT"),  # a resource is exhausted
        *("EIO", "ESTALE", "ETIMEDOUT", "ENOTCONN", "EHOSTDOWN"),  # a disk or a mount failed
    )
} - {None}
"""Errors of the system, not of the version's files, that may pass by themselves."""


@dataclass(frozen=True, slots=True)
class VersionView:
    """The part of a version's state that decisions depend on.

    Attributes:
        version: The version number.
        state: Life-cycle state.
        wanted: Whether it should be served.
        labelled: Whether a label points at it now.
        retry_at: Time from which a failed version may be retried, on the monotonic clock; None for never.
    """

    version: int
    state: State
    wanted: bool
    labelled: bool = False
    retry_at: float | None = None


class Action(NamedTuple):
    """The next event for one version: LOAD, RETRY or DRAIN.

    Attributes:
        event: The event.
        version: The version number.
    """

    event: Event
    version: int


def availability_preserving(versions: Sequence[VersionView], now: float) -> Action | None:
    """Return the next action of the policy that loads before unloading; None if there is nothing to do.

    Unwanted versions are drained first, the lowest one first. While any version is wanted, the default and
    labelled versions stay. Then the highest wanted version that can be loaded is loaded. TensorFlow
    Serving's policy of this name also drains the default as soon as any wanted version is ready; here it
    stays until its successor is ready.

    Args:
        versions: All versions of one model.
        now: Monotonic time in seconds.
    """
    ready = [view for view in versions if view.state is State.READY]
    wanted = [view.version for view in versions if view.wanted]
    default = default_version([view.version for view in ready], wanted)
    kept = {view.version for view in ready if view.wanted or view.labelled} | {default}
    droppable = [view.version for view in ready if not wanted or view.version not in kept]
    return Action(Event.DRAIN, min(droppable)) if droppable else _load_highest(versions, now)


def resource_preserving(versions: Sequence[VersionView], now: float) -> Action | None:
    """Return the next action of the policy that unloads before loading; None if there is nothing to do.

    For models of which only one version fits into memory; TensorFlow Serving has the same policy. Unwanted
    versions are drained first, and nothing is loaded until they are unloaded.

    Args:
        versions: All versions of one model.
        now: Monotonic time in seconds.
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
    """Return the versions that should be served.

    A pin hides every version above it under any policy, so a version that was rolled back does not serve.
    ``latest`` also serves the targets of labels; ``specific`` also serves the pinned version.

    Args:
        policy: The model's version policy.
        numbers: The versions that exist.
        pin: The version that the operator has pinned; None for none.
    """
    visible = sorted(number for number in numbers if pin is None or number <= pin)
    if policy.policy == "all":
        return frozenset(visible)
    if policy.policy == "specific":
        return frozenset(number for number in visible if number in policy.numbers or number == pin)
    labelled = set(policy.labels.values())
    return frozenset(visible[-policy.count :]) | frozenset(number for number in visible if number in labelled)


def default_version(ready: Collection[int], wanted: Collection[int]) -> int | None:
    """Return the version that answers requests that name none.

    Args:
        ready: The versions that are ready.
        wanted: The versions that should be served.

    Returns:
        The highest wanted version once it is ready, until then the highest ready version; None if there is
        none.
    """
    highest = max(wanted, default=None)
    return highest if highest in ready else max(ready, default=None)


def place_labels(
    labels: Mapping[str, int], previous: Mapping[str, int], ready: Collection[int]
) -> dict[str, int]:
    """Return the targets of labels, which are ready versions only.

    Args:
        labels: Wanted targets.
        previous: Current targets.
        ready: The versions that are ready.

    Returns:
        Each label's wanted target if it is ready, else its current target if that is ready; other labels are
        left out.
    """
    placed = {}
    for label, target in labels.items():
        version = target if target in ready else previous.get(label)
        if version is not None and version in ready:
            placed[label] = version
    return placed


def retry_seconds(attempts: int, longest_seconds: float) -> float:
    """Return the pause before a failed load is retried: 1 s, doubled with each further failure.

    Args:
        attempts: Number of failures, at least 1.
        longest_seconds: Upper bound of the pause.
    """
    return float(min(longest_seconds, _FIRST_RETRY_SECONDS * 2 ** min(attempts - 1, _MOST_DOUBLINGS)))


def pause_before_retry(error: BaseException, attempts: int, policy: VersionPolicy) -> float | None:
    """Return the pause before a failed load is retried, in seconds; None for no retry.

    Without a retry, the version stays failed until its files or settings change or it is loaded by hand. A
    lack of resources, or a failed disk or store, may last for hours. Once the usual attempts are used up,
    such loads are retried without limit, with the longest pause.

    Args:
        error: The failure.
        attempts: Number of failures, at least 1.
        policy: The model's version policy.
    """
    if isinstance(error, NotLoadable):
        return None
    if attempts < policy.load_attempts:
        return retry_seconds(attempts, policy.load_retry_seconds)
    return max(_FIRST_RETRY_SECONDS, policy.load_retry_seconds) if _is_transient(error) else None


def _is_transient(error: BaseException) -> bool:
    """Return whether an error or one of its causes may pass: a lack of resources, a failed disk or store."""
    cause: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if isinstance(cause, MemoryError | Unavailable) or (
            isinstance(cause, OSError) and cause.errno in _TRANSIENT
        ):
            return True
        if type(cause) is RuntimeError and "can't start new thread" in str(cause):  # has no type of its own
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
