"""The disk is full: learning goes on, nothing half-written is seen; with room again, all is well."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.ctr.files.model_files import read_model
from headrace.training.running.checkpoint import load_checkpoint
from headrace.versions.layout import version_directories
from headrace.versions.manifest import check_manifest
from tests.faults.test_training_killed import run


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for two checkpoints or versions."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("only root may mount a small file system")
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_full_disk_stops_neither_learning_nor_what_was_published(small_disk: Path, tmp_path: Path) -> None:
    lines = run(small_disk)
    failed = [line for line in lines if line.startswith("failed")]
    assert any("no version can be published" in line and "No space left on device" in line for line in failed)
    assert any("the checkpoint in" in line and "No space left on device" in line for line in failed)
    assert lines[-1] == run(tmp_path / "roomy")[-1], (
        "what was learnt is what would have been learnt with room"
    )
    assert not [path for path in small_disk.rglob(".*") if path.is_dir()], "drafts were removed"
    for path in version_directories(small_disk / "models/ctr").values():
        assert check_manifest(path) is not None
        read_model(path)
    assert load_checkpoint(small_disk / "checkpoints") is not None
    subprocess.run(["mount", "-o", "remount,size=200m", small_disk], check=True)
    again = run(small_disk, 48)
    assert not [line for line in again if line.startswith("failed")]
    assert again[-1] == run(tmp_path / "roomy", 48)[-1]
