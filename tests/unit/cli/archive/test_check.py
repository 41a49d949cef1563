"""`headrace archive check`: what is wrong with each part, and what was not looked at."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from headrace.cli.main import main


def check(
    place: Path, settings: str, capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, tuple[bool, str]]]:
    """The exit code, and what is told of each part."""
    (place / "archive.toml").write_text(settings)
    code = main(["archive", "check", "--archive", str(place / "archive.toml"), "--json"])
    parts = json.loads(capsys.readouterr().out)["parts"]
    return code, {one["part"]: (one["is_ok"], one["told"]) for one in parts}


def test_the_file_of_an_oov_vector_is_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = '[spaces.items]\ndimension = 3\noov = "none.npy"\n'
    code, parts = check(tmp_path, settings, capsys)
    assert (code, parts["spaces.items"][0]) == (2, False)
    assert "none.npy cannot be read" in parts["spaces.items"][1]
    np.save(tmp_path / "none.npy", np.zeros(4))
    code, parts = check(tmp_path, settings, capsys)
    assert "expected 3 numbers" in parts["spaces.items"][1]
    np.save(tmp_path / "none.npy", np.zeros(3))
    assert check(tmp_path, settings, capsys)[0] == 0


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ("dimension = 4", "dimension: expected 3, as in version 1, got 4"),
        ('dimension = 3\ndtype = "float16"', "dtype: expected float32, as in version 1, got float16"),
    ],
)
def test_settings_that_what_is_stored_does_not_follow_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: str, told: str
) -> None:
    assert check(tmp_path, "[spaces.items]\ndimension = 3\n", capsys)[0] == 0
    main(["archive", "versions", "--archive", str(tmp_path / "archive.toml")])  # makes version 1
    capsys.readouterr()
    assert check(tmp_path, "[spaces.items]\ndimension = 3\n", capsys)[0] == 0
    code, parts = check(tmp_path, f"[spaces.items]\n{changed}\n", capsys)
    assert code == 2
    assert parts["spaces.items"][1].startswith(told)


def test_an_embedder_that_no_space_uses_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = "[spaces.items]\ndimension = 3\n[embedders.spare]\n"
    code, parts = check(tmp_path, f'{settings}kind = "txet"\n', capsys)
    assert code == 2
    assert parts["embedders.spare"][1].startswith("embedders.spare.kind: expected one of")
    assert check(tmp_path, f'{settings}kind = "model"\nmodel = "m"\n', capsys)[0] == 0


def test_a_check_says_that_it_skips_models_of_the_server_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = '[spaces.words]\nembedder = "counts"\n[embedders.counts]\nkind = "model"\nmodel = "counts"\n'
    code, parts = check(tmp_path, settings, capsys)
    assert code == 0
    told = "the model 'counts' of the server itself; not checked, because no server runs here"
    assert parts["embedders.counts"] == (True, told)
