"""``headrace archive load`` as people run it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli.main import main


@pytest.fixture
def toml(tmp_path: Path) -> str:
    (tmp_path / "archive.toml").write_text("[spaces.items]\ndimension = 2\n[tables.users]\n")
    return str(tmp_path / "archive.toml")


def test_a_load_says_what_it_made_of_a_file(
    toml: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "users.csv"
    file.write_text("user_id,age,country\na,30,CH\nb,,AT\n")
    assert main(["archive", "load", "users", str(file), "--archive", toml]) == 0
    assert capsys.readouterr().out == (
        "users: 2 rows are in version 1, which answers now\n"
        "  it is new, with the columns age int64, country text\n"
        "  keys: user_id\n"
        "  age: 1 values are not there, and stored as its default\n"
    )
    file.write_text("user_id,age,country,visits\na,31,CH,7\n")
    assert main(["archive", "load", "users", str(file), "--keep-default", "--json", "--archive", toml]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["version"], said["is_new"], said["is_default"], said["rows"]) == (2, True, False, 1)
    assert main(["archive", "load", "users", str(file), "--archive", toml]) == 0
    assert capsys.readouterr().out == "users: 1 rows are in version 2, which answers now\n  keys: user_id\n"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["users", "FILE", "--vectors", "age"], "--vectors: expected none, as 'users' is a feature table"),
        (["users", "FILE", "--version", "2"], "--version: expected none"),
        (["users", "FILE", "--delimiter", "||"], "--delimiter: expected one character"),
        (["nobody", "FILE"], "no space 'nobody'; there are items, users"),
        (["items", "FILE"], "--vectors: expected one column of lists of numbers; there is none"),
        (["users", "none.csv"], "there is no such file"),
    ],
)
def test_what_cannot_be_loaded_is_code_2(
    toml: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], problem: str
) -> None:
    (tmp_path / "users.csv").write_text("user_id,age\na,30\n")
    given = [str(tmp_path / "users.csv") if word == "FILE" else word for word in words]
    assert main(["archive", "load", *given, "--archive", toml]) == 2
    assert problem in capsys.readouterr().err
