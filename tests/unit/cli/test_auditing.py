"""Which verbs tell an audit log what they do, and that they do; those of models: tests/end_to_end."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import msgspec
import pytest

from headrace.archive.filling.filler import Filler
from headrace.archive.lookup.dead_letter_records import DeadLetter
from headrace.archive.model.catalog import partition, with_version
from headrace.archive.operations.open_archive import open_archive_file
from headrace.cli import common
from headrace.cli.main import build_parser, main
from tests.model_directories import affine

READS_ONLY = {
    "archive check", "archive dead-letters list", "archive duplicates", "archive join", "archive lookup",
    "archive neighbours", "archive plot", "archive status", "archive versions", "compare", "key list",
    "profile", "status", "stream inspect", "top", "versions",
}  # fmt: skip
WRITES_VALUES = {"archive feed", "archive fill", "archive put"}
"""docs/security.md says that these are not told."""
WRITES_FILES = {"compile", "example", "export", "stream encode", "stream generate", "stream publish"}
"""Which nothing serves yet; ``stream publish``: rows to a topic."""


def tells(verb: argparse.ArgumentParser) -> bool:
    return any("--audit-file" in action.option_strings for action in verb._actions)


def test_every_verb_that_changes_something_can_write_an_audit_log() -> None:
    told, silent = set(), set()
    for verb in common.all_verbs(build_parser()):
        (told if tells(verb) else silent).add(verb.prog.partition(" ")[2])
    assert silent == READS_ONLY | WRITES_VALUES | WRITES_FILES
    assert {"archive default", "archive load", "train"} <= told


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """One with a space of two versions, a table and two dead letters."""
    file = tmp_path / "archive.toml"
    file.write_text('[spaces.items]\ndimension = 3\n[tables.users]\n[spaces.titles]\nembedder = "minilm"\n')
    letters = [
        DeadLetter(space="items", version=1, key=key, reason="none", attempts=1, died=1.8e9, is_final=True)
        for key in ("a", "b")
    ]
    with open_archive_file(file) as opened:
        (first,) = opened.record("items").versions
        opened.store.create(partition("items", 2))
        second = msgspec.structs.replace(first, fingerprint="newer")
        opened.catalog.change("items", lambda record: with_version(record, second))
        opened.dead_letters.add(letters)
    return file


def told(log: Path) -> list[tuple[str, str, str]]:
    """What has ended; each was asked for before."""
    lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    assert [line["stage"] for line in lines] == ["asked", "ended"] * (len(lines) // 2)
    assert {line["by"]["uid"] for line in lines} == {os.getuid()}
    return [(line["action"], line["on"], line["result"]) for line in lines[1::2]]


def test_changes_of_an_archives_answers_are_audited(archive: Path, log: Path, tmp_path: Path) -> None:
    def run(*words: str) -> int:
        return main(["archive", *words, "--archive", str(archive), "--audit-file", str(log)])

    rows = tmp_path / "users.csv"
    rows.write_text("user_id,age\na,30\n")
    assert run("default", "items") == 0
    assert not log.exists(), "it was only shown"
    assert run("default", "items", "2") == 0
    assert run("default", "items", "3") != 0
    assert run("backfill", "items", "--no-fill", "--from-version", "2", "--to-version", "1") == 0
    assert run("load", "users", str(rows)) == 0
    assert run("dead-letters", "replay", "items", "a") == 0
    assert run("dead-letters", "drop") == 0
    found = told(log)
    assert found[1][2].startswith("failed: ")
    assert [one[:2] for one in found] == [
        ("default", "items version 2"),
        ("default", "items version 3"),
        ("backfill", "items version 1 from version 2"),
        ("load-file", f"users from {rows}"),
        ("replay-dead-letters", "items, keys: 1"),
        ("drop-dead-letters", "all spaces"),
    ]
    assert {one[2] for number, one in enumerate(found) if number != 1} == {"done"}


def test_a_new_key_that_signs_is_told(log: Path, tmp_path: Path) -> None:
    words = ["signing-key", str(tmp_path / "key.pem"), "--audit-file", str(log)]
    assert main(words) == 0
    assert main(words) == 1, "it is there"
    first, second = told(log)
    assert first == ("signing-key-new", str(tmp_path / "key.pem"), "done")
    assert second[2].startswith("failed: FailedPrecondition: ")


def test_a_trainer_that_publishes_is_told_with_how_it_ends(log: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("label,x\n1,7\n0,8\n")
    stream = tmp_path / "rows.arrows"
    encode = ["stream", "encode", "--format", "csv", str(tmp_path / "rows.csv"), "--out", str(stream)]
    assert main(encode) == 0
    publish = ["--model", "lr", "--publish", str(tmp_path / "ctr"), "--audit-file", str(log)]
    assert main(["train", str(stream), *publish]) == 0
    stream.write_bytes(stream.read_bytes()[:-30])
    assert main(["train", str(stream), *publish]) == 1
    model = str(tmp_path / "ctr")
    assert told(log) == [("train", model, "done"), ("train", model, "failed: exit code 1")]


IN_PLACE = "PLACE"
DECIDES = {
    "train": ["PLACE/rows.arrows", "--model", "lr", "--publish", "PLACE/models/ctr"],
    "publish": ["PLACE/models/m", "PLACE/made/model.onnx"],
    "rollback": ["PLACE/models/m"],
    "hold": ["PLACE/models/m/1"],
    "sign": ["PLACE/models/m/1", "--key", "PLACE/key.pem"],
    "signing-key": ["PLACE/new.pem"],
    "archive load": ["users", "PLACE/users.csv"],
    "archive invalidate": ["titles", "a"],
    "archive forget": ["items", "a"],
    "archive default": ["items", "2"],
    "archive backfill": ["items", "--from-version", "1", "--to-version", "2"],
    "archive drop": ["items", "2", "--models", "PLACE/models"],
    "archive dead-letters replay": ["items", "a"],
    "archive dead-letters drop": [],
    "key new": ["ann", "--file", "PLACE/keys.toml", "--verbs", "predict"],
    "key revoke": ["bob", "--file", "PLACE/keys.toml"],
}
"""Each verb that tells, with words that it would do something for; servers refuse to start."""


def test_the_list_of_audited_verbs_is_complete() -> None:
    telling = {verb.prog.partition(" ")[2] for verb in common.all_verbs(build_parser()) if tells(verb)}
    assert telling == {*DECIDES, "serve", "archive serve"}


@pytest.fixture
def place(archive: Path, tmp_path: Path) -> Path:
    """An archive, a model of two versions, keys, rows."""
    (tmp_path / "made").mkdir()
    (tmp_path / "made/model.onnx").write_bytes(affine(1.0, 1.0))
    for _ in range(2):
        assert main(["publish", str(tmp_path / "models/m"), str(tmp_path / "made/model.onnx")]) == 0
    assert main(["signing-key", str(tmp_path / "key.pem")]) == 0
    assert main(["key", "new", "bob", "--file", str(tmp_path / "keys.toml"), "--verbs", "predict"]) == 0
    (tmp_path / "users.csv").write_text("user_id,age\na,30\n")
    (tmp_path / "rows.csv").write_text("label,x\n1,7\n0,8\n")
    encode = ["stream", "encode", "--format", "csv", str(tmp_path / "rows.csv")]
    assert main([*encode, "--out", str(tmp_path / "rows.arrows")]) == 0
    return tmp_path


def state(place: Path) -> object:
    """All that verbs could change."""
    files = {file: file.read_bytes() for file in place.rglob("*") if file.is_file()}
    with open_archive_file(place / "archive.toml") as opened:
        records = [opened.record("items"), opened.record("users")]
        letters = sorted(letter.key for letter in opened.dead_letters.all())
    return (
        {file: held for file, held in files.items() if file.suffix not in {".mdb", ".lock"}},
        records,
        letters,
    )


@pytest.mark.parametrize("verb", DECIDES)
def test_an_action_that_cannot_be_logged_is_refused(
    verb: str, place: Path, log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*verb.split(), *(word.replace(IN_PLACE, str(place)) for word in DECIDES[verb])]
    if verb.startswith("archive"):
        words += ["--archive", str(place / "archive.toml")]
    fills: list[object] = []
    monkeypatch.setattr(Filler, "start", fills.append)
    log.mkdir()
    before = state(place)
    capsys.readouterr()
    assert main([*words, "--audit-file", str(log)]) != 0
    assert "cannot be written" in capsys.readouterr().err
    assert state(place) == before
    assert not fills
    log.rmdir()
    if verb != "archive backfill":
        assert main([*words, "--audit-file", str(log)]) == 0, "it would have done something"
        assert told(log)
        assert state(place) != before or verb in {"archive invalidate", "archive forget"}


def test_an_audit_file_without_publish_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "-", "--audit-file", "audit.jsonl"]) == common.WRONG
    assert "--audit-file would have no effect; add --publish DIR/NAME" in capsys.readouterr().err
