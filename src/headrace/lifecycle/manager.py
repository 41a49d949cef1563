"""The Manager: loads and unloads versions to reach the wanted state, and looks up ready versions.

All of its state belongs to the serving thread, without a lock. Loading, warming up and closing run in loader
threads, and their results return as calls in the serving thread. It never polls, but reacts to events: a new
wanted state, a load that ended or timed out, a version that became idle, a retry that is due.

The order of a swap with the transition ``availability``: load, warm up, attach, move the default, drain the
old version, close it. If a load fails, the old version continues to serve. The transition ``resource``
unloads the old version first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Generic

from headrace.base.clock import Clock
from headrace.base.errors import HeadraceError, InvalidRequest, LoadError, Unavailable
from headrace.lifecycle import model_records
from headrace.lifecycle.desired_state import Wanted
from headrace.lifecycle.leases import LoadedT
from headrace.lifecycle.load_attempts import TOO_MANY_HANG, Attempt, Attempts, Loader, WaitingLoads
from headrace.lifecycle.loader_threads import NO_THREAD, Closes, Executor
from headrace.lifecycle.model_records import OVERWRITTEN, ModelRecord, Place, Unsettled, VersionRecord
from headrace.lifecycle.policy import pause_before_retry
from headrace.lifecycle.version_states import Event, State, VersionStatus

_log = logging.getLogger(__name__)


class Manager(Generic[LoadedT]):
    """Holds the loaded versions of all models.

    Attributes:
        unusable: Names that its Source found but cannot use as models, with the reasons.
    """

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
            clock: The serving thread's clock.
            executor: Runs the loader threads; a call that hangs must not delay others.
            load_threads: The most versions, of different models, that load concurrently, not counting slow
                loads.
            on_change: Called in the serving thread with a model and the new status of one of its versions.
        """
        self._loader = loader
        self._clock = clock
        self._executor = executor
        self._on_change = on_change
        self._models: dict[str, ModelRecord[LoadedT]] = {}
        self.unusable: Mapping[str, str] = {}
        self._defaults: dict[str, LoadedT] = {}
        self._to_load: WaitingLoads[LoadedT] = WaitingLoads()
        self._attempts: Attempts[LoadedT] = Attempts(clock, load_threads)
        self._closes: Closes[LoadedT] = Closes(loader.close, clock, executor)
        self._unsettled = Unsettled(lambda: self._models, self._is_settled)
        self._is_all, self._started, self._closing = True, False, False
        self._on_closed: Callable[[], object] | None = None

    # ---- Queries ----

    def get(self, model: str, version: int | None = None, label: str | None = None) -> LoadedT:
        """Return the version for a request; submit to it or lease it in the same turn of the event loop.

        Args:
            model: The model's name.
            version: A version, or None for the default one.
            label: A label, or None.

        Raises:
            NotFound: There is no such model, version or label.
            Unavailable: The version is loading, the label's version is not ready yet, or the server is
                stopping.
            FailedPrecondition: The version failed to load, or a problem keeps the model from serving any.
            InvalidRequest: Both a version and a label are given.
        """
        if version is None and label is None:
            loaded = self._defaults.get(model)
            if loaded is not None:
                return loaded
        return self._find(model, version, label)

    def ready_now(self, model: str, version: int | None = None, label: str | None = None) -> LoadedT | None:
        """Return what ``get`` returns; None where ``get`` raises. Thread-safe.

        The version may be taken out of service at any moment. A thread holds it if it counts itself as a user
        first, and then still finds the version here: the Manager takes a version out of service before it
        checks the number of users.
        """
        if version is None and label is None:
            return self._defaults.get(model)
        record = self._models.get(model)
        if record is None or (version is not None and label is not None):
            return None
        number = version if label is None else record.labels.get(label)
        found = record.versions.get(number) if number is not None else None
        return found.loaded if found is not None and found.state is State.READY else None

    def models(self) -> list[str]:
        """Return the names of all known models, including those that the operator unloaded."""
        return sorted(self._models)

    def knows(self, model: str) -> bool:
        """Return whether there is a model of this name, loaded or not."""
        return model in self._models

    def status(self, model: str) -> list[VersionStatus]:
        """Return the status of each of a model's versions, newest first.

        Raises:
            NotFound: There is no such model.
        """
        return self._known(model).statuses()

    def all_loaded(self) -> list[LoadedT]:
        """Return all loaded versions (warming up, ready or draining), sorted by model and version."""
        return [
            version.loaded
            for name in sorted(self._models)
            for _, version in sorted(self._models[name].versions.items())
            if version.loaded is not None
        ]

    def warnings(self, model: str) -> list[str]:
        """Return messages on how a model differs from what the operator asked for.

        Raises:
            NotFound: There is no such model.
        """
        hang = [TOO_MANY_HANG] if self._attempts.too_many_hang(model) else []
        return self._known(model).warnings() + hang

    def labels(self, model: str) -> dict[str, int]:
        """Return the current targets of a model's labels, which are always ready versions.

        Raises:
            NotFound: There is no such model.
        """
        return dict(self._known(model).labels)

    def default_version(self, model: str) -> int | None:
        """Return the version that answers requests that name none; None if there is none.

        Raises:
            NotFound: There is no such model.
        """
        return self._known(model).default

    def ready(self) -> bool:
        """Return whether start-up is complete: each model has a ready or failed version, and one is ready.

        It is also complete if no model is wanted. Once true, the result stays true until ``close``.
        """
        return self._started and not self._closing

    def serving(self) -> bool:
        """Return whether loading must yield to requests: from start-up to ``close``, while a model serves."""
        return self._started and not self._closing and bool(self._defaults)

    @property
    def hanging(self) -> int:
        """Number of abandoned loads still running, after a timeout or after ``close``."""
        return self._attempts.hanging

    # ---- Commands of operators and Sources ----

    def want(
        self, models: Mapping[str, Wanted], unusable: Mapping[str, str] | None = None, *, is_all: bool = True
    ) -> None:
        """Replace the wanted state of all models; models left out are drained and unloaded.

        Args:
            models: Wanted state by model name.
            unusable: Names that cannot be used as models, with the reasons.
            is_all: Whether ``models`` is complete; start-up does not end before.
        """
        if self._closing:
            return
        self.unusable, self._is_all = unusable or {}, is_all
        self._models |= {name: ModelRecord(name) for name in models if name not in self._models}
        for name, record in list(self._models.items()):
            wanted = models.get(name)
            if record.wanted != wanted or wanted is None:
                record.wanted = wanted
                self._apply_policy(record)
        self._start_loads()
        self._check_started()

    def reload(self, model: str) -> None:
        """Take a model back into service, and retry its failed versions at once.

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
            on_closed: Called once, when all versions are closed, which waits for the requests that hold them.
                Loads in progress are not awaited; their versions are closed when they return.
        """
        self._closing = True
        self._on_closed = on_closed
        for attempt in self._attempts.awaited():
            self._abandon(attempt)
            self._change(attempt.model, attempt.version, Event.FAIL)
        for record in list(self._models.values()):
            record.wanted = None
            self._apply_policy(record)
        self._check_closed()

    # ---- Looking up ----

    def _known(self, model: str) -> ModelRecord[LoadedT]:
        record = self._models.get(model)
        if record is None:
            raise model_records.unknown_model(model, f"Latest({model})", self._models, self.unusable)
        return record

    def _find(self, model: str, version: int | None, label: str | None) -> LoadedT:
        """Find a version as ``get`` does, if no ready default version answers the request."""
        if version is not None and label is not None:
            raise InvalidRequest("name a version or a label, not both", field="version")
        if self._closing:
            raise Unavailable("the server is stopping")
        loaded = self.ready_now(model, version, label)
        if loaded is not None:
            return loaded
        record = self._models.get(model)
        asked = f"Latest({model})" if version is None else f"Specific({model}, {version})"
        if record is None:
            raise model_records.unknown_model(model, asked, self._models, self.unusable)
        if label is not None and label not in record.labels:
            raise model_records.label_error(record, label)
        number = record.default if version is None else version
        number = number if label is None else record.labels[label]
        found = record.versions.get(number) if number is not None else None
        raise model_records.not_ready(record, found, asked)

    # ---- Moving towards the wanted state ----

    def _apply_policy(self, model: ModelRecord[LoadedT]) -> None:
        """Apply the policy's actions to a model; queue the first load, and stop there."""
        now = self._clock.now()
        for number in model.match(now):
            _log.warning("%s version %d: %s", model.name, number, OVERWRITTEN)
        self._point(model)
        self._to_load.drop(model.name)
        while (action := model.decide(now)) is not None:
            version = model.versions[action.version]
            if action.event is Event.LOAD:
                if not model.busy and not self._attempts.too_many_hang(model.name):
                    self._to_load.put(model, version, is_replacement=model.name in self._defaults)
                break
            self._change(model, version, action.event)
            self._point(model)  # before users are counted; see `ready_now`
            if action.event is Event.DRAIN:
                self._drain(model, version)
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
        """React to an event of a version: apply the policy, and start loads."""
        self._apply_policy(model)
        self._start_loads()
        self._check_started()
        self._check_closed()

    def _check_started(self) -> None:
        if not self._started and self._is_all and self._unsettled.is_none():
            self._started = bool(self._defaults) or not any(
                model.wanted is not None and not model.unloaded for model in self._models.values()
            )

    def _check_closed(self) -> None:
        if self._closing and not self._models and self._on_closed is not None:
            on_closed, self._on_closed = self._on_closed, None
            on_closed()

    def _is_settled(self, name: str) -> bool:
        return name not in self._models or self._models[name].settled

    # ---- Loading ----

    def _start_loads(self) -> None:
        """Start loads up to the limit: first models without a ready version, then the least tried."""
        while self._to_load and self._attempts.is_room:
            model, version = self._to_load.take()
            version.attempts += 1
            version.hanging = False
            self._change(model, version, Event.LOAD)
            attempt = self._attempts.begin(model, version, self._start_loads, self._took_too_long)
            self._start(self._executor.submit_in_parts, attempt, self._load, attempt, version.place)

    def _start(self, submit: Callable[..., object], attempt: Attempt[LoadedT], *call: object) -> None:
        """Continue an attempt in a loader thread; if none can be started, fail it in a later callback."""
        try:
            submit(*call)
        except NO_THREAD as error:
            failure = LoadError("could not start a loader thread")
            failure.__cause__ = error
            self._clock.call_soon(self._failed, attempt, failure)

    def _load(self, attempt: Attempt[LoadedT], place: Place) -> None:
        """Load a version, in a loader thread."""
        try:
            attempt.loaded = self._loader.load(
                attempt.model.name, attempt.version.number, place.path, place.config
            )
        except BaseException as error:  # noqa: BLE001  # a model may raise anything
            self._call_back(attempt, self._failed, attempt, error)
        else:
            self._call_back(attempt, self._loaded, attempt)

    def _call_back(self, attempt: Attempt[LoadedT], call: Callable[..., object], *args: object) -> None:
        """Schedule a call in the serving thread; if its loop has ended, close the loaded version."""
        try:
            self._clock.call_soon_threadsafe(call, *args)
        except RuntimeError:
            if attempt.loaded is not None:
                self._closes.here(_name(attempt.model, attempt.version), attempt.loaded)

    def _loaded(self, attempt: Attempt[LoadedT]) -> None:
        if not attempt.awaited:
            self._came_too_late(attempt)
            return
        model, version = attempt.model, attempt.version
        version.loaded = attempt.loaded
        self._change(model, version, Event.LOADED)
        # The wanted state may have changed meanwhile: do not warm up a version only to drain it.
        if model.decide(self._clock.now(), suppose_ready=version) == (Event.DRAIN, version.number):
            self._attempts.end(attempt)
            self._change(model, version, Event.DRAIN)
            self._drain(model, version)
            self._proceed(model)
        else:
            self._start(self._executor.submit, attempt, self._warm_up, attempt, attempt.loaded)

    def _warm_up(self, attempt: Attempt[LoadedT], loaded: LoadedT) -> None:
        """Warm a version up, in a loader thread."""
        try:
            self._loader.warm_up(loaded)
        except BaseException as error:  # noqa: BLE001  # as in `_load`
            self._call_back(attempt, self._failed, attempt, error)
        else:
            self._call_back(attempt, self._warmed, attempt, loaded)

    def _warmed(self, attempt: Attempt[LoadedT], loaded: LoadedT) -> None:
        if not attempt.awaited:
            self._came_too_late(attempt)
            return
        try:
            self._loader.attach(loaded)
        except Exception as error:  # noqa: BLE001  # as in `_load`
            self._failed(attempt, error)
            return
        self._attempts.end(attempt)
        attempt.version.error = ""
        self._change(attempt.model, attempt.version, Event.WARMED)
        self._proceed(attempt.model)

    def _failed(self, attempt: Attempt[LoadedT], error: BaseException) -> None:
        if not attempt.awaited:
            self._came_too_late(attempt)
            return
        self._attempts.end(attempt)
        self._fail(attempt.model, attempt.version, error)

    def _took_too_long(self, attempt: Attempt[LoadedT]) -> None:
        model, version = attempt.model, attempt.version
        step = "warming up" if version.state is State.WARMING else "loading"
        self._abandon(attempt)
        version.hanging = True
        limit = f"versions.load_timeout_seconds = {attempt.limit_seconds:g}"
        self._fail(model, version, LoadError(f"{step} took longer than {limit}, and was abandoned"))
        if self._attempts.too_many_hang(model.name):
            _log.warning("%s: %s", model.name, TOO_MANY_HANG)

    def _abandon(self, attempt: Attempt[LoadedT]) -> None:
        self._attempts.abandon(attempt)
        attempt.version.loaded = None  # its thread may still use it: closed when that returns

    def _came_too_late(self, attempt: Attempt[LoadedT]) -> None:
        """Close the result of an abandoned attempt, and start loads that were refused while it hung."""
        self._attempts.come_back(attempt)
        model, version = attempt.model, attempt.version
        if attempt.loaded is not None:
            self._closes.begin(_name(model, version), attempt.loaded)
        if version.hanging and version.state is State.FAILED:
            version.hanging = False
            self._plan_retry(model, version, LoadError(version.error))
        if self._models.get(model.name) is model:
            self._proceed(model)

    def _plan_retry(
        self, model: ModelRecord[LoadedT], version: VersionRecord[LoadedT], error: BaseException
    ) -> float | None:
        """Schedule a retry unless the version's thread hangs; return the pause, None if it is not retried."""
        pause = pause_before_retry(error, version.attempts, version.place.config.versions)
        if pause is not None and not version.hanging:
            version.timer = self._clock.call_later(pause, self._retry, model, version)
        return pause

    def _fail(
        self, model: ModelRecord[LoadedT], version: VersionRecord[LoadedT], error: BaseException
    ) -> None:
        text = version.reason = model_records.whole_of(error)
        # Clients see this text: name the version, not its path.
        version.error = model_records.told_of(error, version.place.path, f"{model.name}/{version.number}")
        pause = self._plan_retry(model, version, error)
        most = version.place.config.versions.load_attempts
        version.retry_at = None
        following = "tried again when its files or settings change"
        if pause is not None:
            following = "the next when this one returns" if version.hanging else f"the next in {pause:g} s"
        _log.warning(
            "%s failed to load (attempt %d%s, %s): %s",
            _name(model, version),
            version.attempts,
            f" of {most}" if pause is not None and version.attempts <= most else "",
            following,
            text,
            exc_info=None if isinstance(error, HeadraceError) else error,
        )
        if version.loaded is not None:
            self._closes.begin(_name(model, version), version.loaded)
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
            raise RuntimeError(f"{_name(model, version)} drains without being loaded")
        if loaded.outstanding == 0:
            self._close(model, version, loaded)
        else:
            loaded.on_idle = lambda: self._close(model, version, loaded)

    def _close(self, model: ModelRecord[LoadedT], version: VersionRecord[LoadedT], loaded: LoadedT) -> None:
        limit_seconds = version.place.config.versions.load_timeout_seconds
        self._closes.begin(_name(model, version), loaded, limit_seconds, lambda: self._closed(model, version))

    def _closed(self, model: ModelRecord[LoadedT], version: VersionRecord[LoadedT]) -> None:
        version.loaded = None
        self._change(model, version, Event.DRAINED)
        self._proceed(model)


def _name(model: ModelRecord[LoadedT], version: VersionRecord[LoadedT]) -> str:
    return f"{model.name} version {version.number}"
