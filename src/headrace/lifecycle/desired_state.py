"""Deduce the wanted state from the files on disk; pure except for reading version directories.

The rules, each with a test:

* a directory that cannot be listed, or is suddenly empty, keeps its versions: a lost mount unloads no model;
* a new version is wanted once it has stopped changing, or at once if it has a manifest;
* a failed version is reported as changed once it has stopped changing;
* invalid settings, or a pin to a missing version, change nothing, and the problem is shown;
* the last valid control record stays in force while the current one cannot be read. Without an earlier one,
an unreadable record changes nothing, and the problem is shown;
* a model whose default model is missing is served without it, and the problem is shown;
* an error in one model's files affects that model only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from headrace.base.errors import ConfigError
from headrace.config import ModelConfig, Table, parse_model_config
from headrace.lifecycle.model_listing import Listing, Look, ModelListing
from headrace.lifecycle.policy import choose
from headrace.versions.layout import CONTROL_FILE
from headrace.versions.pins_and_holds import PinnedTo

# A Source always reports the complete wanted state: models and versions that it omits are not wanted.


@dataclass(frozen=True, slots=True)
class Wanted:
    """The complete wanted state of one model.

    Attributes:
        versions: Directories of the versions to serve, by number.
        config: The model's settings.
        labels: Wanted label targets.
        fingerprints: Per version, a value that changes when its directory does, so that a failed load is
            retried; a version without one counts as unchanged.
        problem: Why this differs from what the operator asked for, such as a pin to a missing version or an
            invalid setting; "" if it does not. Shown to clients.
        detail: Details of the problem for the operator's log, or "".
    """

    versions: Mapping[int, Path] = field(default_factory=dict)
    config: ModelConfig = field(default_factory=ModelConfig)
    labels: Mapping[str, int] = field(default_factory=dict)
    fingerprints: Mapping[int, Hashable] = field(default_factory=dict)
    problem: str = ""
    detail: str = ""


Want = Callable[[Mapping[str, Wanted], Mapping[str, str]], object]
"""Receives the wanted state of all models by name, and the reasons for unusable names."""


class Source(Protocol):
    """Determines which versions are wanted, and reports changes."""

    def start(self) -> None:
        """Start reporting. Serving thread only."""

    def stop(self) -> None:
        """Stop reporting; the last wanted state stays in force."""


_NO_DEFAULT = (
    "there is no model {0!r} for its default answers; it is served without them until that model exists: "
    "add the model, or correct default.model in the settings"
)

LookAt = Callable[[Path], Look]


@dataclass(frozen=True, slots=True)
class Decided:
    """Content of a control record.

    Attributes:
        pin: The model's pin; None if it is not pinned.
        revision: Revision number of the record; 0 without a record.
    """

    pin: PinnedTo | None
    revision: int


@dataclass(frozen=True, slots=True)
class Deduced:
    """Result of a deduction for one model, with the state that the next deduction needs.

    Attributes:
        wanted: The wanted state.
        known: Versions that were on disk.
        changing: Fingerprints of new versions that may still be being written.
        seen: Fingerprints of the wanted versions at the last scan, stable or not.
        settings: Text of the settings last parsed, into ``config`` or ``wrong``; None if none were parsed.
        config: The last valid settings; None if there were none.
        wrong: Why the current settings are invalid, or "".
        decided: Content of the last valid control record; None before the first.
        listing: The listing from which ``wanted`` was deduced; None if there is none.
    """

    wanted: Wanted = field(default_factory=Wanted)
    known: frozenset[int] = frozenset()
    changing: Mapping[int, Hashable] = field(default_factory=dict)
    seen: Mapping[int, Hashable] = field(default_factory=dict)
    settings: str | None = None
    config: ModelConfig | None = None
    wrong: str = ""
    decided: Decided | None = None
    listing: ModelListing | None = None


def deduce(
    listing: Listing,
    before: Mapping[str, Deduced] | None,
    overrides: Callable[[str], Table],
    look_at: LookAt,
) -> dict[str, Deduced]:
    """Deduce the wanted state of all models.

    Args:
        listing: The files on disk.
        before: Result of the previous deduction; None at the start, when all versions on disk are taken as
            complete.
        overrides: Returns the server's own settings for a model.
        look_at: Reads the metadata of a version directory.
    """
    first = before is None
    remembered = before or {}
    deduced = {}
    for name, model in listing.models.items():
        was = remembered.get(name, _NOTHING)
        if first:
            was = replace(was, known=frozenset(model.versions))
        try:
            deduced[name] = deduce_model(name, was, model, overrides(name), look_at)
        except Exception as error:  # noqa: BLE001  # one model's files must not affect others
            problem = "its directory cannot be read; the server's log says more"
            deduced[name] = _keep(was, problem, f"{type(error).__name__}: {error}")
    for name in listing.unreadable.keys() - remembered.keys():
        deduced[name] = _keep(_NOTHING, listing.unreadable[name], listing.details.get(name, ""))
    # A served directory without any version is more likely a lost mount than a request to serve nothing.
    believable = not listing.problem and any(model.versions for model in listing.models.values())
    for name, was in remembered.items():
        if name in listing.models:
            continue
        problem = listing.unreadable.get(name) or listing.problem
        if problem or not believable:
            problem = problem or "the served directory is empty; loaded versions keep serving"
            deduced[name] = _keep(was, problem, listing.details.get(name, ""))
    return deduced


def deduce_model(
    name: str, before: Deduced, model: ModelListing, overrides: Table, look_at: LookAt
) -> Deduced:
    """Deduce the wanted state of one model.

    Args:
        name: The model's name.
        before: Result of the previous deduction.
        model: Listing of its directory.
        overrides: The server's own settings for it.
        look_at: Reads the metadata of a version directory.
    """
    if _is_as_before(before, model, look_at):
        return before
    before = _read_settings(name, before, model, overrides)
    if not model.versions:
        if not before.wanted.versions:
            return replace(before, wanted=Wanted(), known=frozenset(), changing={}, listing=None)
        return _keep(before, "no version is left in its directory; loaded versions keep serving")
    decided, undecided = _read_decided(before.decided, model)
    changing = _changing(before, model, look_at)
    now = replace(before, known=frozenset(model.versions), changing=changing, decided=decided)
    problem = model.problem or before.wrong or undecided
    if before.config is None or decided is None or model.problem:
        return _keep(now, problem)
    policy = before.config.versions
    there = model.versions.keys() - changing.keys()
    pin = decided.pin
    if pin is not None and pin.missing:
        there -= {pin.version}
    bound = None if pin is None else pin.version
    numbers = choose(policy, there, bound)
    if pin is not None and pin.version not in there:
        problem = pin.missing or f"it is pinned to version {bound}, which does not exist"
        if before.wanted.versions:
            return _keep(now, problem)
    if not numbers and (there or before.wanted.versions):
        missing = f"none of the versions {sorted(policy.numbers)} exists"
        return _keep(now, problem or (missing if there else "its versions are still being written"))
    return _want(now, model, numbers, look_at, problem, bound)


def _is_as_before(before: Deduced, model: ModelListing, look_at: LookAt) -> bool:
    """Return whether nothing has changed since a deduction without problems or unstable versions."""
    return (
        before.listing == model
        and not before.changing
        and not before.wanted.problem
        and before.wanted.fingerprints == before.seen
        and all(look_at(path).fingerprint == before.seen[one] for one, path in before.wanted.versions.items())
    )


def _want(
    now: Deduced,
    model: ModelListing,
    numbers: frozenset[int],
    look_at: LookAt,
    problem: str,
    bound: int | None,
) -> Deduced:
    """Want these versions; report a changed fingerprint only once two scans in a row saw it."""
    config = now.config or ModelConfig()
    versions = {number: model.versions[number] for number in sorted(numbers)}
    seen = {number: look_at(path).fingerprint for number, path in versions.items()}
    told = now.wanted.fingerprints
    wanted = Wanted(
        versions=versions,
        config=config,
        labels={
            label: number
            for label, number in config.versions.labels.items()
            if bound is None or number <= bound
        },
        fingerprints={
            number: found if now.seen.get(number, found) == found else told.get(number)
            for number, found in seen.items()
        },
        problem=problem,
    )
    return replace(now, wanted=wanted, seen=seen, listing=model)


def tell_of_defaults(found: Mapping[str, Wanted], others: Collection[str]) -> dict[str, Wanted]:
    """Return the wanted states, with a problem set on each model whose default model is missing.

    Args:
        found: Wanted state of each model.
        others: Names of models from other sources.
    """
    there = {*others, *(name for name, wanted in found.items() if wanted.versions)}

    def told(wanted: Wanted) -> Wanted:
        default = wanted.config.default.model
        if not default or default in there or wanted.problem or not wanted.versions:
            return wanted
        return replace(wanted, problem=_NO_DEFAULT.format(default))

    return {name: told(wanted) for name, wanted in found.items()}


def kept_by_what_is_loaded(before: ModelConfig, now: ModelConfig) -> list[str]:
    """Return the changed settings sections that do not affect versions already loaded."""
    sections = [name for name in ModelConfig.__struct_fields__ if name != "versions"]
    return [name for name in sections if getattr(before, name) != getattr(now, name)]


def _keep(was: Deduced, problem: str, detail: str = "") -> Deduced:
    return replace(was, wanted=replace(was.wanted, problem=problem, detail=detail))


def _read_settings(name: str, before: Deduced, model: ModelListing, overrides: Table) -> Deduced:
    if model.settings == before.settings:
        return before
    try:
        config = parse_model_config(model.settings, overrides, name=name)
    except ConfigError as error:
        return replace(before, settings=model.settings, wrong=error.message)
    return replace(before, settings=model.settings, config=config, wrong="")


def _read_decided(before: Decided | None, model: ModelListing) -> tuple[Decided | None, str]:
    """Return the control record in force; if that is not the current one, also the reason, otherwise ""."""
    if model.undecided:
        return before, model.undecided
    lost = None if before is None or model.pin is not None or model.revision else before
    if lost is not None and lost.revision and lost.pin is not None:
        gone = f"{CONTROL_FILE} is missing; its pin to version {lost.pin.version} stays in force"
        return lost, f"{gone}: restore the file, or pin a version with `headrace rollback` and release it"
    return Decided(model.pin, model.revision), ""


def _changing(before: Deduced, model: ModelListing, look_at: LookAt) -> dict[int, Hashable]:
    """Return the fingerprints of versions without a manifest that are new or have changed again."""
    changing = {}
    for number, path in model.versions.items():
        if number in before.known and number not in before.changing:
            continue
        look = look_at(path)
        if not look.has_manifest and before.changing.get(number) != look.fingerprint:
            changing[number] = look.fingerprint
    return changing


_NOTHING = Deduced()
