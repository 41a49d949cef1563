"""State of a model and its versions, owned by the serving thread; errors for requests that find no version.

Methods have no side effects outside the records.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from heapq import nlargest, nsmallest
from pathlib import Path
from typing import Generic

from headrace.base.clock import Timer
from headrace.base.errors import (
    FailedPrecondition,
    HeadraceError,
    NotFound,
    Unavailable,
    shown,
    without_paths,
)
from headrace.config import ModelConfig, VersionPolicy
from headrace.lifecycle.desired_state import Wanted
from headrace.lifecycle.leases import LoadedT
from headrace.lifecycle.policy import (
    TRANSITION_POLICIES,
    Action,
    VersionView,
    default_version,
    place_labels,
)
from headrace.lifecycle.version_states import Event, State, VersionStatus, after

# Efficient check, at each change of a model, whether all models have settled.


class Unsettled:
    """The models that had not settled at the last check.

    At start-up, each change of a model checks whether it was the last to settle. Checking all models each
    time would take quadratic time; here each model is checked a few times only.
    """

    def __init__(self, names: Callable[[], Iterable[str]], is_settled: Callable[[str], bool]) -> None:
        """Begin with an empty list.

        Args:
            names: Returns the current names of all models.
            is_settled: Returns whether a model has settled; True for a model that no longer exists.
        """
        self._names, self._is_settled = names, is_settled
        self._left: list[str] = []

    def is_none(self) -> bool:
        """Return whether all models have settled."""
        left = self._left
        while left and self._is_settled(left[-1]):
            left.pop()
        if not left:  # a settled model may have become unsettled again
            left.extend(name for name in self._names() if not self._is_settled(name))
        return not left


OVERWRITTEN = (
    "its files were written after it was loaded, and are not served; publish changes as a new version"
)
_IDLE = (State.NEW, State.FAILED, State.UNLOADED)
_IN_PROGRESS = (State.LOADING, State.WARMING)


@dataclass(frozen=True, slots=True)
class Place:
    """A version's files and settings; when they change, a failed version may be tried again.

    Attributes:
        path: The version directory.
        fingerprint: Value that changes when the files change.
        config: The model's settings.
    """

    path: Path
    fingerprint: Hashable
    config: ModelConfig


class VersionRecord(Generic[LoadedT]):
    """One version: its state, and the loaded version if there is one.

    Attributes:
        number: The version number.
        place: Directory and settings that it is, or will be, loaded from.
        state: Life-cycle state; changed by ``ModelRecord.change`` only.
        attempts: Number of load attempts since the place changed or the model was reloaded.
        error: The last failure as reported to clients; "" for none.
        reason: The last failure in full, for the operator; meaningless without ``error``.
        retry_at: Time from which a failed version may be retried; None while it may not.
        timer: Timer of the next retry.
        is_overwritten: Whether its files have changed since it was loaded.
        hanging: Whether its loader thread hangs; it is not retried before that thread returns.
        loaded: The loaded version as returned by the Loader.
    """

    __slots__ = (
        "attempts", "error", "hanging", "is_overwritten", "loaded", "number", "place", "reason", "retry_at",
        "state", "timer",
    )  # fmt: skip

    def __init__(self, number: int, place: Place) -> None:
        """Create a version in state NEW."""
        self.number = number
        self.place = place
        self.state = State.NEW
        self.attempts = 0
        self.error = self.reason = ""
        self.retry_at: float | None = None
        self.timer: Timer | None = None
        self.hanging = self.is_overwritten = False
        self.loaded: LoadedT | None = None

    def try_anew(self, now: float) -> None:
        """Reset the failed attempts, so that the version may be loaded at once."""
        self.attempts = 0
        self.retry_at = now
        self.cancel_timer()

    def note_files(self, fingerprint: Hashable) -> bool:
        """Record the files' fingerprint; return True once, when they first change after the load."""
        before = self.place.fingerprint
        if fingerprint is None or fingerprint == before:
            return False
        self.place = replace(self.place, fingerprint=fingerprint)
        if before is None or self.is_overwritten:
            return False
        self.is_overwritten = True
        return True

    def cancel_timer(self) -> None:
        """Cancel the scheduled retry, if there is one."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class ModelRecord(Generic[LoadedT]):
    """One model: its wanted state, and its versions.

    Attributes:
        name: The model's name.
        wanted: The state last wanted by its Source; None if the Source left it out.
        versions: Records of its versions, by number.
        labels: Current label targets.
        default: The version for requests that name none; None if there is none.
        unloaded: Whether the operator has unloaded the model.
    """

    __slots__ = ("default", "labels", "name", "unloaded", "versions", "wanted")

    def __init__(self, name: str) -> None:
        """Start without versions."""
        self.name = name
        self.wanted: Wanted | None = None
        self.versions: dict[int, VersionRecord[LoadedT]] = {}
        self.labels: dict[str, int] = {}
        self.default: int | None = None
        self.unloaded = False

    @property
    def policy(self) -> VersionPolicy:
        """The version policy in force."""
        return self._in_force.config.versions

    @property
    def _in_force(self) -> Wanted:
        return _NOTHING if self.wanted is None or self.unloaded else self.wanted

    @property
    def problem(self) -> str:
        """Why the wanted state differs from what the operator asked for; "" if it does not."""
        return self._in_force.problem

    @property
    def ready(self) -> list[int]:
        """Numbers of the ready versions."""
        return [number for number, record in self.versions.items() if record.state is State.READY]

    @property
    def busy(self) -> bool:
        """Whether one of its versions is being loaded or warmed up."""
        return any(record.state in _IN_PROGRESS for record in self.versions.values())

    @property
    def forgettable(self) -> bool:
        """Whether it is not wanted and has no versions left."""
        return self.wanted is None and not self.versions

    @property
    def settled(self) -> bool:
        """Whether its start-up is complete: a version is ready or has failed, or none is wanted."""
        wants = self._in_force.versions
        return not wants or any(
            record.state is State.READY or record.error for record in self.versions.values()
        )

    def change(self, record: VersionRecord[LoadedT], event: Event) -> VersionStatus:
        """Apply an event to a version and return its new status.

        Raises:
            IllegalTransition: The event is not allowed in its state; nothing has changed.
        """
        record.state = after(record.state, event)
        return self._status(record)

    def match(self, now: float) -> list[int]:
        """Add records for wanted versions, and delete those of unwanted versions that are not in use.

        Args:
            now: Monotonic time in seconds.

        Returns:
            Numbers of the versions newly found to have changed on disk since they were loaded.
        """
        wanted, overwritten = self._in_force, list[int]()
        for number, path in wanted.versions.items():
            place = Place(path, wanted.fingerprints.get(number), wanted.config)
            record = self.versions.get(number)
            if record is None or record.state is State.UNLOADED:
                self.versions[number] = VersionRecord(number, place)
            elif record.state in (State.NEW, State.FAILED) and record.place != place:
                record.place = place
                record.try_anew(now)
            elif record.state is State.READY and record.note_files(place.fingerprint):
                overwritten.append(number)
        listed = self.wanted.versions if self.unloaded and self.wanted is not None else wanted.versions
        for record in list(self.versions.values()):
            gone = record.number not in (listed if record.state is State.UNLOADED else wanted.versions)
            if gone and record.state in _IDLE:
                record.cancel_timer()
                del self.versions[record.number]
        return overwritten

    def point(self) -> None:
        """Point the default and the labels at ready versions."""
        ready = self.ready
        self.default = default_version(ready, self._in_force.versions.keys())
        self.labels = place_labels(self._in_force.labels, self.labels, ready)

    def decide(self, now: float, suppose_ready: VersionRecord[LoadedT] | None = None) -> Action | None:
        """Return the policy's next action; None if there is nothing to do.

        Args:
            now: Monotonic time in seconds.
            suppose_ready: A version to treat as if it were ready already.
        """
        wanted, labelled = self._in_force.versions, self.labels.values()
        views = [
            VersionView(
                number,
                State.READY if record is suppose_ready else record.state,
                number in wanted,
                number in labelled,
                record.retry_at,
            )
            for number, record in self.versions.items()
        ]
        return TRANSITION_POLICIES[self.policy.transition](views, now)

    def statuses(self) -> list[VersionStatus]:
        """Return the status of each version, newest first."""
        return [self._status(self.versions[number]) for number in sorted(self.versions, reverse=True)]

    def warnings(self) -> list[str]:
        """Return messages on how the model differs from what the operator asked for."""
        wanted = self._in_force
        said = [wanted.problem] if wanted.problem else []
        if self.unloaded and not self.versions:
            said.append("it was unloaded; load it to serve it")
        overwritten = [number for number, one in self.versions.items() if one.is_overwritten]
        said += [f"version {number}: {OVERWRITTEN}" for number in overwritten]
        for label, target in wanted.labels.items():
            if self.labels.get(label) != target:
                now = f"stays on {self.labels[label]}" if label in self.labels else "points nowhere"
                said.append(f"label {label!r}: version {target} is not ready; the label {now}")
        return said

    def _status(self, record: VersionRecord[LoadedT]) -> VersionStatus:
        # Only an isolated version can be ready and unable to answer.
        trouble = getattr(record.loaded, "trouble", "") if record.state is State.READY else ""
        return VersionStatus(
            version=record.number,
            state=record.state,
            wanted=record.number in self._in_force.versions,
            error=record.error or trouble,
            attempts=record.attempts,
            outstanding=record.loaded.outstanding if record.loaded is not None else 0,
            reason=record.reason if record.error else "",
        )


_NOTHING = Wanted()


# Errors for requests that find no version are in TensorFlow Serving's wording, with advice where possible.

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
