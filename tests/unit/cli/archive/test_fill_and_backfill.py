"""`headrace archive backfill` where there is nothing to fill, or nothing is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli.main import main


def backfill(place: Path, settings: str, *options: str) -> int:
    (place / "archive.toml").write_text(f"{settings}[spaces.items]\ndimension = 3\n")
    words = ["archive", "backfill", "items", "--no-fill", "--archive", str(place / "archive.toml")]
    return main([*words, *options])


def test_nothing_to_fill_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert backfill(tmp_path, "") == 0
    out, err = capsys.readouterr()
    assert out == "items: version 1 is the default, and its encoder is current; nothing to fill\n"
    assert err == ""
    assert backfill(tmp_path, "", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["from_version"], told["to_version"], told["keys"]) == (1, 1, 0)
    assert told["is_done"]
    assert told["is_default"]


def test_a_version_is_not_filled_from_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert backfill(tmp_path, "", "--to-version", "1") == 1
    assert "cannot be filled from itself" in capsys.readouterr().err


def test_before_a_version_is_known_it_is_an_error_and_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = '[store]\nkind = "redis"\naddress = "127.0.0.1:1"\n'
    assert backfill(tmp_path, settings) == 1
    assert "headrace: items: no version is known yet" in capsys.readouterr().err
