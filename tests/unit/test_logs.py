"""Logs: an event and its fields, on one line."""

from __future__ import annotations

import json
import logging

from headrace.logs import JsonFormatter, TextFormatter


def record(**fields: object) -> logging.LogRecord:
    made = logging.makeLogRecord(
        {"name": "headrace.x", "levelname": "WARNING", "msg": "loaded %s", "args": ("a\nb",)}
    )
    made.__dict__.update(fields)
    return made


def test_json_is_one_line_with_every_field_whatever_is_in_it() -> None:
    line = JsonFormatter().format(record(model="m\n", version=3, odd=object))
    said = json.loads(line)
    assert "\n" not in line
    assert said["event"] == "loaded a\nb"
    assert (said["model"], said["version"], said["level"], said["logger"]) == (
        "m\n",
        3,
        "warning",
        "headrace.x",
    )


def test_text_ends_with_the_fields() -> None:
    assert TextFormatter().format(record(model="m", version=3)).endswith("model=m version=3")


def test_an_exception_brings_its_traceback() -> None:
    try:
        raise ValueError("here")
    except ValueError as error:
        made = record(exc_info=(ValueError, error, error.__traceback__))
    assert "ValueError: here" in TextFormatter().format(made)
    assert "ValueError: here" in json.loads(JsonFormatter().format(made))["traceback"]
