"""Verbs that are given the wrong one of three directories say which was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import example
from headrace.cli import directories
from headrace.cli.main import main

_MODEL = "half_plus_two"


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    example.write(tmp_path / "models")
    monkeypatch.chdir(tmp_path)
    return Path("models")


@pytest.mark.parametrize("words", [["versions"], ["rollback"], ["compile"]], ids=" ".join)
def test_a_model_where_models_are_wanted(
    models: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    name = ["1"] if words == ["rollback"] else []
    assert main([*words, f"models/{_MODEL}", *name]) == 1
    assert (
        f"DIR: models/{_MODEL} is the directory of one model, {_MODEL}; the directory of models is models"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("verb", ["serve", "versions", "compile"])
def test_a_version_where_models_are_wanted(
    models: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, f"models/{_MODEL}/1"]) == 1
    assert (
        f"is version 1 of one model, {_MODEL}; the directory of models is models" in capsys.readouterr().err
    )


@pytest.mark.parametrize("words", [["profile", "models"], ["export", "models", "m.onnx"]], ids=" ".join)
def test_models_where_one_is_wanted(
    models: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    assert (
        f"DIR: models is a directory of models; name one of them: models/{_MODEL}" in capsys.readouterr().err
    )


def test_what_is_no_click_model_is_not_exported(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", f"models/{_MODEL}", "m.onnx"]) == 1
    assert f"DIR: models/{_MODEL}/1 holds no click model" in capsys.readouterr().err


def test_what_may_be_meant_is_let_through(models: Path, tmp_path: Path) -> None:
    directories.expect_models(models)
    directories.expect_one_model(models / _MODEL)
    directories.expect_one_model(models / _MODEL / "1")
    directories.expect_no_version(models / _MODEL)
    year = tmp_path / "2026"  # a number, and yet a directory of models, at first an empty one
    year.mkdir()
    directories.expect_models(year)
    example.write(year)
    directories.expect_models(year)


def test_a_file_where_a_directory_is_wanted_is_not_to_be_overwritten_by_an_example(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("README.md").write_text("read me")
    assert main(["serve", "README.md"]) == 1
    assert capsys.readouterr().err == "headrace: DIR: README.md is not a directory\n"
