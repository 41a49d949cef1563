"""The access log: a line of JSON for each call from the network, or for a sample of them.

Imported only if it is enabled. The serving thread selects the calls and enqueues them; one background thread
writes their lines.
"""

from __future__ import annotations

import logging
import os
import random
import select
import stat
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from headrace.base.background_queue import BackgroundQueue
from headrace.base.clock import unix_offset_nanoseconds
from headrace.base.errors import ConfigError
from headrace.base.status_codes import OK
from headrace.batching.request import Timings
from headrace.config import AccessLog as Settings
from headrace.config.telemetry import STDOUT
from headrace.telemetry.outcomes import Channel, Outcome, Outcomes

_log = logging.getLogger(__name__)

_LONGEST_PATH = 256


class Line(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A line of the access log; fields without a value are omitted.

    Attributes:
        time: Arrival of the call, in UTC.
        request_id: Request id.
        trace_id: Id of the trace.
        span_id: Id of the call's span, or of its caller's if it has no span of its own.
        protocol: ``REST`` or ``gRPC``.
        client: Peer of the connection.
        caller: Name of the caller by key or token, as given by the operator or the provider.
        method: HTTP method.
        path: Path without the query, at most 256 characters of it.
        status: HTTP status of the response; REST only.
        code: Name of the gRPC status code, for both protocols.
        error: Class of the error. Its message is omitted, as it may repeat data of the request.
        model: Model that was requested.
        version: Version of the model.
        answered_by: ``model``, ``cache`` or ``default``.
        rows: Number of rows in the answer.
        batch_rows: Number of rows in the batch.
        batch_requests: Number of requests in the batch.
        seconds: Time from the arrival of the call until its answer was known.
        queue_seconds: Time from the submission to the model until a batch was formed.
        compute_seconds: Time that the model took.
        request_bytes: Size of the request, decompressed.
        response_bytes: Size of the response before compression.
    """

    time: str
    request_id: str = ""
    trace_id: str = ""
    span_id: str = ""
    protocol: str
    client: str = ""
    caller: str = ""
    method: str
    path: str
    status: int = 0
    code: str
    error: str = ""
    model: str = ""
    version: int = 0
    answered_by: str = ""
    rows: int = 0
    batch_rows: int = 0
    batch_requests: int = 0
    seconds: float
    queue_seconds: float | None = None
    compute_seconds: float | None = None
    request_bytes: int = -1
    response_bytes: int = -1


def is_always_told(outcome: Outcome, slow_seconds: float) -> bool:
    """Return whether a call is logged regardless of sampling: it was refused, failed, or took long."""
    return outcome.code is not OK or outcome.status >= 400 or outcome.ended - outcome.arrived >= slow_seconds


def line(outcome: Outcome, unix_offset_seconds: float) -> bytes:
    """Return the line for a call, with its line end.

    Args:
        outcome: Outcome of the call.
        unix_offset_seconds: Offset from the monotonic clock to Unix time.
    """
    came = datetime.fromtimestamp(outcome.arrived + unix_offset_seconds, UTC)
    trace, asked = outcome.trace, outcome.asked
    timings = outcome.timings if outcome.is_computed else None
    return (
        msgspec.json.encode(
            Line(
                time=came.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                request_id=outcome.request_id,
                trace_id="" if trace is None else trace.trace_id,
                span_id="" if trace is None else trace.span_id,
                protocol=outcome.channel.value,
                client=outcome.caller,
                caller=outcome.key_of,
                method=outcome.method[:_LONGEST_PATH],
                path=_cut(outcome.path),
                status=(outcome.status or outcome.code.http) if outcome.channel is Channel.REST else 0,
                code=outcome.code.name,
                error=outcome.error_type,
                model="" if asked is None else asked.model,
                version=0 if asked is None else asked.version,
                answered_by=outcome.answered_by,
                rows=outcome.rows,
                batch_rows=0 if timings is None else timings.rows,
                batch_requests=0 if timings is None else timings.requests,
                seconds=_rounded(outcome.ended - outcome.arrived),
                queue_seconds=None if timings is None else _queued(outcome, timings),
                compute_seconds=None if timings is None else _rounded(timings.finished - timings.started),
                request_bytes=outcome.request_bytes,
                response_bytes=outcome.response_bytes,
            )
        )
        + b"\n"
    )


def _queued(outcome: Outcome, timings: Timings) -> float:
    return _rounded(max(0.0, timings.formed - outcome.handed))


def _rounded(seconds: float) -> float:
    return round(seconds, 6)


def _cut(path: str) -> str:
    """Return the start of a path in valid UTF-8; characters that stand for invalid bytes are replaced."""
    return path[:_LONGEST_PATH].encode("utf-8", "replace").decode()


_MODE = 0o640
_PATIENCE_SECONDS = 0.5
_NEWLINE = ord("\n")


class LineFile:
    """A file, a pipe, or standard output that lines are appended to. Used by one thread.

    Attributes:
        lines: Number of lines written as a whole.
    """

    def __init__(self, path: Path) -> None:
        """Open the file.

        Args:
            path: Path of the file; ``-`` for standard output.

        Raises:
            ConfigError: It cannot be opened.
        """
        self.lines = 0
        self._path = path
        try:
            self._descriptor = self._opened()
        except OSError as error:
            raise ConfigError(f"access_log.path: {path} cannot be opened: {error.strerror}") from error
        self._is_torn = False

    def _opened(self) -> int:
        if self._path == STDOUT:
            return os.dup(sys.stdout.fileno())
        flags = os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_WRONLY
        try:
            if stat.S_ISFIFO(os.stat(self._path).st_mode):
                # Opening a named pipe for writing only would block until somebody reads it.
                flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC
        except FileNotFoundError:
            pass
        return os.open(self._path, flags, _MODE)

    def write(self, lines: bytes) -> None:
        """Append lines; wait briefly for a full named pipe, without limit for a full pipe at standard output.

        Args:
            lines: Lines with their line ends.

        Raises:
            OSError: Not all lines were written. If one was written in part, the next write ends it first.
        """
        torn = int(self._is_torn)
        content = b"\n" * torn + lines
        rest = memoryview(content)
        while rest:
            try:
                count = os.write(self._descriptor, rest)
            except BlockingIOError:
                if not self._has_room():
                    raise
                continue
            done = len(content) - len(rest)
            self.lines += content.count(b"\n", done, done + count) - torn
            torn = 0
            self._is_torn = rest[count - 1] != _NEWLINE
            rest = rest[count:]

    def _has_room(self) -> bool:
        """Wait for a short time until a full pipe has room; return whether it has."""
        poll = select.poll()  # select.select takes no descriptors above 1,023
        poll.register(self._descriptor, select.POLLOUT)
        return bool(poll.poll(_PATIENCE_SECONDS * 1000))

    def follow(self, *, always: bool = False) -> None:
        """Reopen the file if its path now refers to another file, or to none.

        Args:
            always: Whether to reopen it in any case.

        Raises:
            OSError: It cannot be opened; the open file stays in use.
        """
        if self._path == STDOUT or not (always or self._has_moved()):
            return
        before, self._descriptor = self._descriptor, self._opened()
        self._is_torn = False
        os.close(before)

    def _has_moved(self) -> bool:
        ours = os.fstat(self._descriptor)
        try:
            theirs = os.stat(self._path)
        except FileNotFoundError:
            return True
        return (ours.st_dev, ours.st_ino) != (theirs.st_dev, theirs.st_ino)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


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
        self.written = self._lost_lines = 0
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
        outcomes.observe(self._observe, names=True)

    @property
    def dropped(self) -> int:
        """Number of lines not written: too many waited, or they could not be formatted or written."""
        return self._queue.dropped + self._lost_lines

    def reopen(self) -> None:
        """Reopen the file soon: it may have been moved away."""
        self._reopen = True
        self._queue.hurry()

    def close(self, seconds: float) -> bool:
        """Write the queued lines, and end the thread.

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

    def _observe(self, outcome: Outcome) -> None:
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
            self._lost_lines += len(outcomes) - (self._file.lines - before)
            self._report_writing(works=False, why=_why(error))
        else:
            if lines:
                self._report_writing(works=True)
        self.written += self._file.lines - before

    def _follow(self) -> None:
        now, always = time.monotonic(), self._reopen
        if always or now - self._looked >= _LOOKED_AFTER_SECONDS:
            self._looked, self._reopen = now, False
            try:
                self._file.follow(always=always)
            except OSError as error:
                self._report_reopening(follows=False, why=_why(error))
            else:
                self._report_reopening(follows=True)

    def _report_reopening(self, *, follows: bool, why: str = "") -> None:
        if follows is self._follows:
            return
        self._follows = follows
        if follows:
            _log.info("the access log can be reopened again")
        else:
            _log.warning(
                "cannot reopen the access log; lines go to the file that is open", extra={"why": why}
            )

    def _report_writing(self, *, works: bool, why: str = "") -> None:
        if works is self._works:
            return
        self._works = works
        if works:
            _log.info("the access log can be written again", extra={"lost": self._lost_lines})
        else:
            _log.warning(
                "cannot write the access log; lines are being dropped and counted", extra={"why": why}
            )


def _why(error: OSError) -> str:
    return error.strerror or type(error).__name__
