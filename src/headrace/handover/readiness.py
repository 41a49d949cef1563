"""Whether a server may take another one's place: when all is ready here that is ready there. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace.errors import FailedPrecondition
from headrace.lifecycle.state import State, VersionStatus

_GONE = (State.DRAINING, State.UNLOADED)


def lacking(there: Mapping[str, Iterable[int]], here: Mapping[str, Sequence[VersionStatus]]) -> list[str]:
    """Say what is ready there and not yet here.

    A version that is not wanted here does not count, as long as another one of its model answers: on the
    disk, or in the settings, the model has moved on.

    Args:
        there: The versions of each model that answer in the running server.
        here: What can be told about each model's versions in the new one; its directories were looked at.

    Returns:
        Models and versions that are still on their way, as ``model/number``; none if the place may be taken.

    Raises:
        FailedPrecondition: Something will not be ready here: it has failed, or is not served at all.
    """
    waits: list[str] = []
    for model, numbers in sorted(there.items()):
        if model not in here:
            raise FailedPrecondition(
                f"{model} is served by the running server, and not by this one: expected the same models; "
                "remove the model there first, or give this server the directory or settings that have it"
            )
        waits += _lacking_versions(model, numbers, here[model])
    return waits


def _lacking_versions(model: str, numbers: Iterable[int], here: Sequence[VersionStatus]) -> list[str]:
    by_number = {one.version: one for one in here}
    answers = any(one.answers for one in here)
    on_the_way = any(_is_on_the_way(one) for one in here)
    waits: list[str] = []
    for number in sorted(numbers):
        status = by_number.get(number)
        if status is not None and status.answers:
            continue
        if status is not None and status.state is State.FAILED:
            raise _never(model, number, status.error)
        if status is not None and _is_on_the_way(status):
            waits.append(f"{model}/{number}")
        elif not answers:
            if not on_the_way:
                raise _never(
                    model, number, next((one.error for one in here if one.error), "it is not wanted")
                )
            waits.append(f"{model}/{number}")
    return waits


def _is_on_the_way(status: VersionStatus) -> bool:
    return status.wanted and status.state not in (State.FAILED, *_GONE)


def _never(model: str, number: int, why: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"{model}: version {number} is ready in the running server, and not here: {why}; the running server "
        "goes on as it was"
    )
