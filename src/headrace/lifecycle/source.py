"""The Source: scans the model directories periodically, and reports the wanted state when it changes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.base.clock import Clock, Timer
from headrace.config import ServerConfig, Table
from headrace.lifecycle.desired_state import Deduced, Wanted, deduce, kept_by_what_is_loaded, tell_of_defaults
from headrace.lifecycle.loader_threads import NO_THREAD, Executor
from headrace.lifecycle.model_listing import NO_VERSION, Listing, Recall, list_models
from headrace.lifecycle.model_listing import look as look_at

_NOT_THERE = "the server's settings name it, but it has no directory; create one, or set path in [models.{}]"

_FOR_LATER = (
    "loaded versions keep the settings that they were loaded with: "
    "publish a new version, or restart the server"
)

_log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
"""Time without progress after which a scan counts as hanging and further scans avoid that model."""

_MOST_SCAN_SHARE = 0.05
"""Share of one processor that scans may take; a scan of a thousand models takes about 0.1 s."""

_FIRST_RETRY_SECONDS = 1.0
"""Pause before retrying a scan for which no thread could be started; used if polling is off."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """Result of one scan; ``deduced`` is None until the served directory has been listed once."""

    deduced: Mapping[str, Deduced] | None
    wanted: Mapping[str, Wanted]
    unusable: Mapping[str, str]
    complaints: Mapping[str, str]


class _Scan:
    """Progress of one scan; written by its thread, read by the serving thread.

    Attributes:
        avoided: Models that are skipped, because another scan hangs in their directories.
        at: The model being read ("" before the first), and the time of the last progress.
        cpu_seconds: Processor time of the scan, once it has ended.
        outdated: Whether another scan's result was used meanwhile; set by the serving thread.
    """

    def __init__(self, avoided: frozenset[str], now: Callable[[], float]) -> None:
        """Begin a scan."""
        self.avoided = avoided
        self._now = now
        self.at = "", now()
        self.cpu_seconds = 0.0
        self.outdated = False

    def may_touch(self, model: str) -> bool:
        """Record the model that is read next, and return True; return False if it must be avoided."""
        if model in self.avoided:
            return False
        self.at = model, self._now()
        return True

    def moved(self) -> None:
        """Record progress within the same model."""
        self.at = self.at[0], self._now()


def pause_after(cpu_seconds: float, poll_seconds: float) -> float:
    """Return the pause after a scan in seconds.

    Args:
        cpu_seconds: Processor time of the scan.
        poll_seconds: The configured pause.

    Returns:
        The configured pause, or a longer one so that scans take no more than 5 % of a processor.
    """
    return max(poll_seconds, cpu_seconds / _MOST_SCAN_SHARE - cpu_seconds)


class DirectorySource:
    """Serves ``DIR/NAME/NUMBER/…``, or ``DIR/NUMBER/…`` as one model named after DIR.

    Scans run in an executor thread, one at a time; everything else runs in the serving thread. A scan that
    hangs in a model's directory is left running, and further scans avoid that model until it returns. Its
    result for that model is then used. Its result for the other models is used only if no newer scan has
    reported meanwhile.

    Invariant: until ``stop``, or the end of the only scan if polling is off, a timer is always pending.
    """

    def __init__(
        self,
        root: Path | None,
        want: Callable[[Mapping[str, Wanted], Mapping[str, str]], object],
        clock: Clock,
        executor: Executor,
        config: ServerConfig,
        others: Collection[str] = (),
    ) -> None:
        """Create the Source; ``start`` begins scanning.

        Args:
            root: The served directory; None if all models are outside of one.
            want: Called with the wanted state of all models and the reasons for unusable names, at first and
                after each change; ``Manager.want``.
            clock: The serving thread's clock.
            executor: Runs the scans; a call that hangs must not delay others.
            config: The server's settings: the poll interval, and settings per model.
            others: Names of models from other sources.
        """
        self._root = root
        self._want = want
        self._clock = clock
        self._executor = executor
        self._config = config
        self._others = frozenset(others)
        self._elsewhere = {
            name: entry.path for name, entry in config.models.items() if entry.path is not None
        }
        self._recall = Recall()
        self._seen: _Seen | None = None
        self._timer: Timer | None = None
        self._current: _Scan | None = None
        self._hanging: dict[str, _Scan] = {}
        self._stopped = False

    def start(self) -> None:
        """Start the first scan; others follow every ``poll_seconds``, less often for very many models."""
        self._submit()

    def stop(self) -> None:
        """Stop scanning; the last wanted state stays in force."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _submit(self) -> None:
        scan = self._current = _Scan(frozenset(self._hanging), self._clock.now)
        try:
            self._executor.submit(self._scan, scan, self._seen)
        except NO_THREAD as error:
            _log.warning("cannot scan the model directories now, retrying soon: %s", error)
            self._timer = self._clock.call_later(
                self._config.poll_seconds or _FIRST_RETRY_SECONDS, self._submit
            )
        else:
            self._timer = self._clock.call_later(LOOK_SECONDS, self._watch, scan, False)

    def _watch(self, scan: _Scan, said: bool) -> None:
        """Check a scan for progress; if it hangs in a model's directory, start one that avoids the model.

        A scan that hangs in the served directory itself is not replaced.
        """
        model, since = scan.at
        left = since + LOOK_SECONDS - self._clock.now()
        if left <= 0 and model:
            self._hanging[model] = scan
            self._submit()
            return
        if left <= 0 and not said:
            _log.warning("the served directory does not answer; loaded versions keep serving")
        said = said or left <= 0
        self._timer = self._clock.call_later(left if left > 0 else LOOK_SECONDS, self._watch, scan, said)

    def _scan(self, scan: _Scan, before: _Seen | None) -> None:
        """Scan, in a loader thread."""
        seen, began = before, time.thread_time()
        try:
            seen = self._scan_directories(scan, before)
        except Exception:  # noqa: BLE001  # the next scan may succeed
            _log.exception("scanning the model directories failed; loaded versions keep serving")
        scan.cpu_seconds = time.thread_time() - began
        with suppress(RuntimeError):  # the event loop has ended meanwhile
            self._clock.call_soon_threadsafe(self._receive, scan, seen, _is_changed(seen, before))

    def _scan_directories(self, scan: _Scan, before: _Seen | None) -> _Seen:
        listing = list_models(self._root, self._elsewhere, scan.may_touch, self._recall)
        remembered = None if before is None else before.deduced
        if listing.problem and remembered is None:
            complaints = _complaints(listing, {}, {})
            _log_news(complaints, before)
            return _Seen(None, {}, {}, complaints)

        def overrides(name: str) -> Table:
            scan.may_touch(name)  # records the model: its versions' files are read next
            return self._config.model(name).overrides

        deduced = deduce(listing, remembered, overrides, lambda path: look_at(path, scan.moved))
        wanted = _wanted(deduced, self._others)
        if listing.problem and before is not None:
            unusable = before.unusable
        else:
            unusable = _unusable(listing, wanted, self._config.models)
        complaints = _complaints(listing, wanted, unusable)
        _log_news(complaints, before)
        _log_changes(wanted, {} if before is None else before.wanted)
        return _Seen(deduced, wanted, unusable, complaints)

    def _receive(self, scan: _Scan, seen: _Seen | None, changed: bool) -> None:
        avoided = [name for name, one in self._hanging.items() if one is scan]
        self._hanging = {name: one for name, one in self._hanging.items() if one is not scan}
        if self._stopped:
            return
        if scan is self._current and self._timer is not None:
            self._timer.cancel()
        try:
            if not scan.outdated:
                self._use(scan, seen, changed)
            elif seen is not None:
                self._use_for_models(avoided, scan, seen)
        except Exception:  # noqa: BLE001  # the next scan reports it again
            _log.exception("could not apply the wanted versions; the next scan retries it")
        finally:
            if scan is self._current and self._config.poll_seconds > 0:
                pause = pause_after(scan.cpu_seconds, self._config.poll_seconds)
                self._timer = self._clock.call_later(pause, self._submit)

    def _use_for_models(self, avoided: Collection[str], scan: _Scan, seen: _Seen) -> None:
        """Use an outdated scan's results only for the models in which it hung, which newer scans avoided."""
        now = self._seen
        if now is None or now.deduced is None or seen.deduced is None:
            return
        deduced = {**now.deduced, **{name: seen.deduced[name] for name in avoided if name in seen.deduced}}
        unusable = {
            **now.unusable,
            **{name: seen.unusable[name] for name in avoided if name in seen.unusable},
        }
        newest = replace(now, deduced=deduced, wanted=_wanted(deduced, self._others), unusable=unusable)
        if _is_changed(newest, now):
            self._use(scan, newest, True)

    def _use(self, scan: _Scan, seen: _Seen | None, changed: bool) -> None:
        if changed and seen is not None:
            self._want(seen.wanted, seen.unusable)
        self._seen = seen
        # Other scans started from an older state, and avoid models that this one may have read.
        for other in (self._current, *self._hanging.values()):
            if other is not None and other is not scan:
                other.outdated = True


def _wanted(deduced: Mapping[str, Deduced], others: Collection[str]) -> dict[str, Wanted]:
    found = tell_of_defaults({name: model.wanted for name, model in deduced.items()}, others)
    return {name: wanted for name, wanted in found.items() if wanted.versions or wanted.problem}


def _is_changed(seen: _Seen | None, before: _Seen | None) -> bool:
    if seen is None or seen.deduced is None:
        return False
    if before is None or before.deduced is None:
        return True
    return seen.wanted != before.wanted or seen.unusable != before.unusable


def _unusable(listing: Listing, wanted: Mapping[str, Wanted], settings: Iterable[str]) -> dict[str, str]:
    """Return the reasons, with advice, for names that an operator may take for models but that are not."""
    missing = {name: _NOT_THERE.format(name) for name in settings}
    empty = {name: model.empty for name, model in listing.models.items()}
    found = {**missing, **empty, **listing.skipped}
    return {name: why for name, why in found.items() if why and name not in wanted}


def _complaints(
    listing: Listing, wanted: Mapping[str, Wanted], unusable: Mapping[str, str]
) -> dict[str, str]:
    """Return messages for the operator, by model, directory or version name."""
    problems = {
        name: f"{model.problem}: {model.detail}" if model.detail else model.problem
        for name, model in wanted.items()
        if model.problem
    }
    root = {"the served directory": listing.problem} if listing.problem else {}
    passed_over = {
        f"{name}/{one}": f"it is ignored: {NO_VERSION}"
        for name, model in listing.models.items()
        for one in model.passed_over
    }
    return {**passed_over, **unusable, **listing.unreadable, **root, **problems}


def _log_news(complaints: Mapping[str, str], before: _Seen | None) -> None:
    said = before.complaints if before is not None else {}
    for name, complaint in complaints.items():
        if said.get(name) != complaint:
            _log.warning("%s: %s", name, complaint)
    for name in said.keys() - complaints.keys():
        _log.info("%s: resolved: %s", name, said[name])


def _log_changes(wanted: Mapping[str, Wanted], before: Mapping[str, Wanted]) -> None:
    """Log changed settings that loaded versions ignore, and how to apply them."""
    for name, model in wanted.items():
        if name not in before or before[name].config is model.config:
            continue
        for section in kept_by_what_is_loaded(before[name].config, model.config):
            _log.info("%s: headrace.toml: [%s] has changed; %s", name, section, _FOR_LATER)
