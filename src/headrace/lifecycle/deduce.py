"""From what is on disk to what is wanted: pure, but for looking at the version directories in question.

The rules, each with a test:

* what cannot be listed, or suddenly lists nothing, keeps what it had: a lost mount unloads no model;
* a version that appears is wanted once it has stopped changing, or at once when a manifest tells what belongs
to it; * a failed version is told as changed once it has stopped changing;
* settings that cannot be followed, or a pin that leads nowhere, leave everything as it was, with the problem
shown; so does a control record that cannot be read at the start, and later the last good one stays;
* a model whose default is another model is served without that, too, with the problem shown;
* whatever goes wrong with one model's files is that model's problem only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from headrace.config import ModelConfig, Table, parse_model_config
from headrace.errors import ConfigError
from headrace.lifecycle.listing import Listing, Look, ModelListing
from headrace.lifecycle.policy import choose
from headrace.lifecycle.wanted import Wanted
from headrace.versions.control import PinnedTo
from headrace.versions.layout import CONTROL_FILE

_NO_DEFAULT = (
    "there is no model {0!r} to give its default answers; it is served without them until there is one: "
    "add it, or correct default.model in its settings"
)

LookAt = Callable[[Path], Look]


@dataclass(frozen=True, slots=True)
class Decided:
    """What a control record said.

    Attributes:
        pin: What the model is pinned to; None if to nothing.
        revision: How often the record had changed; 0 without one.
    """

    pin: PinnedTo | None
    revision: int


@dataclass(frozen=True, slots=True)
class Deduced:
    """What was deduced for one model, and what the next deduction needs to remember.

    Attributes:
        wanted: What is wanted of it.
        known: The versions that were on disk.
        changing: Versions that appeared and may still be written, by their fingerprint.
        seen: The fingerprints of the wanted versions at the last look, settled or not.
        settings: The settings' text that ``config`` or ``wrong`` is about; None before the first.
        config: The last good settings; None if there were none.
        wrong: Why the settings are not good, or "".
        decided: What the last good control record said; None before the first.
        listing: What ``wanted`` was deduced from; None if that cannot be said.
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
    """Deduce what is wanted of all models.

    Args:
        listing: What is on disk now.
        before: What was deduced the last time; None at the start, when everything is taken as it is found.
        overrides: The server's own settings for a model.
        look_at: Looks at a version directory.
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
        except Exception as error:  # noqa: BLE001  # The boundary: what one model holds concerns no other.
            problem = "its directory cannot be read; the server's log says more"
            deduced[name] = _keep(was, problem, f"{type(error).__name__}: {error}")
    for name in listing.unreadable.keys() - remembered.keys():
        deduced[name] = _keep(_NOTHING, listing.unreadable[name], listing.details.get(name, ""))
    # A served directory without a single version is a lost mount rather than the wish to serve nothing.
    believable = not listing.problem and any(model.versions for model in listing.models.values())
    for name, was in remembered.items():
        if name in listing.models:
            continue
        problem = listing.unreadable.get(name) or listing.problem
        if problem or not believable:
            problem = problem or "the served directory is empty; what is loaded stays"
            deduced[name] = _keep(was, problem, listing.details.get(name, ""))
    return deduced


def deduce_model(
    name: str, before: Deduced, model: ModelListing, overrides: Table, look_at: LookAt
) -> Deduced:
    """Deduce what is wanted of one model.

    Args:
        name: What it is called.
        before: What was deduced the last time.
        model: What is in its directory now.
        overrides: The server's own settings for it.
        look_at: Looks at a version directory.
    """
    if _is_as_before(before, model, look_at):
        return before
    before = _read_settings(name, before, model, overrides)
    if not model.versions:
        if not before.wanted.versions:
            return replace(before, wanted=Wanted(), known=frozenset(), changing={}, listing=None)
        return _keep(before, "no version is left in its directory; what is loaded stays")
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
        problem = pin.missing or f"it is pinned to version {bound}, which is not there"
        if before.wanted.versions:
            return _keep(now, problem)
    if not numbers and (there or before.wanted.versions):
        missing = f"none of the versions {sorted(policy.numbers)} is there"
        return _keep(now, problem or (missing if there else "its versions are still being written"))
    return _want(now, model, numbers, look_at, problem, bound)


def _is_as_before(before: Deduced, model: ModelListing, look_at: LookAt) -> bool:
    """Whether nothing has changed since all was well and had settled: what follows from that is known."""
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
    """Want these versions, each told as changed only when two looks in a row saw the same."""
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
    """Tell of models that name another as their default which is not there, or not yet.

    Args:
        found: What is wanted of each model.
        others: Models that are there and come from elsewhere.
    """
    there = {*others, *(name for name, wanted in found.items() if wanted.versions)}

    def told(wanted: Wanted) -> Wanted:
        default = wanted.config.default.model
        if not default or default in there or wanted.problem or not wanted.versions:
            return wanted
        return replace(wanted, problem=_NO_DEFAULT.format(default))

    return {name: told(wanted) for name, wanted in found.items()}


def kept_by_what_is_loaded(before: ModelConfig, now: ModelConfig) -> list[str]:
    """Which sections of the settings have changed that a version keeps as it was loaded with them."""
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
    """What the control record says, or said last, and why that is not what it says now."""
    if model.undecided:
        return before, model.undecided
    lost = None if before is None or model.pin is not None or model.revision else before
    if lost is not None and lost.revision and lost.pin is not None:
        gone = f"{CONTROL_FILE} is gone; the pin to version {lost.pin.version} that was in it stays"
        return lost, f"{gone}: put it back, or pin a version with `headrace rollback` and release it"
    return Decided(model.pin, model.revision), ""


def _changing(before: Deduced, model: ModelListing, look_at: LookAt) -> dict[int, Hashable]:
    """The versions that were not there before, or were still changing, and have changed since."""
    changing = {}
    for number, path in model.versions.items():
        if number in before.known and number not in before.changing:
            continue
        look = look_at(path)
        if not look.has_manifest and before.changing.get(number) != look.fingerprint:
            changing[number] = look.fingerprint
    return changing


_NOTHING = Deduced()
