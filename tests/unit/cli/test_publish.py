"""`headrace publish`: what a version consists of, and what is refused, and leaves nothing behind."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from headrace.cli import common
from headrace.cli.main import main
from headrace.versions.manifest import check_manifest, publish, read_manifest
from headrace.versions.signatures import Verifier, new_keys
from tests.model_directories import affine

Said = pytest.CaptureFixture[str]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A directory with a model and a file below it."""
    directory = tmp_path / "made"
    (directory / "assets").mkdir(parents=True)
    (directory / "model.onnx").write_bytes(affine(1.0, 1.0))
    (directory / "assets/words.txt").write_text("one two")
    return directory


def files(directory: Path) -> list[str]:
    return sorted(one.relative_to(directory).as_posix() for one in directory.rglob("*") if one.is_file())


def refused(said: Said, *words: object) -> tuple[int, str]:
    code = main(["publish", *map(str, words)])
    told = said.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    return code, told.err


CONTENT = ["assets/words.txt", "headrace-manifest.json", "model.onnx"]


def test_a_directory_alone_and_its_entries_are_the_same_version(
    made: Path, tmp_path: Path, capsys: Said
) -> None:
    model = tmp_path / "models/m"
    assert main(["publish", str(model), str(made)]) == 0
    assert main(["publish", str(model), str(made / "model.onnx"), str(made / "assets")]) == 0
    assert capsys.readouterr().out.startswith(f"published {model / '1'}: onnx, 2 files, ")
    for number in ("1", "2"):
        assert files(model / number) == CONTENT
        assert check_manifest(model / number) is not None


def test_the_number_and_the_key_are_those_that_are_asked_for(
    made: Path, tmp_path: Path, capsys: Said
) -> None:
    model, key = tmp_path / "models/m", tmp_path / "k.pem"
    name = new_keys(key)
    words = [str(model), str(made), "--version", "7", "--signing-key", str(key), "--json"]
    assert main(["publish", *words]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["model"], said["version"], said["key"]) == ("m", 7, name)
    manifest = (model / "7/headrace-manifest.json").read_bytes()
    assert Verifier(tmp_path / "k.pem.pub").check(model / "7", "m", 7, manifest) == name


def test_a_published_version_is_checked_and_keeps_what_its_maker_has_said(
    made: Path, tmp_path: Path, capsys: Said
) -> None:
    key = tmp_path / "k.pem"
    new_keys(key)
    staged = publish(made, tmp_path / "staging/m", signature="x [rows]", metadata={"auc": 0.7})
    assert main(["sign", str(staged), "--key", str(key)]) == 0
    assert main(["publish", str(tmp_path / "live/m"), str(staged)]) == 0
    there = read_manifest(tmp_path / "live/m/1")
    assert there is not None
    assert (there.signature, there.metadata) == ("x [rows]", {"auc": 0.7})
    assert files(tmp_path / "live/m/1") == CONTENT  # the signature was of another manifest
    capsys.readouterr()
    (staged / "model.onnx").write_bytes(affine(1.0, 2.0))
    code, told = refused(capsys, tmp_path / "live/m", staged)
    assert (code, "corrupt: model.onnx does not have the checksum" in told) == (common.FAILED, True), told
    assert os.listdir(tmp_path / "live/m") == ["1"]


def test_publishing_files_that_are_no_model_leaves_nothing_behind(
    made: Path, tmp_path: Path, capsys: Said
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    text = tmp_path / "notes.txt"
    text.write_text("no model")
    cases = [
        ([empty], common.FAILED, "holds no files"),
        ([text], common.FAILED, "no model found: expected model.onnx"),
        ([tmp_path / "nix"], common.WRONG, "nix does not exist"),
        ([made / "model.onnx", made / "model.onnx"], common.WRONG, "would both be model.onnx"),
        ([made, "--signing-key", tmp_path / "nix"], common.WRONG, "the key"),
        ([made, "--version", "-1"], common.WRONG, "version: expected"),
    ]
    for words, expected, reason in cases:
        code, told = refused(capsys, tmp_path / "models/m", *words)
        assert (code, reason in told) == (expected, True), told
        assert not (tmp_path / "models").exists()


def test_publishing_unreadable_files_leaves_nothing_behind(made: Path, tmp_path: Path, capsys: Said) -> None:
    os.mkfifo(made / "pipe")
    code, told = refused(capsys, tmp_path / "models/m", made)
    assert (code, "expected a file, got a pipe" in told) == (common.FAILED, True), told
    (made / "pipe").unlink()
    (made / "again").symlink_to(made)
    code, told = refused(capsys, tmp_path / "models/m", made)
    assert (code, "is a link to a directory" in told) == (common.WRONG, True), told
    assert not (tmp_path / "models").exists()


def test_a_place_that_is_no_models_is_refused(made: Path, tmp_path: Path, capsys: Said) -> None:
    model = tmp_path / "models/m"
    assert main(["publish", str(model), str(made)]) == 0
    capsys.readouterr()
    cases = [
        (
            [model, made, "--version", "1"],
            common.FAILED,
            "m has a version 1 already; leave the number out",
        ),
        ([model / "2", made], common.WRONG, f"give the model, {model}, and --version 2"),
        ([model / "1", made], common.WRONG, f"give the model, {model}, and --version 1"),
        (
            [model.parent, made],
            common.WRONG,
            f"DIR/NAME: {model.parent} is a directory of models; add the model's name: {model.parent}/NAME",
        ),
        (
            [tmp_path / "x/my model", made],
            common.WRONG,
            "DIR/NAME: expected a model's name: a letter or digit, then up to 127 letters, digits, dots, _ "
            "and -, got 'my model'",
        ),
        ([tmp_path / "x/m", model], common.FAILED, "holds versions; name one of them"),
        (
            [made / "model.onnx", made],
            common.WRONG,
            "expected the model's directory as the first argument, got the file",
        ),
    ]
    for words, expected, reason in cases:
        code, told = refused(capsys, *words)
        assert (code, reason in told) == (expected, True), told
    assert os.listdir(model) == ["1"]
    assert not (tmp_path / "x").exists()


def test_the_settings_beside_the_versions_say_which_runtime(made: Path, tmp_path: Path, capsys: Said) -> None:
    model = tmp_path / "models/m"
    model.mkdir(parents=True)
    (model / "headrace.toml").write_text('[runtime]\nkind = "sklearn"\n')
    code, told = refused(capsys, model, made)
    assert (code, "no model found: expected model.skops" in told) == (common.FAILED, True), told
    assert os.listdir(model) == ["headrace.toml"]
