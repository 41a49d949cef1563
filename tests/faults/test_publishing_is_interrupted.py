"""`headrace publish` is interrupted while it copies, or the disk is full: it leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.calling import wait_for
from tests.model_directories import affine

LARGE_BYTES = 40 * 2**20  # more than the small disk holds
LONG_BYTES = 2**32  # of a file with a hole: seconds of copying


def command(model: Path, file: Path) -> list[str]:
    return [sys.executable, "-m", "headrace", "publish", str(model), str(file)]


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    with file.open("wb") as opened:
        opened.truncate(LONG_BYTES)
    model = tmp_path / "models/m"
    with subprocess.Popen(command(model, file), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as publishing:
        try:
            wait_for(lambda: any(one.stat().st_size for one in model.glob(".publishing-*/model.onnx")))
            publishing.send_signal(signal.SIGINT)
            said, told = publishing.communicate()
        finally:
            publishing.kill()
    assert (publishing.returncode, said, told) == (130, b"", b"")
    assert not (tmp_path / "models").exists()


def test_a_full_disk_leaves_nothing_behind(small_disk: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(affine(1.0, 2.0, LARGE_BYTES))
    for model in (small_disk / "models/m", small_disk / "m"):
        ended = subprocess.run(command(model, file), capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stdout) == (1, "")
        assert ended.stderr == f"headrace: {model}: cannot be published: No space left on device\n"
        assert list(small_disk.iterdir()) == []
