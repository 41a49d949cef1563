"""What the Manager knows of a model and its versions: state of the serving thread, without any effect."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic

from headrace.clock import Timer
from headrace.config import ModelConfig, VersionPolicy
from headrace.lifecycle.handle import LoadedT
from headrace.lifecycle.policy import (
    TRANSITION_POLICIES,
    Action,
    VersionView,
    default_version,
    place_labels,
)
from headrace.lifecycle.state import Event, State, VersionStatus, after
from headrace.lifecycle.wanted import Wanted

OVERWRITTEN = (
    "its files were written after it was loaded, and are not served; publish changes as a new version"
)
_IDLE = (State.NEW, State.FAILED, State.UNLOADED)
_IN_HAND = (State.LOADING, State.WARMING)


@dataclass(frozen=True, slots=True)
class Place:
    """What a version is loaded from; when it changes, a failed version deserves new attempts.

    Attributes:
        path: The version directory.
        fingerprint: What changes when its files do.
        config: The model's settings.
    """

    path: Path
    fingerprint: Hashable
    config: ModelConfig


class VersionRecord(Generic[LoadedT]):
    """One version: its state, and what is loaded, if anything is.

    Attributes:
        number: The version.
        place: What it is, or will be, loaded from.
        state: Where it is in its life; changed by ``ModelRecord.change`` only.
        attempts: How often loading has been tried since the place changed.
        error: Why it failed the last time, or "".
        reason: The same as only the operator is told it; of no meaning without an error.
        retry_at: Since when a failed one may be tried again; None while it may not.
        timer: What will let it be tried again.
        is_overwritten: Whether its files have changed since it was loaded.
        hanging: Whether a thread hangs that was to load it: it is not tried again before that comes back.
        loaded: What the Loader made of it.
    """

    __slots__ = (
        "attempts", "error", "hanging", "is_overwritten", "loaded", "number", "place", "reason", "retry_at",
        "state", "timer",
    )  # fmt: skip

    def __init__(self, number: int, place: Place) -> None:
        """Start a version's life."""
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
        """Forget the failed attempts: it may be loaded at once."""
        self.attempts = 0
        self.retry_at = now
        self.cancel_timer()

    def note_files(self, fingerprint: Hashable) -> bool:
        """Note what the files are now; say whether they have changed since the version was loaded, once."""
        before = self.place.fingerprint
        if fingerprint is None or fingerprint == before:
            return False
        self.place = replace(self.place, fingerprint=fingerprint)
        if before is None or self.is_overwritten:
            return False
        self.is_overwritten = True
        return True

    def cancel_timer(self) -> None:
        """Call off the retry that is planned, if one is."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class ModelRecord(Generic[LoadedT]):
    """One model: what is wanted of it, and its versions.

    Attributes:
        name: The model.
        wanted: What its Source said last; None when the Source left it out.
        versions: What is known of its versions, by number.
        labels: Where labels point now.
        default: The version that answers requests that name none.
        unloaded: Whether the operator took it out of service.
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
        """Why what is wanted is not what the operator asked for, or ""."""
        return self._in_force.problem

    @property
    def ready(self) -> list[int]:
        """The versions that are ready."""
        return [number for number, record in self.versions.items() if record.state is State.READY]

    @property
    def busy(self) -> bool:
        """Whether one of its versions is being loaded or warmed up."""
        return any(record.state in _IN_HAND for record in self.versions.values())

    @property
    def forgettable(self) -> bool:
        """Whether nobody wants it and nothing of it is left."""
        return self.wanted is None and not self.versions

    @property
    def settled(self) -> bool:
        """Whether its start is over: something is ready, something has failed, or nothing can come."""
        wants = self._in_force.versions
        return not wants or any(
            record.state is State.READY or record.error for record in self.versions.values()
        )

    def change(self, record: VersionRecord[LoadedT], event: Event) -> VersionStatus:
        """Let an event happen to a version, and tell its new status.

        Raises:
            IllegalTransition: The event is not allowed in its state; nothing has changed.
        """
        record.state = after(record.state, event)
        return self._status(record)

    def match(self, now: float) -> list[int]:
        """Make the records those of the wanted versions, and of what is not gone yet.

        Args:
            now: The monotonic time in seconds.

        Returns:
            The versions whose files are found to have changed since they were loaded.
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
        """Ask the policy what to do next.

        Args:
            now: The monotonic time in seconds.
            suppose_ready: A version to be looked at as if it were ready already.
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
        """What can be told about each version, newest first."""
        return [self._status(self.versions[number]) for number in sorted(self.versions, reverse=True)]

    def warnings(self) -> list[str]:
        """What is not as the operator asked for, in sentences."""
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
        # Only what has a process of its own can be in trouble while it is ready.
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
