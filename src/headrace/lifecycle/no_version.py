"""Why a request finds no version: said as TensorFlow Serving says it, with the way out where there is one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from heapq import nlargest, nsmallest
from pathlib import Path

from headrace.errors import FailedPrecondition, HeadraceError, NotFound, Unavailable, shown, without_paths
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
    verb = "is" if len(models) == 1 else "are"
    others = f"there {verb} {', '.join(nsmallest(_NAMES_TOLD, models))}" if models else ""
    if len(models) > _NAMES_TOLD:
        others += f" and {len(models) - _NAMES_TOLD} more"
    return NotFound(message, others=others)


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
    message = f"Servable not found for request: {asked}"
    if latest:
        return NotFound(f"{message}; {'; '.join(model.warnings()) or 'it has no version'}")
    ready = ", ".join(map(str, nlargest(_NAMES_TOLD, model.ready))) or "none"
    more = f" and {len(model.ready) - _NAMES_TOLD} more" if len(model.ready) > _NAMES_TOLD else ""
    return NotFound(f"{message}; {model.name} serves {ready}{more}")


def whole_of(error: BaseException) -> str:
    """Why a version failed to load, as its operator is told."""
    return error.message if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"


def told_of(error: BaseException, path: Path, name: str) -> str:
    """Why a version failed to load, as clients are told: which version, not where it lies.

    Args:
        error: Why it failed.
        path: Where it lies. A bare name ("1", from ``headrace serve .``) is a path only in front of a file's.
        name: What clients call it.
    """
    if not isinstance(error, HeadraceError):
        return "an unexpected error; the server's log says more"
    text = error.told
    if len(path.parts) > 1:
        return without_paths(text.replace(str(path), name))
    return without_paths(re.sub(rf"(?<![\w./-]){re.escape(str(path))}(?=/)", lambda _: name, text))
