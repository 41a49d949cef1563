"""Structured logs on standard error: an event and its fields, as text for people or as JSON."""

from __future__ import annotations

import json
import logging
import math
import os
import select
import socket
import stat
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal, Protocol

# Events are literals in the code, so there are few. This bounds the events of libraries that format texts.
_EVENTS_KEPT = 1000

_STANDARD_ERROR = 2
_WAIT_SECONDS, _NO_WAIT_SECONDS = 0.2, 10.0
"""Longest wait for a line's reader in seconds, and the time without waiting after a line was lost."""


class InCall(Protocol):
    """The log fields of a call, added to lines that are written during the call."""

    @property
    def log_fields(self) -> Mapping[str, str]:
        """Additional fields; empty when the call has ended."""


CALL: ContextVar[InCall | None] = ContextVar("call", default=None)
"""The recorded call that the current task works for; None if there is none, or there are several."""

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields passed as ``extra``."""
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD}


def _stamp(record: logging.LogRecord) -> str:
    return (
        datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


class TextFormatter(logging.Formatter):
    """Lines such as ``2026-01-31T12:00:00.000Z info    loaded  model=ctr version=3``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, followed by a traceback if there is one."""
        fields = " ".join(f"{name}={value}" for name, value in _fields(record).items())
        line = f"{_stamp(record)} {record.levelname.lower():<7} {record.getMessage()}"
        if fields:
            line = f"{line}  {fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, event, and the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, whatever values it contains."""
        said = {
            "time": _stamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps(said, default=str)


class _Event:
    """Recent records of one event.

    Attributes:
        second: Second of the last record, in Unix time.
        may: Number of records that may still be logged.
        texts: Number of logged records of each text in that second.
        left_out: Number of records left out since the last logged one.
    """

    __slots__ = ("left_out", "may", "second", "texts")

    def __init__(self, second: int, burst: int) -> None:
        self.second = second
        self.may = burst
        self.texts: dict[str, int] = {}
        self.left_out = 0


class Sparing(logging.Filter):
    """A filter that limits the rate of equal records: a model that always fails must not fill the disk.

    Records count as the same text if their arguments and fields are equal, so warnings about one model do not
    hide those about another. All texts of an event together are limited, too, but so high that a start with
    many bad models stays below. The first record logged after others were left out has their number in the
    field ``left_out``.
    """

    def __init__(self, per_second: int = 5, burst: int = 200) -> None:
        """Create the filter.

        Args:
            per_second: Maximum number of records with the same text in one second.
            burst: Maximum number of records of one event at once, whatever their texts; each second refills
                four times ``per_second``.
        """
        super().__init__()
        self._per_second = per_second
        self._burst = burst
        self._events: dict[tuple[str, str], _Event] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record; records below WARNING always are."""
        if record.levelno < logging.WARNING:
            return True
        event = self._event((record.name, str(record.msg)), int(record.created))
        text = f"{record.args!r} {_fields(record)!r}"
        count = event.texts.get(text, 0)
        if count >= self._per_second or event.may <= 0:
            event.left_out += 1
            return False
        event.texts[text] = count + 1
        event.may -= 1
        if event.left_out:
            record.left_out = event.left_out
            event.left_out = 0
        return True

    def _event(self, name: tuple[str, str], second: int) -> _Event:
        event = self._events.get(name)
        if event is None:
            if len(self._events) >= _EVENTS_KEPT:
                del self._events[next(iter(self._events))]
            event = self._events[name] = _Event(second, self._burst)
        elif event.second != second:
            event.may = min(self._burst, event.may + 4 * self._per_second * abs(second - event.second))
            event.second = second
            event.texts.clear()
        return event


def _add_call_fields(record: logging.LogRecord) -> bool:
    """Add the current call's fields to a record. Runs after Sparing, which compares fields."""
    call = CALL.get()
    if call is not None:
        for name, value in call.log_fields.items():
            record.__dict__.setdefault(name, value)
    return True


class Unblocked(logging.Handler):
    """Writes lines to a descriptor without blocking on a reader that hangs.

    Otherwise the server would block when the collector at the other end of its pipe hangs. A line that cannot
    be written within a short timeout is lost. The next written line has the number of lost lines in the field
    ``lines_lost``.
    """

    def __init__(self, descriptor: int) -> None:
        """Create the handler.

        Args:
            descriptor: Target of the lines; owned by the caller, and possibly shared with other processes.
        """
        super().__init__()
        self._descriptor = _reopen_nonblocking(descriptor)
        self._socket: socket.socket | None = None
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            self._socket = socket.socket(fileno=os.dup(descriptor))
        self._lost = 0
        self._is_torn = False
        self._may_wait_at = -math.inf

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or drop it."""
        if self._lost:
            record.lines_lost = self._lost
        try:
            line = self.format(record).encode("utf-8", "backslashreplace") + b"\n"
        except Exception:  # noqa: BLE001 - the boundary to logging code: the error is logged instead
            line = f"a line of {record.name} cannot be formatted: {record.msg!r}\n".encode(errors="replace")
        self._lost = 0 if self._write(b"\n" + line if self._is_torn else line) else self._lost + 1

    def _write(self, line: bytes) -> bool:
        rest = memoryview(line)
        while rest:
            if not self._has_room():
                return False
            try:
                written = self._write_some(rest[: select.PIPE_BUF])
            except OSError:  # another writer filled the pipe, the disk is full, or the reader has gone
                return False
            self._is_torn = rest[written - 1] != ord("\n")
            rest = rest[written:]
        return True

    def _has_room(self) -> bool:
        seconds = _WAIT_SECONDS if time.monotonic() >= self._may_wait_at else 0.0
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        if poll.poll(seconds * 1000):
            return True
        self._may_wait_at = time.monotonic() + _NO_WAIT_SECONDS
        return False

    def _write_some(self, line: memoryview) -> int:
        if self._socket is not None:
            return self._socket.send(line, socket.MSG_DONTWAIT)
        return os.write(self._descriptor, line)


def _reopen_nonblocking(descriptor: int) -> int:
    """Reopen a pipe or terminal as non-blocking: the original's flag is shared with other processes."""
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(kind) or stat.S_ISCHR(kind):
        with suppress(OSError):  # owned by another user, or not Linux: `_has_room` polls before each write
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            return os.open(f"/proc/self/fd/{descriptor}", flags)
    return descriptor


def set_up(style: Literal["text", "json"], level: str, *, serves: bool = False, **fields: object) -> None:
    """Log the events of headrace and its libraries to standard error.

    Args:
        style: ``text`` for people, or ``json``.
        level: The lowest level that is logged: debug, info, warning or error.
        serves: Whether this process serves requests; then it drops lines rather than block.
        **fields: Fields added to each record, such as the name of the process.
    """
    handler: logging.Handler = Unblocked(_STANDARD_ERROR) if serves else logging.StreamHandler(sys.stderr)
    if fields:
        handler.addFilter(lambda record: record.__dict__.update(fields) is None)
    handler.addFilter(Sparing())
    handler.addFilter(_add_call_fields)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
