"""Embedders as fillers use them: one that is down or hangs delays only its own spaces.

An embedder is opened once it answers, and called in threads of its own, so that a caller may continue without
an answer. While it is down, single calls at growing intervals probe whether it is back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from headrace.archive.embedders.embedder import Embedded, Embedder
from headrace.base.errors import FailedPrecondition, HeadraceError, Refused, Unavailable

_log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 10.0
_TOLD_EVERY_SECONDS = 60.0
_LONG_SECONDS = 10.0

Where = tuple[str, int]
"""Name of a space, and number of its version."""


class Call:
    """A call of an embedder, in flight or ended.

    Attributes:
        pooled: The embedder that is called.
        where: Space version of the contents.
        contents: Contents to embed.
        began: Start time, on the monotonic clock.
        ended: Set when the call ends.
    """

    def __init__(self, pooled: PooledEmbedder, where: Where, contents: Sequence[bytes]) -> None:
        """Record the start."""
        self.pooled, self.where, self.contents = pooled, where, tuple(contents)
        self.began = time.monotonic()
        self.ended = threading.Event()
        self._came: Embedded | Exception | None = None

    def end(self, came: Embedded | Exception) -> None:
        """Set the result or the error, and mark the call as ended."""
        self._came = came
        self.ended.set()

    def result(self) -> Embedded:
        """Return the result of an ended call.

        Raises:
            DependencyUnavailable: The embedder refused the call, or is unavailable.
            Exception: Any other error of the embedder.
        """
        if isinstance(self._came, Embedded):
            return self._came
        if isinstance(self._came, (Refused, FailedPrecondition)) or self._came is None:
            raise DependencyUnavailable(
                self.pooled, refused=len(self.contents), answers=self.pooled.answers
            ) from self._came
        raise self._came


class Dependency(Protocol):
    """Something that messages may wait for: an embedder, or the texts of a feature table.

    Attributes:
        name: Name for error messages.
    """

    name: str

    def may_be_asked(self, now: float) -> bool:
        """Return whether a call can succeed, as far as known.

        Args:
            now: Current time, on the monotonic clock.
        """

    @property
    def due(self) -> float:
        """Time of the next attempt, on the monotonic clock; 0 for now."""

    @property
    def trouble(self) -> str:
        """Description of its current fault; "" for none."""

    def look(self) -> None:
        """Check that it is available, and log faults at intervals; to be called often."""


class DependencyUnavailable(Exception):
    """The embedder or table is unavailable or has not answered yet; only the keys that need it wait.

    Attributes:
        awaited: The embedder or table.
        call: A call in flight whose answer will cover all contents; None if there is none.
        refused: Number of contents that the embedder refused together; 0 if it refused none.
        answers: Number of batches that the embedder had answered by then.
    """

    def __init__(
        self, awaited: Dependency, call: Call | None = None, *, refused: int = 0, answers: int = 0
    ) -> None:
        """Record what is unavailable."""
        super().__init__(awaited.name)
        self.awaited, self.call = awaited, call
        self.refused, self.answers = refused, answers


class _Outage(NamedTuple):
    """An outage of an embedder.

    Attributes:
        text: Message for logs and status.
        since: Start of the outage, on the monotonic clock.
        told: Time of the last log message, on the monotonic clock.
        failures: Number of failed calls since the start.
        due: Time of the next call, on the monotonic clock.
    """

    text: str
    since: float
    told: float
    failures: int
    due: float


class PooledEmbedder:
    """One embedder, for use from any number of threads.

    Attributes:
        name: Name of the embedder in the settings.
        spaces: Spaces that it fills.
        is_ready: Whether the space versions that it makes are known; set by the filler.
        answers: Number of batches that it has answered.
        first_tried: Set when the first attempt to open it has ended.
        error: Error of the last attempt to open it; None after a success.
    """

    def __init__(
        self,
        name: str,
        spaces: Sequence[str],
        open_: Callable[[], Embedder] | None = None,
        *,
        address: str = "",
        embedder: Embedder | None = None,
    ) -> None:
        """Open nothing yet.

        Args:
            name: Name of the embedder in the settings.
            spaces: Spaces that it fills.
            open_: Opens the embedder; None if the given ``embedder`` is kept for good.
            address: Address of a remote embedder; "" for a local one.
            embedder: The embedder, if it is already open.
        """
        self.name, self.spaces = name, tuple(spaces)
        self.is_ready = False
        self.answers = 0
        self.first_tried = threading.Event()
        self.error: Exception | None = None
        self._open = open_
        self._said = f"the embedder {name!r}" + (f" at {address}" if address else "")
        if self.spaces:
            self._said += f" (of {', '.join(self.spaces)})"
        self._embedder = embedder
        self._is_opening = self._is_probing = self._is_closed = False
        self._outage: _Outage | None = None
        self._calls: set[Call] = set()
        self._slow_told = 0.0
        self._was_waited_for = False
        self._lock = threading.Lock()

    @property
    def embedder(self) -> Embedder | None:
        """The embedder; None while it is not open."""
        return self._embedder

    @property
    def trouble(self) -> str:
        """Description of its current fault; "" for none."""
        if (outage := self._outage) is not None:
            return outage.text
        return self._slow() if self._slow_told else ""

    @property
    def is_busy(self) -> bool:
        """Whether a call is in flight."""
        return bool(self._calls)

    # ---- opening -----------------------------------------------------------------------------------

    def look(self) -> None:
        """Open it in a thread if due, and log faults at intervals; to be called often."""
        now = time.monotonic()
        with self._lock:
            outage = self._outage
            is_due = outage is None or now >= outage.due
            opens = self._embedder is None and self._open is not None and is_due
            if opens and not self._is_opening and not self._is_closed:
                self._is_opening = True
                name = f"archive-open-{self.name}"
                threading.Thread(target=self._try_to_open, name=name, daemon=True).start()
            if outage is not None and now - outage.told >= _TOLD_EVERY_SECONDS:
                self._outage = outage._replace(told=now)
                _log.warning("%s, for %.0f s now", outage.text, now - outage.since)
            is_slow = any(now - call.began >= _LONG_SECONDS for call in self._calls)
            tells = is_slow and outage is None and now - self._slow_told >= _TOLD_EVERY_SECONDS
            is_over = bool(self._slow_told) and not is_slow and outage is None
            self._slow_told = now if tells else self._slow_told if is_slow else 0.0
        if tells:
            _log.warning("%s", self._slow())
        if is_over:
            _log.warning("%s has answered", self._said)

    def lend(self, seconds: float | None) -> Embedder:
        """Return the embedder if it opens in time; otherwise opening continues, and the caller may try again.

        Only the first call waits, and the first one after ``close_idle``.

        Args:
            seconds: Longest wait; None for as long as it takes.

        Raises:
            Unavailable: It cannot be opened now, or not in time.
            HeadraceError: It cannot be opened with these settings.
        """
        self.look()
        if not self._was_waited_for:
            self.first_tried.wait(seconds)
            self._was_waited_for = True
        embedder, error = self._embedder, self.error
        if embedder is not None:
            return embedder
        if error is not None and not isinstance(error, Refused):
            raise error
        raise Unavailable(self.trouble or f"{self._said} is not open yet")

    def _try_to_open(self) -> None:
        opened: Embedder | None = None
        try:
            opened = self._open() if self._open is not None else None
        except Exception as error:  # noqa: BLE001 - thread boundary: a later attempt may succeed
            self.error = error
            self._failed(error, "cannot be opened")
        with self._lock:
            self._is_opening = False
            if not self._is_closed and opened is not None:
                self._embedder, self.error, opened = opened, None, None
        if opened is not None:
            opened.close()
        elif self._embedder is not None:
            self._worked()
        self.first_tried.set()

    # ---- calling -----------------------------------------------------------------------------------

    def may_be_asked(self, now: float) -> bool:
        """Return whether a call can succeed, as far as known.

        Args:
            now: Current time, on the monotonic clock.
        """
        outage = self._outage
        return self.is_ready and (outage is None or (now >= outage.due and not self._is_probing))

    @property
    def due(self) -> float:
        """Time of the next attempt, on the monotonic clock; 0 for now."""
        outage = self._outage
        return outage.due if outage is not None else 0.0

    def begin(self, embedder: Embedder, where: Where, contents: Sequence[bytes]) -> Call:
        """Start a call in a thread of its own.

        Args:
            embedder: Embedder to call; refused if another has replaced it.
            where: Space version of the contents.
            contents: As for ``Embedder.embed``.

        Raises:
            DependencyUnavailable: The embedder cannot be called now.
        """
        with self._lock:
            is_other = self._embedder is not embedder
            if is_other or self._is_closed or not self.may_be_asked(time.monotonic()):
                raise DependencyUnavailable(self)
            is_probe = self._outage is not None
            self._is_probing = self._is_probing or is_probe
            call = Call(self, where, contents)
            self._calls.add(call)
        name = f"archive-embed-{self.name}"
        threading.Thread(target=self._run, args=(embedder, call, is_probe), name=name, daemon=True).start()
        return call

    def _run(self, embedder: Embedder, call: Call, is_probe: bool) -> None:
        came: Embedded | Exception
        try:
            came = embedder.embed(call.contents)
        except Exception as error:  # noqa: BLE001 - an encoder may be third-party code
            came = error
        if isinstance(came, (Refused, FailedPrecondition)):
            self._failed(came, "is unavailable")
        else:
            self._worked()
        with self._lock:
            self.answers += not isinstance(came, Exception)
            self._calls.discard(call)
            self._is_probing = self._is_probing and not is_probe
            is_outdated = getattr(embedder, "is_outdated", False) and self._open is not None
            if is_outdated and self._embedder is embedder:  # the next look opens its replacement
                self._embedder, self.is_ready = None, False
                self.first_tried.clear()
            is_last = self._embedder is not embedder and not self._calls
        if is_last and self._open is not None:
            embedder.close()
        call.end(came)

    def close_idle(self) -> None:
        """Close an embedder that is not in use; ``look`` and ``lend`` open it again."""
        with self._lock:
            embedder, self._embedder = self._embedder, None
            self._was_waited_for = False
            self.first_tried.clear()
        if embedder is not None:
            embedder.close()

    def close(self) -> None:
        """Close the embedder, once any call in flight has ended."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
            embedder, self._embedder = self._embedder, None
            is_busy = bool(self._calls)
        if is_busy and not was_closed:
            _log.warning("%s is still working on a batch; it is abandoned", self._said)
        elif embedder is not None and self._open is not None:
            embedder.close()

    # ---- reporting ---------------------------------------------------------------------------------

    def _failed(self, error: Exception, what: str) -> None:
        reason = error.message if isinstance(error, HeadraceError) else repr(error)
        text = f"{self._said} {what}: {reason}; its keys wait"
        wanted = error.retry_after_seconds if isinstance(error, Refused) else 0.0
        now = time.monotonic()
        with self._lock:
            before = self._outage
            if before is not None and now < before.due:  # a concurrent call has reported this failure already
                return
            failures = 1 if before is None else before.failures + 1
            pause = max(wanted, _FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 1, 10))
            due = now + min(_LONGEST_PAUSE_SECONDS, pause)
            since, told = (now, now) if before is None else (before.since, before.told)
            self._outage = _Outage(text, since, told, failures, due)
        if before is None:
            _log.warning("%s", text)

    def _worked(self) -> None:
        with self._lock:
            before, self._outage = self._outage, None
        if before is not None:
            _log.warning("%s answers again after %.1f s", self._said, time.monotonic() - before.since)

    def _slow(self) -> str:
        return (
            f"{self._said} has been working on one batch for more than {_LONG_SECONDS:.0f} s; its keys wait"
        )


class Borrowed:
    """The properties of an embedder that may have been closed since; closing this has no effect.

    Attributes:
        dimension: As for ``Embedder``.
        fingerprint: As for ``Embedder``.
    """

    def __init__(self, embedder: Embedder) -> None:
        """Copy the properties of an embedder."""
        self.dimension, self.fingerprint = embedder.dimension, embedder.fingerprint
        self._embedder = embedder

    def embed(self, contents: Sequence[bytes]) -> Embedded:
        """Call ``embed`` of the embedder, which must still be open."""
        return self._embedder.embed(contents)

    def close(self) -> None:
        """Do nothing: the owner of the embedder closes it."""
