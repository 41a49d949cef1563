"""The Source: looks at the model directories again and again, and says what is wanted when it has changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.clock import Clock, Timer
from headrace.config import ServerConfig
from headrace.lifecycle.background import Executor
from headrace.lifecycle.deduce import Deduced, deduce
from headrace.lifecycle.listing import Listing, list_models, look
from headrace.lifecycle.wanted import Wanted

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one look found; nothing is deduced before the served directory could be listed once."""

    deduced: Mapping[str, Deduced] | None
    wanted: Mapping[str, Wanted]
    complaints: Mapping[str, str]


class DirectorySource:
    """Serves ``DIR/NAME/NUMBER/…``, or ``DIR/NUMBER/…`` as one model named after DIR.

    Looking happens in a thread of the executor's, one look at a time; all else in the serving thread.
    """

    def __init__(
        self,
        root: Path | None,
        want: Callable[[Mapping[str, Wanted]], object],
        clock: Clock,
        executor: Executor,
        config: ServerConfig,
    ) -> None:
        """Get ready; ``start`` begins.

        Args:
            root: The served directory; None if all models lie elsewhere.
            want: Told everything that is wanted, at first and whenever it has changed; ``Manager.want``.
            clock: Time, and calls in the serving thread.
            executor: Where to look; one that loads models as well makes looking wait for them.
            config: How often to look, and what is set per model.
        """
        self._root = root
        self._want = want
        self._clock = clock
        self._executor = executor
        self._config = config
        self._elsewhere = {
            name: entry.path for name, entry in config.models.items() if entry.path is not None
        }
        self._seen: _Seen | None = None
        self._timer: Timer | None = None
        self._stopped = False

    def start(self) -> None:
        """Look for the first time, and then every ``poll_seconds``."""
        self._submit()

    def stop(self) -> None:
        """Look no more; what was wanted last stays wanted."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _submit(self) -> None:
        self._timer = None
        self._executor.submit(self._look, self._seen)

    def _look(self, before: _Seen | None) -> None:
        """In a loader thread."""
        seen = before
        try:
            seen = self._find(before)
        except Exception:  # noqa: BLE001  # The boundary: whatever goes wrong, the next look may go well.
            _log.exception("looking at the model directories failed; what is loaded stays")
        self._clock.call_soon_threadsafe(self._tell, seen, _is_news(seen, before))

    def _find(self, before: _Seen | None) -> _Seen:
        listing = list_models(self._root, self._elsewhere)
        remembered = None if before is None else before.deduced
        if listing.problem and remembered is None:
            complaints = _complaints(listing, {})
            _log_news(complaints, before)
            return _Seen(None, {}, complaints)
        deduced = deduce(listing, remembered, lambda name: self._config.model(name).overrides, look)
        wanted = {
            name: model.wanted
            for name, model in deduced.items()
            if model.wanted.versions or model.wanted.problem
        }
        complaints = _complaints(listing, wanted)
        _log_news(complaints, before)
        return _Seen(deduced, wanted, complaints)

    def _tell(self, seen: _Seen | None, changed: bool) -> None:
        if self._stopped:
            return
        self._seen = seen
        if changed and seen is not None:
            self._want(seen.wanted)
        if self._config.poll_seconds > 0:
            self._timer = self._clock.call_later(self._config.poll_seconds, self._submit)


def _is_news(seen: _Seen | None, before: _Seen | None) -> bool:
    if seen is None or seen.deduced is None:
        return False
    return before is None or before.deduced is None or seen.wanted != before.wanted


def _complaints(listing: Listing, wanted: Mapping[str, Wanted]) -> dict[str, str]:
    """What the operator should know, by the name of what it is about."""
    no_version = "no version in it: expected directories named 1, 2, … with the model's files"
    empty = {name: no_version for name, model in listing.models.items() if not model.versions}
    problems = {name: model.problem for name, model in wanted.items() if model.problem}
    root = {"the served directory": listing.problem} if listing.problem else {}
    return {**empty, **listing.unreadable, **listing.skipped, **root, **problems}


def _log_news(complaints: Mapping[str, str], before: _Seen | None) -> None:
    said = before.complaints if before is not None else {}
    for name, complaint in complaints.items():
        if said.get(name) != complaint:
            _log.warning("%s: %s", name, complaint)
    for name in said.keys() - complaints.keys():
        _log.info("%s: solved: %s", name, said[name])
