"""Structured logs on standard error: an event and its fields, as text for people or JSON for machines."""

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

# Events are texts in the code, so they are few; a library that builds its texts itself is bounded by this.
_EVENTS_KEPT = 1000

_STANDARD_ERROR = 2
_WAIT_SECONDS, _NO_WAIT_SECONDS = 0.2, 10.0
"""How long a line waits for its reader; and how long none waits after one has been lost."""


class InCall(Protocol):
    """What log lines that are written inside of a call say of it."""

    @property
    def log_fields(self) -> Mapping[str, str]:
        """Fields beside those that a line has itself; nothing when the call is over."""


CALL: ContextVar[InCall | None] = ContextVar("call", default=None)
"""The call that the current task works for, where calls have names."""

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """What was given as ``extra``."""
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD}


def _stamp(record: logging.LogRecord) -> str:
    return (
        datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


class TextFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.000Z info  loaded  model=ctr version=3``."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; a traceback below it if there is one."""
        fields = " ".join(f"{name}={value}" for name, value in _fields(record).items())
        line = f"{_stamp(record)} {record.levelname.lower():<7} {record.getMessage()}"
        if fields:
            line = f"{line}  {fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, event, and the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever is in it."""
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
    """What has become of one event's records lately.

    Attributes:
        second: When the last one came.
        may: How many records may still be told.
        texts: How often each text came in that second.
        left_out: How many records were left out since the last that was told.
    """

    __slots__ = ("left_out", "may", "second", "texts")

    def __init__(self, second: int, burst: int) -> None:
        self.second = second
        self.may = burst
        self.texts: dict[str, int] = {}
        self.left_out = 0


class Sparing(logging.Filter):
    """Lets a text through a few times a second: a model that always fails must not fill a disk.

    What counts is what is said, with its fields, so the complaint about one model never hides that about
    another. An event whose text is another one each time has a limit too, above what a start with many bad
    models needs. The first record of an event that is told again says how many were not, in the field
    ``left_out``.
    """

    def __init__(self, per_second: int = 5, burst: int = 200) -> None:
        """Start a new count.

        Args:
            per_second: How often the same text is let through in one second.
            burst: How many different texts of one event are let through at once; four times ``per_second``
                more in each second.
        """
        super().__init__()
        self._per_second = per_second
        self._burst = burst
        self._events: dict[tuple[str, str], _Event] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to let a record through; what versions and models do in good order always is."""
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


def _name_call(record: logging.LogRecord) -> bool:
    """Let a line that is written inside of a call say which one; after Sparing, which compares fields."""
    call = CALL.get()
    if call is not None:
        for name, value in call.log_fields.items():
            record.__dict__.setdefault(name, value)
    return True


class Unblocked(logging.Handler):
    """Writes lines to a descriptor, and waits for nobody who does not read them.

    A log that is collected through a pipe would otherwise stop a server as soon as its collector hangs. A
    line that does not go out within a moment is lost; the next one that does says how many were, in the
    field ``lines_lost``.
    """

    def __init__(self, descriptor: int) -> None:
        """Get ready.

        Args:
            descriptor: Where to; it stays the caller's, and other processes may write there, too.
        """
        super().__init__()
        self._descriptor = _never_waiting(descriptor)
        self._socket: socket.socket | None = None
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            self._socket = socket.socket(fileno=os.dup(descriptor))
        self._lost = 0
        self._is_torn = False
        self._may_wait_at = -math.inf

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or lose it."""
        if self._lost:
            record.lines_lost = self._lost
        try:
            line = self.format(record).encode("utf-8", "backslashreplace") + b"\n"
        except Exception:  # noqa: BLE001 - the boundary to whoever logs: what cannot be told is told so
            line = f"a line of {record.name} cannot be formatted: {record.msg!r}\n".encode(errors="replace")
        self._lost = 0 if self._write(b"\n" + line if self._is_torn else line) else self._lost + 1

    def _write(self, line: bytes) -> bool:
        rest = memoryview(line)
        while rest:
            if not self._has_room():
                return False
            try:
                written = self._write_some(rest[: select.PIPE_BUF])
            except OSError:  # others have filled it, the disk is full, or nobody is there any more
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


def _never_waiting(descriptor: int) -> int:
    """The same pipe or terminal, opened anew: whether a descriptor waits is shared with who has it, too."""
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(kind) or stat.S_ISCHR(kind):
        with suppress(OSError):  # another user's, or not Linux: it is looked at before it is written to
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            return os.open(f"/proc/self/fd/{descriptor}", flags)
    return descriptor


def set_up(style: Literal["text", "json"], level: str, *, serves: bool = False, **fields: object) -> None:
    """Log what headrace and its libraries say to standard error.

    Args:
        style: For people or for machines.
        level: The least that is logged: debug, info, warning or error.
        serves: Whether this process has others wait for it: then it loses lines that nobody reads.
        **fields: What each record says beside its own: which process it is of.
    """
    handler: logging.Handler = Unblocked(_STANDARD_ERROR) if serves else logging.StreamHandler(sys.stderr)
    if fields:
        handler.addFilter(lambda record: record.__dict__.update(fields) is None)
    handler.addFilter(Sparing())
    handler.addFilter(_name_call)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
