"""``headrace archive invalidate`` and ``forget`` as people run them: what is removed, what is said."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from headrace.archive.lookup.dead_letter_records import DeadLetter
from headrace.archive.operations.open_archive import open_archive_file
from headrace.cli.main import main

SETTINGS = """
[spaces.items]
dimension = 2
[spaces.titles]
embedder = "minilm"
[tables.users]
history_seconds = 1000
"""


class Command:
    """``headrace archive`` with one archive, in which items has the keys a and b, and users u1."""

    def __init__(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.toml, self._capsys = place / "archive.toml", capsys
        self.toml.write_text(SETTINGS)
        np.save(place / "vectors.npy", np.ones((2, 2), np.float32))
        (place / "keys.txt").write_text("a\nb\n")
        (place / "users.csv").write_text("user_id,age\nu1,30\n")
        self("put", "items", str(place / "vectors.npy"), "--keys", str(place / "keys.txt"))
        self("load", "users", str(place / "users.csv"))

    def __call__(self, *words: str, code: int = 0) -> str:
        assert main(["archive", *words, "--archive", str(self.toml)]) == code
        said = self._capsys.readouterr()
        return said.err if code else said.out


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path, capsys)


@pytest.mark.parametrize(
    ("space", "problem"),
    [
        ("users", "got 'users': nothing recreates rows of a feature table. headrace archive load replaces"),
        ("items", "nothing recreates vectors of a space without an embedder. headrace archive put replaces"),
    ],
)
def test_keys_without_an_embedder_are_invalidated_only_with_remove(
    command: Command, space: str, problem: str
) -> None:
    key = {"users": "u1", "items": "a"}[space]
    assert problem in command("invalidate", space, key, code=2)
    assert json.loads(command("lookup", space, key, "--json"))["keys"][0]["found"]
    assert command("invalidate", space, key, "--remove") == f"invalidated 1 key in {space}\n"
    assert not json.loads(command("lookup", space, key, "--json"))["keys"][0]["found"]


@pytest.mark.parametrize(
    ("words", "done"), [(["invalidate", "--remove"], "invalidated"), (["forget"], "forgot")]
)
def test_keys_that_were_not_there_are_told_from_those_that_were(
    command: Command, words: list[str], done: str
) -> None:
    verb, *options = words
    said = command(verb, "items", "a", "nobody", "a", *options)
    assert said == f"{done} 2 keys in items, 1 of which had nothing stored\n"
    said = command(verb, "items", "a", "b", *options, "--json")
    assert json.loads(said) == {"space": "items", "keys": 2, "found": 1}


def test_a_key_that_could_not_be_embedded_is_there(command: Command) -> None:
    with open_archive_file(command.toml) as archive:
        archive.dead_letters.add(
            [DeadLetter(space="titles", version=1, key="x", reason="none", attempts=1, died=1.0)]
        )
    assert command("invalidate", "titles", "x") == "invalidated 1 key in titles\n"
    assert command("invalidate", "titles", "x") == "invalidated 1 key in titles, which had nothing stored\n"
