"""Logs: an event and its fields, on one line."""

from __future__ import annotations

import ast
import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace
from headrace.base.logs import JsonFormatter, Sparing, TextFormatter


def record(**fields: object) -> logging.LogRecord:
    made = logging.makeLogRecord(
        {
            "name": "headrace.x",
            "levelname": "WARNING",
            "levelno": logging.WARNING,
            "msg": "loaded %s",
            "args": ("a\nb",),
        }
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


def test_the_same_text_is_logged_a_few_times_a_second_and_then_counted() -> None:
    sparing = Sparing(per_second=2)
    first = [record(created=100.0 + index / 10) for index in range(7)]
    assert [sparing.filter(one) for one in first] == [True, True, *[False] * 5]
    assert sparing.filter(record(created=100.9, msg="something else"))
    usual = [record(created=100.5, levelno=logging.INFO) for _ in range(9)]
    assert all(sparing.filter(one) for one in usual)
    later = record(created=101.0)
    assert sparing.filter(later)
    assert "left_out=5" in TextFormatter().format(later)
    assert "left_out" not in TextFormatter().format(record(created=101.1))


@pytest.mark.parametrize("differing", [lambda n: {"args": (f"m{n}",)}, lambda n: {"model": f"m{n}"}])
def test_each_of_many_bad_models_is_logged_though_one_repeats_itself(
    differing: Callable[[int], dict[str, object]],
) -> None:
    sparing = Sparing(per_second=5)
    told = [n for n in range(150) if sparing.filter(record(created=100.5, **differing(n)))]
    assert told == list(range(150))
    for second in range(101, 200):  # one that fails all the time, and another that fails once in a second
        noisy = [record(created=second + 0.1, **differing(0)) for _ in range(50)]
        assert sum(sparing.filter(one) for one in noisy) == 5
        assert sparing.filter(record(created=second + 0.9, **differing(second)))


def test_texts_that_are_never_the_same_are_bounded_in_number_and_in_memory() -> None:
    sparing = Sparing(per_second=5, burst=50)
    told = 0
    for index in range(20_000):  # 1,000 a second
        told += sparing.filter(record(created=100 + index / 1000, path=f"/invented/{index}"))
    assert told == 50 + 19 * 20
    for index in range(5000):
        sparing.filter(record(created=200.0, msg=f"built by a library: {index}", args=()))
    assert len(sparing._events) <= 1000
    assert sum(len(event.texts) for event in sparing._events.values()) <= 1100


def test_no_field_has_a_name_that_a_record_has_already() -> None:
    """Python's logging raises KeyError for those, but only where the line is logged at all."""
    taken = {*record().__dict__, "message", "asctime"}
    wrong = [
        f"{file}:{one.lineno}: {key.value}"
        for file in Path(headrace.__file__).parent.rglob("*.py")
        for one in ast.walk(ast.parse(file.read_bytes()))
        if isinstance(one, ast.keyword) and one.arg == "extra"
        for fields in ast.walk(one.value)
        if isinstance(fields, ast.Dict)
        for key in fields.keys
        if isinstance(key, ast.Constant) and key.value in taken
    ]
    assert wrong == []
