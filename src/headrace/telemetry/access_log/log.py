"""Select the calls to log in the serving thread, and write their lines in another one."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable

from headrace.base.background_queue import BackgroundQueue
from headrace.base.clock import unix_offset_nanoseconds
from headrace.base.errors import ConfigError
from headrace.config import AccessLog as Settings
from headrace.telemetry.access_log.lines import is_always_told, line
from headrace.telemetry.access_log.log_file import LineFile
from headrace.telemetry.outcomes import Channel, Outcome, Outcomes

_log = logging.getLogger(__name__)

_MOST_WAITING, _AT_ONCE = 16_384, 256
_EVERY_SECONDS = 0.2
_LOOKED_AFTER_SECONDS = 1.0


class AccessLog:
    """Writes a line for each selected call from the network.

    Attributes:
        written: Number of lines written.
    """

    def __init__(
        self,
        settings: Settings,
        outcomes: Outcomes,
        *,
        draw: Callable[[], float] = random.random,
        most_waiting: int = _MOST_WAITING,
    ) -> None:
        """Open the log, and log calls that begin from now on.

        Args:
            settings: Path of the log, and which calls to log.
            outcomes: Records of how calls end.
            draw: Returns a random number in [0, 1).
            most_waiting: Largest number of lines waiting to be written.

        Raises:
            ConfigError: The log cannot be opened.
        """
        if settings.path is None:
            raise ConfigError("access_log.path: expected a file, or - for standard output, got nothing")
        self.written = self._lost = 0
        self._sample, self._slow_seconds, self._draw = settings.sample, settings.slow_seconds, draw
        self._file = LineFile(settings.path)
        self._works = self._follows = True
        self._reopen, self._looked = False, time.monotonic()
        self._queue = BackgroundQueue(
            "headrace-access-log",
            self._write,
            most=most_waiting,
            at_once=_AT_ONCE,
            every_seconds=_EVERY_SECONDS,
        )
        outcomes.observe(self._hear, names=True)

    @property
    def dropped(self) -> int:
        """Number of lines not written: too many waited, or they could not be formatted or written."""
        return self._queue.dropped + self._lost

    def reopen(self) -> None:
        """Reopen the file soon: it may have been moved away."""
        self._reopen = True
        self._queue.hurry()

    def close(self, seconds: float) -> bool:
        """Write the waiting lines, and end.

        Args:
            seconds: Longest wait in seconds.

        Returns:
            Whether all lines were written, or at least attempted.
        """
        if not self._queue.close(seconds):
            _log.warning("the access log was not written completely", extra={"seconds": seconds})
            return False  # the thread may still write; the file is closed with the process
        self._file.close()
        return True

    def _hear(self, outcome: Outcome) -> None:
        if outcome.channel is Channel.IN_PROCESS:
            return
        if self._sample >= 1 or is_always_told(outcome, self._slow_seconds) or self._draw() < self._sample:
            self._queue.put(outcome)

    def _write(self, outcomes: list[Outcome]) -> None:
        offset = unix_offset_nanoseconds() / 1e9
        lines = b"".join([line(outcome, offset) for outcome in outcomes])
        self._follow()
        before = self._file.lines
        try:
            self._file.write(lines)
        except OSError as error:
            self._lost += len(outcomes) - (self._file.lines - before)
            self._say(works=False, why=_why(error))
        else:
            if lines:
                self._say(works=True)
        self.written += self._file.lines - before

    def _follow(self) -> None:
        now, always = time.monotonic(), self._reopen
        if always or now - self._looked >= _LOOKED_AFTER_SECONDS:
            self._looked, self._reopen = now, False
            try:
                self._file.follow(always=always)
            except OSError as error:
                self._say_follows(follows=False, why=_why(error))
            else:
                self._say_follows(follows=True)

    def _say_follows(self, *, follows: bool, why: str = "") -> None:
        if follows is self._follows:
            return
        self._follows = follows
        if follows:
            _log.info("the access log can be reopened again")
        else:
            _log.warning(
                "cannot reopen the access log; lines go to the file that is open", extra={"why": why}
            )

    def _say(self, *, works: bool, why: str = "") -> None:
        if works is self._works:
            return
        self._works = works
        if works:
            _log.info("the access log can be written again", extra={"lost": self._lost})
        else:
            _log.warning(
                "cannot write the access log; lines are being dropped and counted", extra={"why": why}
            )


def _why(error: OSError) -> str:
    return error.strerror or type(error).__name__
