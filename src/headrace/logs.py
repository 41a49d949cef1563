"""Structured logs on standard error: an event and its fields, as text for people or JSON for machines."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

# Events are texts in the code, so they are few; a library that builds its texts itself is bounded by this.
_EVENTS_KEPT = 1000

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


def set_up(style: Literal["text", "json"], level: str) -> None:
    """Log what headrace and its libraries say to standard error.

    Args:
        style: For people or for machines.
        level: The least that is logged: debug, info, warning or error.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(Sparing())
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
