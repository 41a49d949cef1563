"""Terminals and pipes that cannot show all characters: no verb ends with a traceback over it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.main import _VERBS
from tests.model_directories import affine, write

ENVIRONMENTS = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "C": {"LC_ALL": "C"},
    "POSIX": {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
}
CALLS = {
    "help": ("--help",),
    **{f"help of {verb}": (verb, "--help") for verb in _VERBS},
    "versions": ("versions", "models"),
    "encode": ("stream", "encode", "--format", "csv", "rows.csv", "--out", "rows.arrows"),
    "print a schema": ("stream", "encode", "--format", "csv", "rows.csv", "--print-schema"),
    "an unknown column": ("stream", "encode", "--format", "csv", "rows.csv", "--label", "\u00e9tiquette"),
    "inspect": ("stream", "inspect", "stream.arrows"),
    "train": ("train", "stream.arrows", "--model", "lr", "--publish", "trained/mod\u00e8le"),
    "publish": ("publish", "models/mod\u00e8le", "model.onnx"),
    "hold": ("hold", "models/mod\u00e8le/1", "--why", "K\u00f6ln"),
    "profile": ("profile", "models/mod\u00e8le", "--seconds", "0.1"),
    "key": ("key", "new", "K\u00f6ln", "--file", "keys.toml"),
    "example": ("example", "exempl\u00e9"),
    "status": ("status", "http://127.0.0.1:1"),
    "a directory that is not there": ("serve", "d\u00e9p\u00f4t"),
}


def run(folder: Path, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[bytes]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "headrace", *words],
        cwd=folder,
        env={**kept, "NUMBA_CACHE_DIR": os.environ.get("NUMBA_CACHE_DIR", ""), **environment},
        capture_output=True,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files whose names and values are not ASCII."""
    folder = tmp_path_factory.mktemp("terminals")
    cities, titles = (
        ["Stra\u00dfe", "K\u00f6ln", "\u0141\u00f3d\u017a"] * 60,
        ["\u65e5\u672c\u8a9e", "na\u00efve"],
    )
    rows = [f"{city},{titles[index % 2]} {index % 4},{index % 2}\n" for index, city in enumerate(cities)]
    (folder / "rows.csv").write_text("ville,titre,clicked\n" + "".join(rows), "utf-8")
    write(folder / "models", "mod\u00e8le", 1, affine(1.0, 1.0))
    (folder / "model.onnx").write_bytes(affine(1.0, 1.0))
    made = run(folder, {}, "stream", "encode", "--format", "csv", "rows.csv", "--out", "stream.arrows")
    assert made.returncode == 0, made.stderr
    return folder


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("where", ENVIRONMENTS)
def test_no_verb_ends_with_a_traceback(folder: Path, where: str, call: str) -> None:
    ran = run(folder, ENVIRONMENTS[where], *CALLS[call])
    said = (ran.stdout + ran.stderr).decode("utf-8", "replace")
    assert "Traceback" not in said
    assert "Unicode" not in said
    assert ran.returncode in (0, 1, 2)
    if call.startswith("help"):
        assert ran.returncode == 0
