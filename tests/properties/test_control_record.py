"""Laws of the control record: who changes it at the same time loses nothing, and what is unknown is kept."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import ConfigError
from headrace.versions.control_record import (
    Stamp,
    encode_record,
    number_key,
    parse_record,
    with_hold,
    with_pin,
    without_hold,
    without_pin,
)
from headrace.versions.layout import CONTROL_FILE, CONTROL_LOCK
from headrace.versions.pins_and_holds import pin, read_control

WRITER = """
import json, sys
from contextlib import suppress
from pathlib import Path
from headrace.base.errors import NotFound
from headrace.versions.pins_and_holds import hold, let_go, pin, unpin

for line in sys.stdin:
    directory, name, steps = json.loads(line)
    for what, number in steps:
        if what == "hold":
            hold(Path(directory), number, name)
        elif what == "let go":
            with suppress(NotFound):
                let_go(Path(directory), number, name)
        elif what == "pin":
            pin(Path(directory), number, by=name)
        else:
            unpin(Path(directory), by=name)
    print(flush=True)
"""
PROCESSES = 3
VERSIONS = (1, 2, 3)

Steps = list[tuple[str, int]]


@pytest.fixture(scope="module")
def writers() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that do what they are told, one line at a time."""
    command = [sys.executable, "-c", WRITER]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(PROCESSES)
    ]
    yield started
    for process in started:
        process.communicate()
        assert process.returncode == 0


def held_at_the_end(steps: Steps) -> set[int]:
    held = set[int]()
    for what, number in steps:
        held = held | {number} if what == "hold" else held - {number} if what == "let go" else held
    return held


@settings(max_examples=12)
@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from(["hold", "hold", "let go", "pin", "unpin"]), st.sampled_from(VERSIONS)),
            max_size=8,
        ),
        min_size=PROCESSES,
        max_size=PROCESSES,
    )
)
def test_of_processes_that_change_it_together_none_loses_a_change(
    writers: list[subprocess.Popen[str]], each: list[Steps]
) -> None:
    with TemporaryDirectory() as folder:
        model = Path(folder)
        for number in VERSIONS:
            (model / str(number)).mkdir()
        for index, (writer, steps) in enumerate(zip(writers, each, strict=True)):
            assert writer.stdin is not None
            writer.stdin.write(json.dumps([folder, f"writer {index}", steps]) + "\n")
            writer.stdin.flush()
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "\n"
        record = read_control(model)
        for index, steps in enumerate(each):
            held = {entry.number for entry in record.versions.values() if f"writer {index}" in entry.holds}
            assert held == held_at_the_end(steps)
        revisions = [change["revision"] for change in record.history]
        assert revisions == list(range(1, record.revision + 1)), "each change has its own revision"
        decided = sum(what in ("hold", "pin") for steps in each for what, _ in steps)
        assert record.revision >= decided, "only what changes nothing is no change"
        assert {path.name for path in model.iterdir() if path.is_file()} <= {CONTROL_FILE, CONTROL_LOCK}


STAMP = Stamp("2026-11-22T12:00:00+00:00", "ann", "why")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=3,
)
UNKNOWN = st.dictionaries(st.text().map("x-{}".format), VALUES, max_size=2)


@settings(max_examples=30)
@given(st.data(), UNKNOWN, UNKNOWN)
def test_whatever_is_decided_what_is_unknown_stays(
    data: st.DataObject, outside: dict[str, object], inside: dict[str, object]
) -> None:
    entry = {**inside, "number": 1, "holds": {"other": {}}}
    stored = {**outside, "format": 1, "revision": 7, "versions": {number_key(1): entry, "x": entry}}
    record = parse_record(json.dumps(stored).encode(errors="replace"))
    for _ in range(data.draw(st.integers(0, 6))):
        number = data.draw(st.sampled_from(VERSIONS))
        record = data.draw(
            st.sampled_from(
                [
                    with_pin(record, number_key(number), number, STAMP),
                    without_pin(record, STAMP),
                    with_hold(record, number_key(number), number, "ann", STAMP),
                    without_hold(record, number_key(number), "ann", STAMP),
                ]
            )
        )
    again = parse_record(encode_record(record))
    assert again == record
    for name, value in outside.items():
        assert again.document[name] == value
    versions = again.document["versions"]
    assert isinstance(versions, dict)
    assert versions["x"] == entry
    assert {name: versions[number_key(1)][name] for name in inside} == inside


@settings(max_examples=30)
@given(st.binary(max_size=200) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_whatever_lies_there_is_read_or_refused_and_never_lost(content: bytes) -> None:
    with TemporaryDirectory() as folder:
        (Path(folder) / CONTROL_FILE).write_bytes(content)
        (Path(folder) / "1").mkdir()
        try:
            pin(Path(folder), 1)
        except ConfigError:
            assert (Path(folder) / CONTROL_FILE).read_bytes() == content
        else:
            assert json.loads((Path(folder) / CONTROL_FILE).read_bytes())["pin"]["number"] == 1
