"""The file of the access log: pipes that are full, and lines that are written in part."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.telemetry.access_log import log_file
from headrace.telemetry.access_log.log_file import LineFile

LINE = b"x" * 19_999 + b"\n"
PIPE_BYTES = 65_536
FIRST_ABOVE_SELECT = 1024


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LineFile]:
    """A named pipe that holds three lines and a part of the fourth."""
    monkeypatch.setattr(log_file, "_PATIENCE_SECONDS", 0.0)
    os.mkfifo(tmp_path / "pipe")
    file = LineFile(tmp_path / "pipe")
    fcntl.fcntl(file._descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    with pytest.raises(BlockingIOError):
        file.write(LINE * 5)
    yield file
    file.close()


def test_whole_lines_are_counted(full: LineFile) -> None:
    assert full.lines == 3
    read = os.read(full._descriptor, PIPE_BYTES)
    full.write(LINE)
    assert full.lines == 4
    read += os.read(full._descriptor, PIPE_BYTES)
    *_, torn, last = read.splitlines(keepends=True)
    assert len(torn) < len(last)
    assert last == LINE


def test_a_full_pipe_may_have_any_descriptor(full: LineFile) -> None:
    before = full._descriptor
    full._descriptor = fcntl.fcntl(before, fcntl.F_DUPFD_CLOEXEC, FIRST_ABOVE_SELECT)
    os.close(before)
    with pytest.raises(BlockingIOError):
        full.write(LINE)
