"""The Manager: moves what is loaded towards what is wanted, and hands out what is ready.

All of its state belongs to the serving thread; there is no lock. Loading, warming up and closing run in
loader threads, and their results come back as calls in the serving thread. It waits for events (a new wanted
set, a load that ended, a version that nobody holds any more, a retry that is due) and polls nothing.

A swap, in this order: load, warm up, attach, the default moves, the old version drains, is closed. A load
that fails leaves the old version serving.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, Protocol

from headrace.clock import Clock
from headrace.config import ModelConfig
from headrace.errors import FailedPrecondition, HeadraceError, InvalidRequest, NotFound, Unavailable
from headrace.lifecycle.background import Executor
from headrace.lifecycle.manifest import check_manifest
from headrace.lifecycle.policy import retry_seconds
from headrace.lifecycle.records import LoadedT, ModelRecord, VersionRecord
from headrace.lifecycle.state import Event, State, VersionStatus
from headrace.lifecycle.wanted import Wanted

_log = logging.getLogger(__name__)


class Loader(Protocol[LoadedT]):
    """What makes a version directory into something that serves."""

    def load(self, model: str, version: int, path: Path, config: ModelConfig) -> LoadedT:
        """Load a version, in a loader thread; whatever it raises is the version's error."""

    def warm_up(self, loaded: LoadedT) -> None:
        """Answer recorded requests, in a loader thread; whatever it raises is the version's error."""

    def attach(self, loaded: LoadedT) -> None:
        """Make it ready for requests, in the serving thread, just before the first may come."""

    def close(self, loaded: LoadedT) -> None:
        """Free what it holds, in a loader thread, when no request holds it."""


class Manager(Generic[LoadedT]):
    """Holds the loaded versions of all models."""

    def __init__(
        self,
        loader: Loader[LoadedT],
        clock: Clock,
        executor: Executor,
        *,
        load_threads: int = 1,
        on_change: Callable[[str, VersionStatus], object] | None = None,
    ) -> None:
        """Start with nothing wanted.

        Args:
            loader: Loads, warms up, attaches and closes.
            clock: Time, and calls in the serving thread.
            executor: The loader threads, as many as ``load_threads``.
            load_threads: How many versions load at the same time, of different models.
            on_change: Called in the serving thread with a model and the new status of one of its versions.
        """
        self._loader = loader
        self._clock = clock
        self._executor = executor
        self._load_threads = load_threads
        self._on_change = on_change
        self._models: dict[str, ModelRecord[LoadedT]] = {}
        self._defaults: dict[str, LoadedT] = {}
        self._to_load: dict[str, int] = {}
        self._loading = 0
        self._started = False
        self._closing = False
        self._on_closed: Callable[[], object] | None = None

    # ---- What requests ask ----

    def get(self, model: str, version: int | None = None, label: str | None = None) -> LoadedT:
        """Find what answers a request; to be held before the serving thread does something else.

        Args:
            model: The model's name.
            version: A version, or None for the default one.
            label: A label, or None.

        Raises:
            NotFound: There is no such model, version or label.
            Unavailable: It is loading, or the server is stopping.
            FailedPrecondition: It failed to load.
            InvalidRequest: Both a version and a label are given.
        """
        if version is None and label is None:
            loaded = self._defaults.get(model)
            if loaded is not None:
                return loaded
        return self._find(model, version, label)

    def models(self) -> list[str]:
        """The names of all models that are known, those that the operator unloaded included."""
        return sorted(self._models)

    def status(self, model: str) -> list[VersionStatus]:
        """What can be told about a model's versions, newest first.

        Raises:
            NotFound: There is no such model.
        """
        return self._known(model).statuses()

    def all_loaded(self) -> list[LoadedT]:
        """Everything that is loaded, ready or draining, by model and version."""
        return [
            version.loaded
            for name in sorted(self._models)
            for _, version in sorted(self._models[name].versions.items())
            if version.loaded is not None
        ]

    def warnings(self, model: str) -> list[str]:
        """What is not as the operator asked for, in sentences.

        Raises:
            NotFound: There is no such model.
        """
        return self._known(model).warnings()

    def labels(self, model: str) -> dict[str, int]:
        """Where a model's labels point now: at ready versions only.

        Raises:
            NotFound: There is no such model.
        """
        return dict(self._known(model).labels)

    def default_version(self, model: str) -> int | None:
        """The version that answers requests that name none; None if there is none.

        Raises:
            NotFound: There is no such model.
        """
        return self._known(model).default

    def ready(self) -> bool:
        """Whether the start is over: of each model something is ready or has failed, and something is ready.

        Once true it stays true, whatever loads or fails later, until ``close``.
        """
        return self._started and not self._closing

    # ---- What operators and Sources say ----

    def want(self, models: Mapping[str, Wanted]) -> None:
        """Say everything that is wanted; the last word wins. What is left out is drained and unloaded.

        Args:
            models: What is wanted of each model.
        """
        if self._closing:
            return
        for name in models:
            self._models.setdefault(name, ModelRecord(name))
        for name, record in list(self._models.items()):
            wanted = models.get(name)
            if record.wanted != wanted or wanted is None:
                record.wanted = wanted
                self._settle(record)
        self._start_loads()
        self._look_whether_started()

    def reload(self, model: str) -> None:
        """Take a model back into service, and give its failed versions new attempts at once.

        Raises:
            NotFound: There is no such model.
        """
        record = self._known(model)
        record.unloaded = False
        for version in record.versions.values():
            if version.state is State.FAILED:
                version.try_anew(self._clock.now())
        self._proceed(record)

    def unload(self, model: str) -> None:
        """Take a model out of service until ``reload``, whatever its Source wants.

        Raises:
            NotFound: There is no such model.
        """
        record = self._known(model)
        record.unloaded = True
        self._proceed(record)

    def close(self, on_closed: Callable[[], object] = lambda: None) -> None:
        """Drain and close everything; requests are refused from now on.

        Args:
            on_closed: Called once when nothing is left: no request holds a version, and all are closed.
        """
        self._closing = True
        self._on_closed = on_closed
        for record in list(self._models.values()):
            record.wanted = None
            self._settle(record)
        self._look_whether_closed()

    # ---- Looking up ----

    def _known(self, model: str) -> ModelRecord[LoadedT]:
        record = self._models.get(model)
        if record is None:
            raise NotFound(f"Servable not found for request: Latest({model})")
        return record

    def _find(self, model: str, version: int | None, label: str | None) -> LoadedT:
        """The way of ``get`` for all but the plain request."""
        if version is not None and label is not None:
            raise InvalidRequest("name a version or a label, not both", field="version")
        if self._closing:
            raise Unavailable("the server is stopping")
        record = self._models.get(model)
        asked = f"Latest({model})" if version is None else f"Specific({model}, {version})"
        if record is None:
            raise NotFound(f"Servable not found for request: {asked}")
        number = version
        if label is not None:
            number = record.labels.get(label)
            if number is None:
                raise _label_error(record, label)
        elif version is None:
            number = record.default
        found = record.versions.get(number) if number is not None else None
        if found is not None and found.state is State.READY and found.loaded is not None:
            return found.loaded
        raise _not_ready(record, found, asked)

    # ---- Moving towards what is wanted ----

    def _settle(self, model: ModelRecord[LoadedT]) -> None:
        """Do everything that can be done for a model now."""
        now = self._clock.now()
        model.match(now)
        self._point(model)
        self._to_load.pop(model.name, None)
        while (action := model.decide(now)) is not None:
            version = model.versions[action.version]
            if action.event is Event.LOAD:
                if not model.busy:
                    self._to_load[model.name] = action.version
                break
            self._change(model, version, action.event)
            if action.event is Event.DRAIN:
                self._drain(model, version)
            self._point(model)
        if model.forgettable:
            del self._models[model.name]

    def _point(self, model: ModelRecord[LoadedT]) -> None:
        model.point()
        loaded = model.versions[model.default].loaded if model.default is not None else None
        if loaded is None:
            self._defaults.pop(model.name, None)
        else:
            self._defaults[model.name] = loaded

    def _change(self, model: ModelRecord[LoadedT], version: VersionRecord[LoadedT], event: Event) -> None:
        status = model.change(version, event)
        if self._on_change is not None:
            self._on_change(model.name, status)

    def _proceed(self, model: ModelRecord[LoadedT]) -> None:
        """Go on after something has happened to a version."""
        self._settle(model)
        self._start_loads()
        self._look_whether_started()
        self._look_whether_closed()

    def _look_whether_started(self) -> None:
        if not self._started and all(model.settled for model in self._models.values()):
            self._started = bool(self._defaults) or not any(
                model.wanted is not None and not model.unloaded for model in self._models.values()
            )

    def _look_whether_closed(self) -> None:
        if self._closing and not self._models and self._on_closed is not None:
            on_closed, self._on_closed = self._on_closed, None
            on_closed()

    # ---- Loading ----

    def _start_loads(self) -> None:
        """Start loads while there are threads: models with nothing ready first, the least tried first."""
        while self._to_load and self._loading < self._load_threads:
            name = min(self._to_load, key=self._urgency)
            model = self._models[name]
            version = model.versions[self._to_load.pop(name)]
            self._loading += 1
            version.attempts += 1
            self._change(model, version, Event.LOAD)
            self._executor.submit(self._load, model, version)

    def _urgency(self, name: str) -> tuple[bool, int, str]:
        return (name in self._defaults, self._models[name].versions[self._to_load[name]].attempts, name)

    def _load(self, model: ModelRecord[LoadedT], version: VersionRecord[LoadedT]) -> None:
        """In a loader thread."""
        place = version.place
        try:
            check_manifest(place.path)
            loaded = self._loader.load(model.name, version.number, place.path, place.config)
        except BaseException as error:  # noqa: BLE001  # The boundary: a model may raise anything.
            self._clock.call_soon_threadsafe(self._failed, model, version, error)
        else:
            self._clock.call_soon_threadsafe(self._loaded, model, version, loaded)

    def _loaded(self, model: ModelRecord[LoadedT], version: VersionRecord[LoadedT], loaded: LoadedT) -> None:
        version.loaded = loaded
        self._change(model, version, Event.LOADED)
        # What was wanted may have changed meanwhile: nothing is warmed up only to be drained.
        if model.decide(self._clock.now(), suppose_ready=version) == (Event.DRAIN, version.number):
            self._loading -= 1
            self._change(model, version, Event.DRAIN)
            self._drain(model, version)
            self._proceed(model)
        else:
            self._executor.submit(self._warm_up, model, version, loaded)

    def _warm_up(self, model: ModelRecord[LoadedT], version: VersionRecord[LoadedT], loaded: LoadedT) -> None:
        """In a loader thread."""
        try:
            self._loader.warm_up(loaded)
        except BaseException as error:  # noqa: BLE001  # The boundary, as in `_load`.
            self._clock.call_soon_threadsafe(self._failed, model, version, error)
        else:
            self._clock.call_soon_threadsafe(self._warmed, model, version, loaded)

    def _warmed(self, model: ModelRecord[LoadedT], version: VersionRecord[LoadedT], loaded: LoadedT) -> None:
        try:
            self._loader.attach(loaded)
        except Exception as error:  # noqa: BLE001  # The boundary, as in `_load`.
            self._failed(model, version, error)
            return
        self._loading -= 1
        version.error = ""
        self._change(model, version, Event.WARMED)
        self._proceed(model)

    def _failed(
        self, model: ModelRecord[LoadedT], version: VersionRecord[LoadedT], error: BaseException
    ) -> None:
        self._loading -= 1
        text = error.message if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
        # The text reaches clients: they are told which version, not where it lies.
        version.error = text.replace(str(version.place.path), f"{model.name}/{version.number}")
        policy = version.place.config.versions
        pause = None
        if version.attempts < policy.load_attempts:
            pause = retry_seconds(version.attempts, policy.load_retry_seconds)
            version.timer = self._clock.call_later(pause, self._retry, model, version)
        version.retry_at = None
        _log.warning(
            "%s version %d failed to load (attempt %d of %d, %s): %s",
            model.name,
            version.number,
            version.attempts,
            policy.load_attempts,
            "the last one" if pause is None else f"the next in {pause:g} s",
            text,
            exc_info=None if isinstance(error, HeadraceError) else error,
        )
        if version.loaded is not None:
            self._executor.submit(self._close_quietly, model.name, version.number, version.loaded)
            version.loaded = None
        self._change(model, version, Event.FAIL)
        self._proceed(model)

    def _retry(self, model: ModelRecord[LoadedT], version: VersionRecord[LoadedT]) -> None:
        version.timer = None
        version.retry_at = self._clock.now()
        self._proceed(model)

    # ---- Unloading ----

    def _drain(self, model: ModelRecord[LoadedT], version: VersionRecord[LoadedT]) -> None:
        loaded = version.loaded
        if loaded is None:
            raise RuntimeError(f"{model.name} version {version.number} drains without being loaded")
        if loaded.outstanding == 0:
            self._executor.submit(self._close, model, version, loaded)
        else:
            loaded.on_idle = lambda: self._executor.submit(self._close, model, version, loaded)

    def _close(self, model: ModelRecord[LoadedT], version: VersionRecord[LoadedT], loaded: LoadedT) -> None:
        """In a loader thread."""
        self._close_quietly(model.name, version.number, loaded)
        self._clock.call_soon_threadsafe(self._closed, model, version)

    def _close_quietly(self, model: str, version: int, loaded: LoadedT) -> None:
        """In a loader thread."""
        try:
            self._loader.close(loaded)
        except BaseException:  # noqa: BLE001  # The boundary, as in `_load`; nobody waits.
            _log.exception("%s version %d could not be closed in good order", model, version)

    def _closed(self, model: ModelRecord[LoadedT], version: VersionRecord[LoadedT]) -> None:
        version.loaded = None
        self._change(model, version, Event.DRAINED)
        self._proceed(model)


def _label_error(model: ModelRecord[LoadedT], label: str) -> HeadraceError:
    wanted = model.wanted
    if wanted is not None and label in wanted.labels:
        return Unavailable(f"{model.name} version {wanted.labels[label]}, label {label!r}, is not ready yet")
    known = ", ".join(repr(name) for name in sorted(model.labels)) or "none"
    return NotFound(f"Unrecognized servable version label: {label!r}; {model.name} has {known}")


def _not_ready(
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
    if latest and model.problem:
        return FailedPrecondition(f"{model.name} serves nothing: {model.problem}")
    return NotFound(f"Servable not found for request: {asked}")
