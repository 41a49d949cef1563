"""What several workers tell of models, as the one thing that a server says of them: pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.lifecycle.state import State, VersionStatus
from headrace.workers.messages import ModelTold

_ON_THE_WAY = (State.NEW, State.LOADING, State.WARMING, State.READY)
_GOING = (State.DRAINING, State.UNLOADED)


class Standing(NamedTuple):
    """How far one worker is.

    Attributes:
        first: Whether it is the first process at its place: the others began while it did.
        serving: Whether it accepts connections.
        ready: Whether its models have been tried, and one answers.
    """

    first: bool
    serving: bool
    ready: bool


def is_counted(standing: Standing) -> bool:
    """Whether what a worker tells counts: one that takes another's place does when it accepts connections."""
    return standing.first or standing.serving


def ready(standings: Iterable[Standing]) -> bool:
    """Whether the server is ready: all that are counted are, and one of them accepts connections.

    A worker that ends is counted no more, and one that takes its place is not counted before it is ready: so
    this stays true as long as one of them answers.

    Args:
        standings: The workers that run.
    """
    counted = [one for one in standings if is_counted(one)]
    return all(one.ready for one in counted) and any(one.serving for one in counted)


def version(told: Sequence[VersionStatus | None]) -> VersionStatus:
    """What a server says of a version: ready when all workers have it, else what the last of them is at.

    Args:
        told: What each worker says, of the same version; None where it knows none: not yet, or no more.
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
    """The first that has an error, of an attempt before the present one; any if none has."""
    return next((one for one in told if one.error), told[0])


def model(told: Sequence[ModelTold | None]) -> ModelTold | None:
    """What a server says of a model; None if no worker knows it.

    Args:
        told: What each worker says; None where it does not know the model.
    """
    known = [one for one in told if one is not None]
    if not known:
        return None
    by_number = [{status.version: status for status in one.versions} if one else {} for one in told]
    numbers = sorted({number for statuses in by_number for number in statuses}, reverse=True)
    return ModelTold(
        versions=tuple(version([statuses.get(number) for statuses in by_number]) for number in numbers),
        answers=all(one is not None and one.answers for one in told),
        problems=tuple(dict.fromkeys(problem for one in known for problem in one.problems)),
    )
