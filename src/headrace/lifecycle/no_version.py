"""Why a request finds no version: said as TensorFlow Serving says it, with the way out where there is one."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nsmallest

from headrace.errors import FailedPrecondition, HeadraceError, NotFound, Unavailable, shown
from headrace.lifecycle.handle import LoadedT
from headrace.lifecycle.records import ModelRecord, VersionRecord
from headrace.lifecycle.state import State

_NAMES_TOLD = 8


def unknown_model(
    model: str, asked: str, models: Mapping[str, object], unusable: Mapping[str, str]
) -> NotFound:
    """Say that there is no such model: why, or which there are, since mostly a name was misspelt.

    Args:
        model: The name.
        asked: What was asked for, as TensorFlow Serving writes it.
        models: All models, by name; the first few are told.
        unusable: Why what has a name is no model, by name.
    """
    message = f"Servable not found for request: {asked}"
    if model in unusable:
        return NotFound(f"{message}; {shown(model)} is not served: {unusable[model]}")
    if models:
        verb = "is" if len(models) == 1 else "are"
        message += f"; there {verb} {', '.join(nsmallest(_NAMES_TOLD, models))}"
    if len(models) > _NAMES_TOLD:
        message += f" and {len(models) - _NAMES_TOLD} more"
    return NotFound(message)


def label_error(model: ModelRecord[LoadedT], label: str) -> HeadraceError:
    """Say why a label does not answer."""
    wanted = model.wanted
    if wanted is not None and label in wanted.labels:
        return Unavailable(f"{model.name} version {wanted.labels[label]}, label {label!r}, is not ready yet")
    known = ", ".join(repr(name) for name in sorted(model.labels)) or "none"
    return NotFound(f"Unrecognized servable version label: {shown(label)}; {model.name} has {known}")


def not_ready(
    model: ModelRecord[LoadedT], version: VersionRecord[LoadedT] | None, asked: str
) -> HeadraceError:
    """Say why a model, or the version asked for, does not answer."""
    latest = asked.startswith("Latest")
    asked_for = list(model.versions.values()) if latest else [version] if version is not None else []
    if any(one.state in (State.NEW, State.LOADING, State.WARMING) for one in asked_for):
        return Unavailable(f"{model.name} is loading")
    failed = [one for one in asked_for if one.state is State.FAILED]
    if failed:
        newest = max(failed, key=lambda one: one.number)
        return FailedPrecondition(f"{model.name} version {newest.number} failed to load: {newest.error}")
    if model.problem and (latest or not model.versions):
        return FailedPrecondition(f"{model.name} serves nothing: {model.problem}")
    return NotFound(f"Servable not found for request: {asked}")
