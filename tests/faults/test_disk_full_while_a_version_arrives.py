"""The disk under the served directory is full while a version arrives: no half of it is served."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.versions.manifest import publish
from tests.faults.still_serves import MODEL, does_it_still_serve
from tests.faults.test_bad_versions import answer, state
from tests.model_directories import affine, write
from tests.running_server import RunningServer

FILLER_BYTES, VERSION_BYTES = 20 * 2**20, 8 * 2**20


def version_of(offset: float) -> bytes:
    return affine(0.0, offset, VERSION_BYTES)


def test_publishing_is_atomic(small_disk: Path) -> None:
    models = small_disk / "models"
    write(models, MODEL, 1, affine(1.0, 1.0))
    write(models, "m", 1, affine(1.0, 1.0))
    filler = small_disk / "filler"
    with RunningServer(models) as server:
        filler.write_bytes(bytes(FILLER_BYTES))
        with pytest.raises(OSError, match="No space left on device"):
            publish(lambda path: (path / "model.onnx").write_bytes(version_of(2.0)), models / "m")
        assert sorted(path.name for path in (models / "m").iterdir()) == ["1"]
        assert answer(server, "m") == [1.0]
        filler.unlink()
        publish(lambda path: (path / "model.onnx").write_bytes(version_of(2.0)), models / "m")
        server.wait_for(lambda: answer(server, "m") == [2.0], "the version that has room now")
        does_it_still_serve(server)


def test_truncated_copies_are_not_loaded_and_decisions_are_written_whole(
    small_disk: Path, tmp_path: Path
) -> None:
    models = small_disk / "models"
    write(models, MODEL, 1, affine(1.0, 1.0))
    settings = "[versions]\nload_retry_seconds = 0.2\nload_attempts = 1000\n"
    write(models, "m", 1, affine(1.0, 1.0), settings)
    whole = publish(lambda path: (path / "model.onnx").write_bytes(version_of(2.0)), tmp_path / "m", 2)
    filler = small_disk / "filler"
    rollback = [sys.executable, "-m", "headrace", "rollback", str(models / "m/1")]
    with RunningServer(models) as server:
        filler.write_bytes(bytes(FILLER_BYTES))
        manifest, content = whole / "headrace-manifest.json", whole / "model.onnx"
        (models / "m/2").mkdir()
        shutil.copy(manifest, models / "m/2")
        with pytest.raises(OSError, match="No space left on device"):
            shutil.copyfile(content, models / "m/2/model.onnx")
        server.wait_for(lambda: "corrupt: model.onnx has" in state(server, "m", 2), "the reason")
        assert answer(server, "m") == [1.0]
        refused = subprocess.run(rollback, capture_output=True, text=True, check=False)
        assert (refused.returncode, "No space left on device" in refused.stderr) == (1, True), refused.stderr
        does_it_still_serve(server)
        filler.unlink()
        shutil.copyfile(content, models / "m/2/model.onnx")
        server.wait_for(lambda: answer(server, "m") == [2.0], "the copy that is whole now")
        subprocess.run(rollback, check=True, capture_output=True)
        server.wait_for(lambda: answer(server, "m") == [1.0], "what was decided")
        does_it_still_serve(server)
