"""Merge the workers' states of models into the state of the server; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.lifecycle.version_states import State, VersionStatus
from headrace.workers.messages import ModelState

_ON_THE_WAY = (State.NEW, State.LOADING, State.WARMING, State.READY)
_GOING = (State.DRAINING, State.UNLOADED)


class Standing(NamedTuple):
    """State of one worker.

    Attributes:
        first: Whether it is the first process at its place, started together with the server.
        serving: Whether it accepts connections.
        ready: Whether its models have been tried and one is ready.
    """

    first: bool
    serving: bool
    ready: bool


def is_counted(standing: Standing) -> bool:
    """Return whether a worker's state counts; a replacement counts only once it accepts connections."""
    return standing.first or standing.serving


def ready(standings: Iterable[Standing]) -> bool:
    """Return whether the server is ready: all workers that count are ready, and one accepts connections.

    A worker that has ended no longer counts, and its replacement does not count until it accepts connections.
    A server that is ready therefore stays ready as long as one worker answers.

    Args:
        standings: States of the running workers.
    """
    counted = [one for one in standings if is_counted(one)]
    return all(one.ready for one in counted) and any(one.serving for one in counted)


def version(told: Sequence[VersionStatus | None]) -> VersionStatus:
    """Merge the workers' statuses of a version.

    The version is failed if any worker's is; otherwise draining, or else unloaded, if any worker's is;
    otherwise it has the least advanced state.

    Args:
        told: Each worker's status of the version; None if the worker does not know it yet or any more.
    """
    known = [one for one in told if one is not None]
    wanted = all(one.wanted for one in known)
    absent = State.NEW if wanted else State.UNLOADED
    states = [absent if one is None else one.state for one in told]
    failed = next((one for one in known if one.state is State.FAILED), None)
    if failed is not None:
        state, error = State.FAILED, failed
    else:
        going = [one for one in _GOING if one in states]
        state, error = going[0] if going else min(states, key=_ON_THE_WAY.index), _first(known)
    return VersionStatus(
        known[0].version,
        state,
        wanted,
        error.error,
        max(one.attempts for one in known),
        sum(one.outstanding for one in known),
        error.reason,
    )


def _first(told: Sequence[VersionStatus]) -> VersionStatus:
    """Return the first status with an error of an earlier attempt, or the first status if none has one."""
    return next((one for one in told if one.error), told[0])


def model(told: Sequence[ModelState | None]) -> ModelState | None:
    """Merge the workers' states of a model; return None if no worker knows it.

    Args:
        told: Each worker's state; None if the worker does not know the model.
    """
    known = [one for one in told if one is not None]
    if not known:
        return None
    by_number = [{status.version: status for status in one.versions} if one else {} for one in told]
    numbers = sorted({number for statuses in by_number for number in statuses}, reverse=True)
    return ModelState(
        versions=tuple(version([statuses.get(number) for statuses in by_number]) for number in numbers),
        answers=all(one is not None and one.answers for one in told),
        problems=tuple(dict.fromkeys(problem for one in known for problem in one.problems)),
    )
