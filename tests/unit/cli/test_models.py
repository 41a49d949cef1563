"""Every verb names models in the same way, and one that is given the wrong directory says which was meant."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace import example
from headrace.base.errors import ConfigError, NotFound
from headrace.cli import models as named
from headrace.cli.main import main
from headrace.versions.pins_and_holds import hold

_MODEL = "half_plus_two"


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    example.write(tmp_path / "models")
    monkeypatch.chdir(tmp_path)
    return Path("models")


def numbered(models: Path, *numbers: str) -> Path:
    for number in numbers:
        (models / "ctr" / number).mkdir(parents=True)
    return models / "ctr"


def test_a_model_is_its_newest_version_and_a_version_is_itself(models: Path) -> None:
    ctr = numbered(models, "1", "007", "12")
    assert named.find_version(ctr) == ctr / "12"
    assert named.find_version(ctr / "1") == ctr / "1"
    assert named.find_version(ctr / "7") == ctr / "007"
    assert named.find_model(ctr) == (ctr, None)
    assert named.find_model(ctr / "7") == (ctr, 7)


def test_a_path_that_does_not_say_its_name_is_found_by_where_it_leads(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctr = numbered(models, "1", "2")
    monkeypatch.chdir(ctr / "1")
    assert [found.name if isinstance(found, Path) else found for found in named.find_model(Path())] == [
        "ctr",
        1,
    ]


def test_all_models_one_or_a_version_of_one(models: Path) -> None:
    ctr = numbered(models, "1", "2")
    assert named.find_models(models) == [(ctr, None), (models / _MODEL, None)]
    assert named.find_models(ctr) == [(ctr, None)]
    assert named.find_models(ctr / "2") == [(ctr, 2)]


def test_a_version_may_lie_anywhere(tmp_path: Path) -> None:
    (tmp_path / "onnx").mkdir()
    assert named.find_version(tmp_path / "onnx") == tmp_path / "onnx"


def test_a_model_or_a_directory_of_models_may_be_called_by_a_number(tmp_path: Path) -> None:
    year = tmp_path / "2026"
    example.write(year)
    assert named.find_models(year) == [(year / _MODEL, None)]
    assert named.find_version(year / _MODEL) == year / _MODEL / "1"
    (tmp_path / "models/7/1").mkdir(parents=True)
    assert named.find_model(tmp_path / "models/7") == (tmp_path / "models/7", None)


def test_missing_models_and_versions_are_named_with_those_that_exist(models: Path) -> None:
    numbered(models, "1", "2")
    with pytest.raises(NotFound, match="ctr has no version 9; it has: 1, 2"):
        named.find_model(models / "ctr/9")
    with pytest.raises(NotFound, match="models/ctx is not a directory"):
        named.find_version(models / "ctx")
    with pytest.raises(NotFound, match="ctr has no version 9"):
        named.find_models(models / "ctr/9")
    with pytest.raises(ConfigError, match=f"is a directory of models; name one of them: .*/{_MODEL}"):
        named.find_version(models)


@pytest.mark.parametrize("words", [["profile", "models"], ["export", "models", "m.onnx"]], ids=" ".join)
def test_models_where_one_is_wanted(
    models: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert (
        f"DIR/NAME[/N]: models is a directory of models; name one of them: models/{_MODEL}"
        in capsys.readouterr().err
    )


def test_a_version_where_models_are_served(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", f"models/{_MODEL}/1"]) == 2
    error = capsys.readouterr().err
    assert f"is version 1 of one model, {_MODEL}; pass the directory of models instead: models" in error
    named.expect_no_version(models / _MODEL)


def test_only_click_models_are_exported(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", f"models/{_MODEL}", "m.onnx"]) == 2
    assert f"DIR/NAME[/N]: models/{_MODEL}/1 holds no click model" in capsys.readouterr().err


def test_versions_and_rollback_say_the_same_as_json(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbered(models, "1", "2", "3")
    assert main(["rollback", "models/ctr", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"model": "ctr", "pinned": 2}
    assert main(["versions", "models/ctr/2", "--json"]) == 0
    (ctr,) = json.loads(capsys.readouterr().out)["models"]
    assert (ctr["name"], ctr["pinned"]) == ("ctr", 2)
    assert ctr["versions"] == [
        {"version": 2, "size_bytes": 0, "created": None, "pinned": True, "held_by": [], "problem": None}
    ]
    assert main(["rollback", "models/ctr/3", "--release"]) == 2
    assert main(["rollback", "models/ctr", "--release", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"model": "ctr", "pinned": None}


def test_versions_says_who_pinned_what_and_why_and_hides_nothing_for_a_broken_record(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbered(models, "1", "2", "3")
    assert main(["rollback", "models/ctr", "--why", "worse on mobile"]) == 0
    hold(Path("models/ctr"), 1, "audit")
    capsys.readouterr()
    assert main(["versions", "models/ctr"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("ctr  (pinned to 2 by ")
    assert said[0].endswith("00: worse on mobile)")
    assert said[3].endswith("held by audit")
    Path("models/ctr/headrace-control.json").write_text('{"format": 9}\x1b')
    assert main(["versions", "models"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("ctr  (headrace-control.json: ")
    assert any(_MODEL in line for line in said)
    assert main(["versions", "models", "--json"]) == 0
    assert "headrace-control.json" in json.loads(capsys.readouterr().out)["models"][0]["problem"]
    assert main(["rollback", "models/ctr"]) == 2
    assert "headrace-control.json: " in capsys.readouterr().err


def test_a_version_is_held_and_let_go_also_when_it_is_not_there(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbered(models, "1", "2")
    assert main(["hold", "models/ctr/1", "--holder", "audit", "--why", "a complaint"]) == 0
    assert capsys.readouterr().out == "ctr: version 1 is held by audit\n"
    assert main(["hold", "models/ctr/1", "--json"]) == 0
    held_by = ["audit", "operator"]
    assert json.loads(capsys.readouterr().out) == {"model": "ctr", "version": 1, "held_by": held_by}
    Path("models/ctr/1").rmdir()
    assert main(["hold", "models/ctr/1"]) == 2
    assert "ctr has no version 1; it has: 2" in capsys.readouterr().err
    assert main(["hold", "models/ctr/1", "--holder", "audit", "--release"]) == 0
    assert main(["hold", "models/ctr/1", "--release"]) == 0
    assert capsys.readouterr().out.endswith("ctr: version 1 is held by nobody\n")
    assert main(["hold", "models/ctr/2", "--holder", "audit"]) == 0
    assert main(["hold", "models/ctr/2", "--release"]) == 2
    said = "headrace: ctr: version 2 is not held by 'operator', but by 'audit'\n"
    assert capsys.readouterr().err.endswith(said)
    assert main(["hold", "models/ctr"]) == 2
    assert "expected the number of a version" in capsys.readouterr().err


def test_a_file_where_a_directory_is_wanted_is_not_to_be_overwritten_by_an_example(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("README.md").write_text("read me")
    assert main(["serve", "README.md"]) == 2
    way_out = "; name a directory of models, or a Python file (.py) with endpoints\n"
    assert capsys.readouterr().err == f"headrace: DIR: README.md is not a directory{way_out}"
    assert main(["serve", "app.pyy"]) == 2
    assert capsys.readouterr().err == f"headrace: DIR: app.pyy is not a directory{way_out}"
    assert main(["serve", "nope"]) == 2
    assert capsys.readouterr().err.endswith("nope is not a directory; `headrace example nope` makes one\n")


def test_serving_the_file_of_a_model_says_how_to_publish_it(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("model.txt").write_text("tree")
    assert main(["serve", "model.txt"]) == 2
    way_out = "`headrace publish models/NAME model.txt` puts it into one, for `headrace serve models`"
    said = f"headrace: DIR: model.txt is not a directory of models; {way_out}\n"
    assert capsys.readouterr().err == said


_NAMED = [
    ["versions", "{}"],
    ["rollback", "{}"],
    ["hold", "{}/1"],
    ["profile", "{}"],
    ["compile", "{}"],
    ["export", "{}", "out.onnx"],
    ["serve", "{}", "--http-port", "0", "--grpc-port", "0"],
    ["example", "{}"],
]


@pytest.mark.parametrize("words", _NAMED, ids=lambda words: str(words[0]))
def test_a_name_that_is_too_long_is_one_line(
    models: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.format(models / ("9" * 400)) for word in words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("headrace: ")


@pytest.mark.parametrize("words", _NAMED[:5], ids=lambda words: str(words[0]))
def test_unreadable_directories_are_one_line_errors(
    models: Path, words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refusing stands for permissions, which root, who may run this, always has."""
    closed = numbered(models, "1")

    def refusing(given: Callable[[Path], object]) -> Callable[[Path], object]:
        def list_it(path: Path) -> object:
            if str(path) == str(closed):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return given(path)

        return list_it

    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))
    assert main([word.format(closed) for word in words]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "Permission denied" in line
