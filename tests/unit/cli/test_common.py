"""What CONTRIBUTING.md promises of every verb that the parser knows: a new one is among them at once."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from headrace import example
from headrace.archive.model.catalog import partition, with_version
from headrace.archive.operations.open_archive import open_archive_file
from headrace.cli import common, models
from headrace.cli.main import build_parser, main
from headrace.versions.manifest import publish
from headrace.versions.signatures import new_keys
from tests.conformance.ctr_models import write
from tests.running_server import RunningServer

ROOT = Path(__file__).resolve().parents[3]
GUIDE = (ROOT / "docs/command-line.md").read_text("utf-8")
VERBS = {verb.prog.partition(" ")[2]: verb for verb in common.all_verbs(build_parser())}
NAMES_OF_MODELS = {models.DIRECTORY, models.MODEL, models.NUMBERED_VERSION, models.VERSION, models.ANY}
NUMBERS = {"N": "whole", "S": "seconds", "R": "rate", "P": "probability", "K": "count", "D": "difference"}
WORDS = {
    "FILE",
    "HOST",
    "SPACE",
    "TABLE",
    "KEY",
    "NAME",
    "NAMES",
    "FIELD",
    "C",
    "TEXT",
    "URL",
    "A*B",
    "N,N",
    "N:N",
    "N|auto",
    "FILE.py:FUNCTION",
}
METAVARS = NAMES_OF_MODELS | set(NUMBERS) | WORDS
every_verb = pytest.mark.parametrize("words", VERBS)


def options(words: str) -> list[argparse.Action]:
    """All that can be given to a verb, and is told of in its help."""
    return [
        action
        for action in VERBS[words]._actions
        if action.help != argparse.SUPPRESS and action.dest != "help"
    ]


@every_verb
def test_the_help_has_examples_and_exit_codes(words: str) -> None:
    told = VERBS[words].format_help()
    _, _, after = told.partition("\nexample")
    examples, _, codes = after.partition("exit codes: ")
    assert f"headrace {words}" in examples
    codes = " ".join(codes.split())
    expected = r"0 done; 1 .+; 2 .+; 130 interrupted(; 143 ended by SIGTERM)?\. See docs/command-line\.md\."
    assert re.fullmatch(expected, codes), codes


@every_verb
def test_models_files_and_numbers_have_the_same_names_everywhere(words: str) -> None:
    for action in options(words):
        if action.nargs == 0 or action.choices is not None:
            continue
        assert action.metavar in METAVARS, f"{words} {action.dest}: {action.metavar} is new"
        is_seconds = action.dest.endswith("_seconds")
        assert (action.metavar == "S") == is_seconds, f"{words} {action.dest}: seconds are S and in the name"
        if not action.option_strings and "model" in f"{action.dest} {action.help}":
            assert action.metavar in NAMES_OF_MODELS | {"FILE"}, f"{words}: {action.metavar}"


@every_verb
def test_every_option_has_a_variable_and_both_are_in_the_help(words: str) -> None:
    found = VERBS[words].get_default("settings")
    told = " ".join(VERBS[words].format_help().split())
    for action in options(words):
        if not action.option_strings:
            continue
        name = action.option_strings[-1]
        assert action.dest in found.actions
        assert name[2:] == action.dest.replace("_", "-").replace(".", "-")
        expected = f"HEADRACE_{words}_{action.dest}".translate(str.maketrans(" .-", "___")).upper()
        assert f"[{expected}]" in told
        assert action.default is argparse.SUPPRESS
        if action.nargs != 0:
            assert re.search("default|required", action.help), f"{words} {name} does not state its default"


@every_verb
def test_a_wrong_command_is_one_line_that_names_the_verbs_help(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words.split(), *["x"] * 5, "--nothing-like-it"])
    assert ended.value.code == common.WRONG
    told = capsys.readouterr().err
    assert re.fullmatch(rf"headrace: .*; see headrace {words} --help\n", told), told


@every_verb
def test_the_lines_of_the_help_are_short(words: str) -> None:
    told = VERBS[words].format_help().partition("\nexample")[0]
    assert max(map(len, told.splitlines())) <= 110


@every_verb
def test_every_verb_takes_json_and_a_file_of_settings(words: str) -> None:
    found = {name for action in options(words) for name in action.option_strings}
    assert {"--json", "--config"} <= found


@every_verb
def test_the_guide_has_the_json_of_every_verb(words: str) -> None:
    assert re.search(rf"^\| .*`{words}`.* \| .+ \|$", GUIDE, re.MULTILINE), f"{words}: docs/command-line.md"


def test_the_guide_has_every_exit_code() -> None:
    listed = [int(code) for code in re.findall(r"^\| (\d+) \|", GUIDE, re.MULTILINE)]
    known = [
        common.DONE,
        common.FAILED,
        common.WRONG,
        common.INTERRUPTED,
        common.UNREAD,
    ]
    assert listed == [*known, 143]


# ---- One JSON object ----

Made = Callable[[Path], list[str]]


def a_model(place: Path) -> str:
    example.write(place / "models")
    return str(place / "models/half_plus_two")


def a_click_model(place: Path) -> str:
    (place / "ctr/1").mkdir(parents=True)
    write(place / "ctr/1", "lr")
    return str(place / "ctr")


def a_table(place: Path) -> str:
    (place / "rows.csv").write_text("label,x\n1,7\n0,8\n")
    return str(place / "rows.csv")


def a_stream(place: Path) -> str:
    out = str(place / "rows.arrows")
    assert main(["stream", "encode", "--format", "csv", a_table(place), "--out", out]) == 0
    return out


def some_rows(place: Path) -> str:
    np.save(place / "rows.npy", np.array([1.0, 2.0], np.float32))
    return str(place / "rows.npy")


def an_archive(place: Path) -> str:
    (place / "archive.toml").write_text("[spaces.items]\ndimension = 3\n")
    return str(place / "archive.toml")


def an_archive_that_fills(place: Path) -> str:
    (place / "archive.toml").write_text('[spaces.items]\nembedder = "minilm"\n')
    return str(place / "archive.toml")


def no_models(place: Path) -> str:
    """A directory in which no model is published."""
    (place / "no_models").mkdir()
    return str(place / "no_models")


def an_archive_of_two_versions(place: Path) -> str:
    file = Path(an_archive(place))
    with open_archive_file(file) as archive:
        (first,) = archive.record("items").versions
        archive.store.create(partition("items", 2))
        second = msgspec.structs.replace(first, fingerprint="newer")
        archive.catalog.change("items", lambda record: with_version(record, second))
    return str(file)


def vectors_with_keys(place: Path) -> list[str]:
    np.save(place / "vectors.npy", np.eye(2, 3, dtype=np.float32))
    (place / "keys.txt").write_text("a\nb\n")
    return [str(place / "vectors.npy"), "--keys", str(place / "keys.txt")]


def a_table_of_features(place: Path) -> list[str]:
    (place / "archive.toml").write_text("[tables.users]\n")
    (place / "users.csv").write_text("user_id,age,country\na,30,CH\nb,40,AT\n")
    return ["users", str(place / "users.csv"), "--archive", str(place / "archive.toml")]


def a_table_of_windows(place: Path) -> list[str]:
    windows = "orders = { count = true, seconds = 60 }"
    (place / "archive.toml").write_text(
        f'[tables.demand.feed]\nkey = "item"\n[tables.demand.windows]\n{windows}\n'
    )
    (place / "orders.csv").write_text("item,timestamp\na,2026-01-01T12:00:00\nb,2026-01-01T12:00:01\n")
    return ["demand", str(place / "orders.csv"), "--archive", str(place / "archive.toml")]


def rows_with_keys(place: Path) -> list[str]:
    (place / "headrace.toml").write_text('[inputs.item]\nspace = "items"\nkey = "id"\n')
    (place / "rows.csv").write_text("label,when,id\n1,1700000000000000,a\n")
    words = ["--format", "csv", "--timestamp", "when", str(place / "rows.csv"), "--out", str(place / "rows")]
    assert main(["stream", "encode", *words]) == 0
    inputs, archive = str(place / "headrace.toml"), an_archive(place)
    return [str(place / "rows"), "--inputs", inputs, "--archive", archive, "--out", str(place / "joined")]


def a_filled_archive(place: Path) -> str:
    file = an_archive(place)
    np.save(place / "vectors.npy", np.repeat(np.eye(3, dtype=np.float32), 2, axis=0))
    (place / "keys.txt").write_text("a\nb\nc\nd\ne\nf\n")
    words = ["items", str(place / "vectors.npy"), "--keys", str(place / "keys.txt")]
    assert main(["archive", "put", *words, "--archive", file]) == 0
    return file


def a_published_model(place: Path) -> str:
    publish(example.write(place / "made") / "1", place / "models/half_plus_two")
    return str(place / "models/half_plus_two")


def a_signing_key(place: Path) -> str:
    new_keys(place / "key.pem")
    return str(place / "key.pem")


def a_file_of_keys(place: Path) -> str:
    assert main(["key", "new", "ranking", "--file", str(place / "keys.toml")]) == 0
    return str(place / "keys.toml")


RUNS: dict[str, Made] = {
    "key new": lambda place: ["ranking", "--models", "*", "--file", str(place / "keys.toml")],
    "key list": lambda place: ["--file", a_file_of_keys(place)],
    "key revoke": lambda place: ["ranking", "--file", a_file_of_keys(place)],
    "train": lambda place: [a_stream(place), "--model", "lr"],
    "stream generate": lambda place: ["--rows", "9", "--out", str(place / "out")],
    "stream encode": lambda place: ["--format", "csv", a_table(place), "--out", str(place / "out")],
    "stream inspect": lambda place: [a_stream(place)],
    "example": lambda place: [str(place / "new")],
    "versions": lambda place: [a_model(place)],
    "rollback": lambda place: [f"{a_model(place)}/1"],
    "hold": lambda place: [f"{a_model(place)}/1"],
    "publish": lambda place: [str(place / "models/m"), str(example.write(place / "made") / "1")],
    "sign": lambda place: [a_published_model(place), "--key", a_signing_key(place)],
    "signing-key": lambda place: [str(place / "key.pem")],
    "export": lambda place: [a_click_model(place), str(place / "model.onnx")],
    "profile": lambda place: [a_model(place), "--calls", "1"],
    "compile": lambda place: [str(place)],
    "compare": lambda place: [a_model(place), f"{place}/models/half_plus_two/1", some_rows(place)],
    "archive check": lambda place: ["--archive", an_archive(place)],
    "archive versions": lambda place: ["--archive", an_archive(place)],
    "archive default": lambda place: ["items", "2", "--archive", an_archive_of_two_versions(place)],
    "archive lookup": lambda place: ["items", "a", "--archive", an_archive(place)],
    "archive put": lambda place: ["items", *vectors_with_keys(place), "--archive", an_archive(place)],
    "archive load": a_table_of_features,
    "archive feed": a_table_of_windows,
    "archive join": rows_with_keys,
    "archive invalidate": lambda place: ["items", "a", "--remove", "--archive", an_archive(place)],
    "archive forget": lambda place: ["items", "a", "b", "--archive", an_archive(place)],
    "archive fill": lambda place: ["--until-empty", "--archive", an_archive_that_fills(place)],
    "archive status": lambda place: ["--archive", an_archive(place)],
    "archive backfill": lambda place: [
        *("items", "--to-version", "2", "--no-fill", "--archive", an_archive_of_two_versions(place))
    ],
    "archive drop": lambda place: [
        *("items", "2", "--models", no_models(place), "--archive", an_archive_of_two_versions(place))
    ],
    "archive dead-letters list": lambda place: ["--archive", an_archive(place)],
    "archive dead-letters replay": lambda place: ["--archive", an_archive(place)],
    "archive dead-letters drop": lambda place: ["--archive", an_archive(place)],
    "archive neighbours": lambda place: ["items", "a", "--archive", a_filled_archive(place)],
    "archive duplicates": lambda place: ["items", "--archive", a_filled_archive(place)],
    "archive plot": lambda place: [
        *["items", "--out", str(place / "items.png"), "--archive", a_filled_archive(place)]
    ],
}


def documented(words: str) -> set[str]:
    """The keys that the guide names for a verb, in its row of the table or in sections that this leads to."""
    row = next(line for line in GUIDE[GUIDE.index("## --json") :].splitlines() if f"`{words}`" in line[:60])
    told = [row, *(section(*link) for link in re.findall(r"\]\((\w+\.md)#([\w-]+)\)", row))]
    return {key for text in told for key in re.findall(r"`(\w+)`", text)}


def section(page: str, anchor: str) -> str:
    """What a page says under a heading."""
    for text in re.split(r"^##+ ", (ROOT / "docs" / page).read_text("utf-8"), flags=re.MULTILINE):
        heading = text.partition("\n")[0].lower()
        if re.sub(r"[^\w -]", "", heading).replace(" ", "-") == anchor:
            return text
    raise AssertionError(f"{page} has no section {anchor}")


@every_verb
def test_json_is_one_object_with_the_keys_that_the_guide_names(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    if words in ("serve", "archive serve"):
        said = served_object(words, tmp_path)
    elif words in ("status", "top"):
        with RunningServer(Path(a_model(tmp_path)).parent) as server:
            assert (
                main([words, f"http://127.0.0.1:{server.http_port}", "--interval-seconds", "0.1", "--json"])
                == 0
            )
        said = capsys.readouterr().out
    elif words == "stream publish":
        topic = f"kafka://{request.getfixturevalue('kafka_server').address}/conventions"
        rows = a_stream(tmp_path)
        capsys.readouterr()
        assert main(["stream", "publish", rows, topic, "--partitions", "1", "--json"]) == 0
        said = capsys.readouterr().out
    else:
        given = RUNS[words](tmp_path)  # a new verb wants a line there
        capsys.readouterr()
        assert main([*words.split(), *given, "--json"]) == 0
        said = capsys.readouterr().out
    assert said.count("\n") == 1, said
    found = json.loads(said)
    assert isinstance(found, dict)
    assert set(found) <= documented(words), set(found) - documented(words)


def test_a_search_is_one_object_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search = tmp_path / "search.toml"
    search.write_text('[grid]\nkind = ["lr"]\n"linear.learning_rate" = [0.1, 0.2]\n')
    assert main(["train", a_stream(tmp_path), "--search", str(search), "--json"]) == 0
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    found = json.loads(said)
    assert set(found) <= documented("train --search")
    assert len(found["configurations"]) == 2
    assert set(found["configurations"][0]) <= documented("train --search")


def served_object(words: str, place: Path) -> str:
    example.write(place / "models")
    given = [str(place / "models")] if words == "serve" else ["--archive", an_archive(place)]
    command = [sys.executable, "-m", "headrace", *words.split(), *given, "--json"]
    command += ["--http-port", "0", "--grpc-port", "0", "--drain-lead-seconds", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        said = server.stdout.readline()
        server.terminate()
        said += server.stdout.read()
        assert server.wait(120) == 0
    if words == "serve":
        (model,) = json.loads(said)["models"]
        assert (model["name"], model["versions"][0]["state"]) == ("half_plus_two", "ready")
    else:
        assert json.loads(said)["spaces"] == [{"space": "items", "default": 1}]
    return said
