"""Decide whether a new server may take over: once all versions ready in the old one are ready here. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace.base.errors import FailedPrecondition
from headrace.lifecycle.version_states import State, VersionStatus

_GONE = (State.DRAINING, State.UNLOADED)


def lacking(there: Mapping[str, Iterable[int]], here: Mapping[str, Sequence[VersionStatus]]) -> list[str]:
    """Return the versions that are ready in the running server and not yet here.

    A version that is not wanted here is skipped while another version of its model is ready: the directories
    or the settings have moved on.

    Args:
        there: The ready versions of each model in the running server.
        here: The status of each model's versions in the new server, once each model has been tried.

    Returns:
        The missing versions, as ``model/number``; empty if the new server may take over.

    Raises:
        FailedPrecondition: A version will not become ready: it has failed, or its model is not served here.
    """
    waits: list[str] = []
    for model, numbers in sorted(there.items()):
        if model not in here:
            raise FailedPrecondition(
                f"{model} is served by the running server, but not by this one: expected the same models; "
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
                    model,
                    number,
                    next((one.error for one in here if one.error), "the settings here do not select it"),
                )
            waits.append(f"{model}/{number}")
    return waits


def _is_on_the_way(status: VersionStatus) -> bool:
    return status.wanted and status.state not in (State.FAILED, *_GONE)


def _never(model: str, number: int, why: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"{model}: version {number} is ready in the running server, but not here: {why}; the running server "
        "keeps serving"
    )
