"""``headrace archive dead-letters`` with letters that there are: listed, queued again, dropped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.archive.lookup.dead_letter_records import PARTITION, DeadLetter
from headrace.archive.lookup.miss_queue import wanted_of
from headrace.archive.operations.open_archive import open_archive_file
from headrace.cli.main import main
from headrace.storage.stores.store import Item

SETTINGS = "[spaces.films]\ndimension = 2\n[spaces.posters]\ndimension = 2\n"


def letter(space: str, key: str) -> DeadLetter:
    return DeadLetter(
        space=space, version=1, key=key, reason=f"no {key}", attempts=1, died=1.8e9, is_final=True
    )


LETTERS = [letter("films", "Heat"), letter("films", "Alien"), letter("posters", "x" * 3000)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """An archive with three letters, and a value that is none."""
    (tmp_path / "archive.toml").write_text(SETTINGS)
    with open_archive_file(tmp_path / "archive.toml") as archive:
        archive.dead_letters.add(LETTERS)
        archive.store.put_many(PARTITION, [Item(b"damaged", b"{")])
    return tmp_path / "archive.toml"


def ran(file: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["archive", "dead-letters", *words, "--archive", str(file)]) == 0
    return capsys.readouterr().out


def left(file: Path) -> set[str]:
    with open_archive_file(file) as archive:
        return {one.key[:5] for one in archive.dead_letters.all()}


def queued(file: Path) -> set[tuple[str, int, str]]:
    """What waits; it is given back."""
    with open_archive_file(file) as archive:
        receiver = archive.queue.receiver()
        found = {tuple(wanted_of(one.message)) for one in receiver.receive(10, 0.0)}
        receiver.close()
        return found


def test_letters_are_listed_with_their_reasons(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(ran(file, capsys, "list", "--json"))
    assert {one["key"][:5] for one in told["dead_letters"]} == {"Heat", "Alien", "xxxxx"}
    assert all(one["is_final"] for one in told["dead_letters"])
    assert told["damaged"] == 1
    assert main(["archive", "dead-letters", "list", "films", "Heat", "--archive", str(file)]) == 0
    shown = capsys.readouterr()
    head, line = shown.out.splitlines()
    assert head.split() == ["space", "version", "key", "reason", "attempts", "died"]
    assert line.split() == ["films", "1", "Heat", "no", "Heat", "1", "2027-01-15T08:00:00Z"]
    assert "1 dead letter cannot be read; forget or invalidate the key to remove one" in shown.err


def test_replayed_letters_are_queued_and_gone(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ran(file, capsys, "replay", "films", "Heat") == "queued again: 1 key\n"
    assert left(file) == {"Alien", "xxxxx"}
    assert queued(file) == {("films", 1, "Heat", 0)}
    assert json.loads(ran(file, capsys, "replay", "--json")) == {"keys": 2}
    assert not left(file)
    assert queued(file) == {
        ("films", 1, "Heat", 0),
        ("films", 1, "Alien", 0),
        ("posters", 1, "x" * 3000, 0),
    }


def test_dropped_letters_are_gone_and_not_queued(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ran(file, capsys, "drop", "films") == "dropped: 2 keys\n"
    assert left(file) == {"xxxxx"}
    assert not queued(file)
    assert main(["archive", "dead-letters", "drop", "nobody", "--archive", str(file)]) == 2
