"""The Source: looks at the model directories again and again, and says what is wanted when it has changed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.clock import Clock, Timer
from headrace.config import ServerConfig, Table
from headrace.lifecycle.background import NO_THREAD, Executor
from headrace.lifecycle.deduce import Deduced, deduce, kept_by_what_is_loaded, tell_of_defaults
from headrace.lifecycle.listing import NO_VERSION, Listing, list_models
from headrace.lifecycle.listing import look as look_at
from headrace.lifecycle.recall import Recall
from headrace.lifecycle.wanted import Wanted

_NOT_THERE = "the server's settings name it, but no directory does; make it, or give [models.{}] a path"

_FOR_LATER = (
    "versions that are loaded keep the settings that they were loaded with: "
    "publish a new version, or start the server again"
)

_log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
"""How long a look may stand still before the next ones avoid the model where it does."""

_MOST_LOOK_SHARE = 0.05
"""The part of one processor that looks may take: of a thousand models they take a tenth of a second each."""

_FIRST_RETRY_SECONDS = 1.0
"""Until a first look that found no thread is tried again, where no second one is asked for."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one look found; nothing is deduced before the served directory could be listed once."""

    deduced: Mapping[str, Deduced] | None
    wanted: Mapping[str, Wanted]
    unusable: Mapping[str, str]
    complaints: Mapping[str, str]


class _Look:
    """One look, as far as it has come; written by its thread, read by the serving one.

    Attributes:
        avoided: The models that are not touched, because another look hangs in their directories.
        at: The model that is being looked at, "" before the first; and since when it has stood still.
        cpu_seconds: What it took of a processor, once it has ended.
        outdated: Whether something newer has been told meanwhile; the serving thread's.
    """

    def __init__(self, avoided: frozenset[str], now: Callable[[], float]) -> None:
        """Begin."""
        self.avoided = avoided
        self._now = now
        self.at = "", now()
        self.cpu_seconds = 0.0
        self.outdated = False

    def may_touch(self, model: str) -> bool:
        """Note which model comes next, unless it is to be avoided."""
        if model in self.avoided:
            return False
        self.at = model, self._now()
        return True

    def moved(self) -> None:
        """It is still at the same model, and does not hang."""
        self.at = self.at[0], self._now()


def pause_after(cpu_seconds: float, poll_seconds: float) -> float:
    """How long to wait after a look.

    Args:
        cpu_seconds: What it took of a processor.
        poll_seconds: The pause that is asked for.

    Returns:
        Seconds: as asked for, or longer, where looks would take more than a small part of a processor.
    """
    return max(poll_seconds, cpu_seconds / _MOST_LOOK_SHARE - cpu_seconds)


class DirectorySource:
    """Serves ``DIR/NAME/NUMBER/…``, or ``DIR/NUMBER/…`` as one model named after DIR.

    Looking happens in a thread of the executor's, one look at a time; all else in the serving thread. A look
    that hangs in a model's directory is left behind, and the next ones avoid that model until it comes back;
    what it has found of that model is taken then. However long a look takes as a whole, what it found is
    told, unless something newer has been.

    Rule: until ``stop``, or the one look that is asked for, there is always a timer that goes on.
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
        """Get ready; ``start`` begins.

        Args:
            root: The served directory; None if all models lie elsewhere.
            want: Told everything that is wanted, and what cannot be used, by name, and why: at first and
                whenever it has changed; ``Manager.want``.
            clock: Time, and calls in the serving thread.
            executor: Where to look; what hangs in one of its threads must not hold up the others.
            config: How often to look, and what is set per model.
            others: Models that are served and come from elsewhere.
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
        self._current: _Look | None = None
        self._hanging: dict[str, _Look] = {}
        self._stopped = False

    def start(self) -> None:
        """Look for the first time, and then every ``poll_seconds``; less often at very many models."""
        self._submit()

    def stop(self) -> None:
        """Look no more; what was wanted last stays wanted."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _submit(self) -> None:
        look = self._current = _Look(frozenset(self._hanging), self._clock.now)
        try:
            self._executor.submit(self._look, look, self._seen)
        except NO_THREAD as error:
            _log.warning("the model directories cannot be looked at now, but soon again: %s", error)
            self._timer = self._clock.call_later(
                self._config.poll_seconds or _FIRST_RETRY_SECONDS, self._submit
            )
        else:
            self._timer = self._clock.call_later(LOOK_SECONDS, self._watch, look, False)

    def _watch(self, look: _Look, said: bool) -> None:
        """Where a look hangs in a model, begin another that avoids it. The served directory is waited for."""
        model, since = look.at
        left = since + LOOK_SECONDS - self._clock.now()
        if left <= 0 and model:
            self._hanging[model] = look
            self._submit()
            return
        if left <= 0 and not said:
            _log.warning("the served directory does not answer; what is loaded stays")
        said = said or left <= 0
        self._timer = self._clock.call_later(left if left > 0 else LOOK_SECONDS, self._watch, look, said)

    def _look(self, look: _Look, before: _Seen | None) -> None:
        """In a loader thread."""
        seen, began = before, time.thread_time()
        try:
            seen = self._find(look, before)
        except Exception:  # noqa: BLE001  # The boundary: whatever goes wrong, the next look may go well.
            _log.exception("looking at the model directories failed; what is loaded stays")
        look.cpu_seconds = time.thread_time() - began
        with suppress(RuntimeError):  # the event loop has ended meanwhile
            self._clock.call_soon_threadsafe(self._tell, look, seen, _is_news(seen, before))

    def _find(self, look: _Look, before: _Seen | None) -> _Seen:
        listing = list_models(self._root, self._elsewhere, look.may_touch, self._recall)
        remembered = None if before is None else before.deduced
        if listing.problem and remembered is None:
            complaints = _complaints(listing, {}, {})
            _log_news(complaints, before)
            return _Seen(None, {}, {}, complaints)

        def overrides(name: str) -> Table:
            look.may_touch(name)  # its versions' files are looked at next
            return self._config.model(name).overrides

        deduced = deduce(listing, remembered, overrides, lambda path: look_at(path, look.moved))
        wanted = _wanted(deduced, self._others)
        if listing.problem and before is not None:
            unusable = before.unusable
        else:
            unusable = _unusable(listing, wanted, self._config.models)
        complaints = _complaints(listing, wanted, unusable)
        _log_news(complaints, before)
        _log_changes(wanted, {} if before is None else before.wanted)
        return _Seen(deduced, wanted, unusable, complaints)

    def _tell(self, look: _Look, seen: _Seen | None, changed: bool) -> None:
        avoided = [name for name, one in self._hanging.items() if one is look]
        self._hanging = {name: one for name, one in self._hanging.items() if one is not look}
        if self._stopped:
            return
        if look is self._current and self._timer is not None:
            self._timer.cancel()
        try:
            if not look.outdated:
                self._take(look, seen, changed)
            elif seen is not None:
                self._take_of(avoided, look, seen)
        except Exception:  # noqa: BLE001  # The boundary: as long as this is not taken, each look tells it again.
            _log.exception("what is wanted could not be set in motion; the next look tells it again")
        finally:
            if look is self._current and self._config.poll_seconds > 0:
                pause = pause_after(look.cpu_seconds, self._config.poll_seconds)
                self._timer = self._clock.call_later(pause, self._submit)

    def _take_of(self, avoided: Collection[str], look: _Look, seen: _Seen) -> None:
        """Of a look that newer ones have overtaken, take the models in which it hung: they avoided those."""
        now = self._seen
        if now is None or now.deduced is None or seen.deduced is None:
            return
        deduced = {**now.deduced, **{name: seen.deduced[name] for name in avoided if name in seen.deduced}}
        unusable = {
            **now.unusable,
            **{name: seen.unusable[name] for name in avoided if name in seen.unusable},
        }
        newest = replace(now, deduced=deduced, wanted=_wanted(deduced, self._others), unusable=unusable)
        if _is_news(newest, now):
            self._take(look, newest, True)

    def _take(self, look: _Look, seen: _Seen | None, changed: bool) -> None:
        if changed and seen is not None:
            self._want(seen.wanted, seen.unusable)
        self._seen = seen
        # The others began from what was seen before, and avoid what this one may have looked at.
        for other in (self._current, *self._hanging.values()):
            if other is not None and other is not look:
                other.outdated = True


def _wanted(deduced: Mapping[str, Deduced], others: Collection[str]) -> dict[str, Wanted]:
    found = tell_of_defaults({name: model.wanted for name, model in deduced.items()}, others)
    return {name: wanted for name, wanted in found.items() if wanted.versions or wanted.problem}


def _is_news(seen: _Seen | None, before: _Seen | None) -> bool:
    if seen is None or seen.deduced is None:
        return False
    if before is None or before.deduced is None:
        return True
    return seen.wanted != before.wanted or seen.unusable != before.unusable


def _unusable(listing: Listing, wanted: Mapping[str, Wanted], settings: Iterable[str]) -> dict[str, str]:
    """What looks like a model to its operator and is none, and why, with the way out."""
    missing = {name: _NOT_THERE.format(name) for name in settings}
    empty = {name: model.empty for name, model in listing.models.items()}
    found = {**missing, **empty, **listing.skipped}
    return {name: why for name, why in found.items() if why and name not in wanted}


def _complaints(
    listing: Listing, wanted: Mapping[str, Wanted], unusable: Mapping[str, str]
) -> dict[str, str]:
    """What the operator should know, by the name of what it is about."""
    problems = {
        name: f"{model.problem}: {model.detail}" if model.detail else model.problem
        for name, model in wanted.items()
        if model.problem
    }
    root = {"the served directory": listing.problem} if listing.problem else {}
    passed_over = {
        f"{name}/{one}": f"it is passed over: {NO_VERSION}"
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
        _log.info("%s: solved: %s", name, said[name])


def _log_changes(wanted: Mapping[str, Wanted], before: Mapping[str, Wanted]) -> None:
    """Say which changes of settings nobody will notice yet, and how they are brought into force."""
    for name, model in wanted.items():
        if name not in before or before[name].config is model.config:
            continue
        for section in kept_by_what_is_loaded(before[name].config, model.config):
            _log.info("%s: headrace.toml: [%s] has changed; %s", name, section, _FOR_LATER)
