"""``headrace archive load`` as people run it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
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
        "  age: missing in 1 row, and stored as its default\n"
    )
    file.write_text("user_id,age,country,visits\na,31,CH,7\n")
    words = ["archive", "load", "users", str(file), "--archive", toml]
    assert main(words) == 2
    assert "'visits' is not a column of the table" in capsys.readouterr().err
    assert main([*words, "--new-columns", "--keep-default", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["version"], said["is_new"], said["is_default"], said["rows"]) == (2, True, False, 1)
    assert main([*words, "--new-columns"]) == 0
    assert capsys.readouterr().out == (
        "users: 1 row is in version 2, which is not the default\n"
        "  it lacks 1 key of version 1, such as 'b'; load these, too, or accept that they are missing:\n"
        "  headrace archive default users 2 --fewer-keys\n"
        "  keys: user_id\n"
    )
    assert main(["archive", "default", "users", "2", "--fewer-keys", "--archive", toml]) == 0
    capsys.readouterr()
    assert main(words) == 0
    assert capsys.readouterr().out == "users: 1 row is in version 2, which answers now\n  keys: user_id\n"


def test_strict_stores_nothing_where_a_guess_changes_values(
    toml: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, words = tmp_path / "users.csv", ["--archive", toml]
    file.write_text("user_id,zip\na,01234\nb,99999\n")
    assert main(["archive", "load", "users", str(file), "--strict", *words]) == 2
    told = capsys.readouterr().err
    assert "the column 'zip': its values stay text, because '01234' would change if read as a number" in told
    assert "--strict: the guesses above change values" in told
    assert main(["archive", "lookup", "users", "a", *words]) != 0
    capsys.readouterr()
    assert main(["archive", "load", "users", str(file), *words]) == 0
    assert "would change if read as a number" in capsys.readouterr().err
    file.write_text("user_id,zip\nc,99999\n")
    assert main(["archive", "load", "users", str(file), "--strict", *words]) == 0


def test_a_default_is_shown_and_moved_and_loses_keys_only_when_asked_to(
    toml: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def default(*words: str) -> tuple[int, str, str]:
        code = main(["archive", "default", *words, "--archive", toml])
        return code, *capsys.readouterr()

    file = tmp_path / "users.csv"
    for content, words in [
        ("user_id,age\na,30\nb,31\n", []),
        ("user_id,age,visits\na,30,7\n", ["--new-columns"]),
    ]:
        file.write_text(content)
        assert main(["archive", "load", "users", str(file), *words, "--archive", toml]) == 0
    capsys.readouterr()
    assert re.search(r"1  default .*\nusers        2 .*not full yet", default("users")[1])
    code, _, problem = default("users", "2")
    assert code == 1
    assert (
        "version 2 of 'users' lacks 1 key of version 1, such as 'b'; version 1 stays the default" in problem
    )
    moved = (0, "users: version 2 answers now, previously 1\n", "")
    assert default("users", "2", "--fewer-keys") == moved
    assert default("users", "2") == (0, "users: version 2 answers, as before\n", "")
    assert default("users", "1")[1] == "users: version 1 answers now, previously 2\n"
    said = json.loads(default("users", "--json")[1])
    assert (said["default"], said["before"], len(said["versions"])) == (1, 1, 2)
    assert default("users", "3")[::2] == (
        2,
        "headrace: no version 3 of the space 'users'; it has versions 1, 2\n",
    )
    assert default("users", "--fewer-keys")[0] == 2
    assert default("users", "x")[0] == 2


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ["users", "FILE", "--vectors", "age"],
            "--vectors: expected none, because 'users' is a feature table",
        ),
        (["users", "FILE", "--version", "2"], "--version: expected none"),
        (["users", "FILE", "--delimiter", "||"], "--delimiter: expected one ASCII character, or tab"),
        (["nobody", "FILE"], "no space 'nobody'; there are items, users"),
        (["items", "FILE"], "--vectors: expected one column of lists of numbers; there is none"),
        (["users", "none.csv"], "there is no such file"),
    ],
)
def test_input_that_cannot_be_loaded_is_exit_code_2(
    toml: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], problem: str
) -> None:
    (tmp_path / "users.csv").write_text("user_id,age\na,30\n")
    given = [str(tmp_path / "users.csv") if word == "FILE" else word for word in words]
    assert main(["archive", "load", *given, "--archive", toml]) == 2
    assert problem in capsys.readouterr().err


def test_a_tab_may_be_given_as_a_word(toml: str, tmp_path: Path) -> None:
    (tmp_path / "users.csv").write_text("user_id\tage\na\t30\n")
    assert (
        main(
            ["archive", "load", "users", str(tmp_path / "users.csv"), "--delimiter", "tab", "--archive", toml]
        )
        == 0
    )


def test_all_verbs_know_tables(toml: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*words: str, code: int = 0) -> str:
        assert main(["archive", *words, "--archive", toml]) == code
        return capsys.readouterr().out

    assert "tables.users  ok  no columns yet; headrace archive load takes them from a file" in told("check")
    (tmp_path / "users.csv").write_text("user_id,age,country\na,30,CH\n")
    told("load", "users", str(tmp_path / "users.csv"))
    rows = np.array([(40, "AT")], [("age", "<i4"), ("country", "<U2")])
    np.save(tmp_path / "rows.npy", rows)
    (tmp_path / "keys.txt").write_text("b\n")
    put = ["put", "users", str(tmp_path / "rows.npy"), "--keys", str(tmp_path / "keys.txt")]
    assert told(*put) == "stored 1 key in users\n"
    shown = told("lookup", "users", "a", "b", "c")
    assert "age=30 country=CH" in shown
    assert "age=40 country=AT" in shown
    assert "c  missing" in shown
    keys = json.loads(told("lookup", "users", "b", "--json"))["keys"]
    assert (keys[0]["found"], keys[0]["columns"]) == (True, {"age": 40, "country": "AT"})
    assert "(load)" in told("versions", "users")
    (version,) = json.loads(told("versions", "users", "--json"))["spaces"][0]["versions"]
    assert version["columns"][0] == {"name": "age", "dtype": "int64", "size_bytes": 8}
    assert "users" in told("status")
    assert told("forget", "users", "a") == "forgot 1 key in users\n"
    Path(toml).write_text('[tables.users.columns]\nage = "int64"\n')
    assert "1 column, 8 bytes a row, of archive.toml; version 1 answers, with other columns" in told("check")


def test_a_check_looks_at_where_contents_come_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toml = tmp_path / "archive.toml"
    toml.write_text('[spaces.titles]\ndimension = 2\ncontent = "table:films.title"\n[tables.films]\n')
    words = ["--archive", str(toml)]
    assert main(["archive", "check", *words]) == 0
    assert "spaces.titles.content  ok  the table 'films' has no rows yet" in capsys.readouterr().out
    (tmp_path / "films.csv").write_text("id,name\n1,Heat\n")
    assert main(["archive", "load", "films", str(tmp_path / "films.csv"), *words]) == 0
    assert main(["archive", "check", *words]) == 2
    told = "the table 'films' has no text column 'title' in version 1; there are name"
    assert told in capsys.readouterr().out
    (tmp_path / "films.csv").write_text("id,title\n1,Heat\n")
    assert main(["archive", "load", "films", str(tmp_path / "films.csv"), "--new-columns", *words]) == 0
    assert main(["archive", "check", *words]) == 0
    assert "from the column title of the table films" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ["put", "items", "FILE", "--keys", "FILE"],
            "expected a NumPy file (.npy) of numbers; numpy.save writ",
        ),
        (["put", "items", "FILE", "--keys", "FILE"], "headrace archive load takes Parquet, Arrow and CSV"),
        (
            ["neighbours", "items", "nobody"],
            "no vector in version 1 of 'items'; headrace archive put stores",
        ),
        (["fill"], 'the spaces have no embedder; set one, as in embedder = "minilm", or store your own'),
        (["lookup", "user", "a"], "no space 'user'; did you mean 'users'? There are items, users"),
        (
            ["load", "users", "FILE", "--key", "user_ids"],
            "in the file; did you mean 'user_id'? There are user_id",
        ),
    ],
)
def test_a_mistake_is_told_with_the_way_out(
    toml: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], problem: str
) -> None:
    (tmp_path / "users.csv").write_text("user_id,age\na,30\n")
    given = [str(tmp_path / "users.csv") if word == "FILE" else word for word in words]
    assert main(["archive", *given, "--archive", toml]) == 2
    assert problem in capsys.readouterr().err


def test_an_archive_of_tables_only_has_nothing_to_fill(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "archive.toml").write_text("[tables.users]\n")
    assert main(["archive", "fill", "--archive", str(tmp_path / "archive.toml")]) == 2
    told = "the archive has feature tables only; feature tables are not embedded: headrace archive load"
    assert told in capsys.readouterr().err
