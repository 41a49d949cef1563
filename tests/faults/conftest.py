"""What many of these tests start from."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.archive_processes import Encoder, encoding
from tests.faults.still_serves import MODEL
from tests.model_directories import affine, write
from tests.waiting import until


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A directory of models of the test's own, with the good model in it."""
    directory = tmp_path / "models"
    write(directory, MODEL, 1, affine(1.0, 1.0))
    return directory


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encoder]:
    """A server with the encoder of the archives here: it counts what it embeds."""
    with encoding(tmp_path_factory.mktemp("encoder")) as found:
        yield found


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("only root may mount a small file system")
    yield disk
    until(lambda: subprocess.run(["umount", disk], capture_output=True, check=False).returncode == 0)
