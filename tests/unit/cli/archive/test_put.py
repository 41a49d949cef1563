"""`headrace archive put`: files that are not there are a wrong command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace.cli.main import main


@pytest.mark.parametrize(
    ("vectors", "keys", "told"),
    [
        ("none.npy", "keys.txt", "headrace: FILE.npy: expected a file, got none.npy: it does not exist"),
        ("one.npy", "none.txt", "headrace: --keys: expected a file, got none.txt: it does not exist"),
        (".", "keys.txt", "headrace: FILE.npy: expected a file, got .: it is a directory"),
    ],
)
def test_a_file_that_is_not_there_is_a_wrong_command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    vectors: str,
    keys: str,
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("archive.toml").write_text("[spaces.items]\ndimension = 3\n")
    Path("keys.txt").write_text("a\n")
    np.save("one.npy", np.ones((1, 3), np.float32))
    assert main(["archive", "put", "items", vectors, "--keys", keys]) == 2
    assert capsys.readouterr().err == f"{told}\n"
