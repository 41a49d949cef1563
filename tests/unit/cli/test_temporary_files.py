"""Temporary directories of processes that were killed are removed by the next server."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.base.errors import ConfigError
from headrace.cli.temporary_files import draft_directory

KILLED = """
import os, sys
from contextlib import ExitStack
from headrace.cli.temporary_files import draft_directory

print(draft_directory(ExitStack()), flush=True)
sys.stdin.read()
os._exit(1)
"""


def test_directories_of_processes_that_have_ended_are_removed_and_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / ".headrace-serve-not-locked-yet").mkdir()
    with (
        ExitStack() as undo,
        subprocess.Popen(
            [sys.executable, "-c", KILLED],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        theirs = Path(process.stdout.readline().decode().strip())
        first = draft_directory(undo)
        second = draft_directory(undo)
        assert len({theirs, first, second}) == 3
        assert all(one.is_dir() for one in (theirs, first, second))
        process.stdin.close()
        assert process.wait() == 1
        assert theirs.is_dir()
        third = draft_directory(undo)
        assert not theirs.exists()
        assert all(one.is_dir() for one in (first, second, third))
    assert [one.name for one in tmp_path.iterdir()] == [".headrace-serve-not-locked-yet"]


def test_cleaners_of_temporary_files_see_that_a_directory_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As systemd-tmpfiles does: it skips a directory that it cannot lock, and what is in it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with ExitStack() as undo:
        descriptor = os.open(draft_directory(undo), os.O_RDONLY | os.O_DIRECTORY)
        undo.callback(os.close, descriptor)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with ExitStack() as undo, pytest.raises(ConfigError, match=r"temporary files: .*; set TMPDIR"):
        draft_directory(undo)
