"""Structured logs on standard error: an event and its fields, as text for people or JSON for machines."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

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


class Sparing(logging.Filter):
    """Lets an event through a few times a second: a model that always fails must not fill a disk.

    The first record after a pause says how many were left out, in the field ``left_out``.
    """

    def __init__(self, per_second: int = 5) -> None:
        """Start a new count.

        Args:
            per_second: How often the same event is let through in one second.
        """
        super().__init__()
        self._per_second = per_second
        self._counts: dict[tuple[str, str], tuple[int, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to let a record through; what versions and models do in good order always is."""
        if record.levelno < logging.WARNING:
            return True
        event, second = (record.name, str(record.msg)), int(record.created)
        began, count = self._counts.get(event, (second, 0))
        if second != began:
            left_out = count - self._per_second
            if left_out > 0:
                record.left_out = left_out
            count = 0
        self._counts[event] = (second, count + 1)
        return count < self._per_second


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
