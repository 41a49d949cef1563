"""Errors for requests that find no version, in TensorFlow Serving's wording, with advice where possible."""

from __future__ import annotations

import re
from collections.abc import Mapping
from heapq import nlargest, nsmallest
from pathlib import Path

from headrace.base.errors import (
    FailedPrecondition,
    HeadraceError,
    NotFound,
    Unavailable,
    shown,
    without_paths,
)
from headrace.lifecycle.handle import LoadedT
from headrace.lifecycle.model_records import ModelRecord, VersionRecord
from headrace.lifecycle.version_states import State

_NAMES_TOLD = 8


def unknown_model(
    model: str, asked: str, models: Mapping[str, object], unusable: Mapping[str, str]
) -> NotFound:
    """Return the error for an unknown model, with the reason if there is one, else with the known names.

    Args:
        model: The requested name.
        asked: The requested servable in TensorFlow Serving's notation.
        models: All models by name; the first few names are listed.
        unusable: Reasons for names that cannot be used as models.
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
    """Return the error for a label that points nowhere."""
    wanted = model.wanted
    if wanted is not None and label in wanted.labels:
        return Unavailable(f"{model.name} version {wanted.labels[label]}, label {label!r}, is not ready yet")
    known = ", ".join(repr(name) for name in sorted(model.labels)) or "none"
    return NotFound(f"Unrecognized servable version label: {shown(label)}; {model.name} has {known}")


def not_ready(
    model: ModelRecord[LoadedT], version: VersionRecord[LoadedT] | None, asked: str
) -> HeadraceError:
    """Return the error for a model, or a requested version, that is not ready."""
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
    """Return the full text of a load error, for the operator."""
    return error.message if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"


def told_of(error: BaseException, path: Path, name: str) -> str:
    """Return the text of a load error for clients, which names the version but not its path.

    Args:
        error: The error.
        path: The version's directory. A bare name ("1", from ``headrace serve .``) is replaced only in front
            of a file name.
        name: Name of the version for clients.
    """
    if not isinstance(error, HeadraceError):
        return "an unexpected error; the server's log says more"
    text = error.told
    if len(path.parts) > 1:
        return without_paths(text.replace(str(path), name))
    return without_paths(re.sub(rf"(?<![\w./-]){re.escape(str(path))}(?=/)", lambda _: name, text))
