"""A trainer is killed, wherever it is: started again, it ends with the same model; nothing is half there."""

from __future__ import annotations

import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from headrace.ctr.files.model_files import read_model
from headrace.training.running.checkpoint import load_checkpoint
from headrace.versions.layout import MANIFEST_FILE, version_directories
from headrace.versions.manifest import check_manifest
from tests.faults.pausing import ROOT, kill_paused, pausing

STEPS = 24
PROGRAM = "tests.faults.small_trainer"


def start(directory: Path, steps: int = STEPS) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", PROGRAM, str(directory), str(steps)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def run(directory: Path, steps: int = STEPS) -> list[str]:
    """Run to the end; what it printed."""
    process = start(directory, steps)
    output, _ = process.communicate()
    assert process.returncode == 0
    return output.splitlines()


def everything_is_whole(directory: Path) -> None:
    """Whatever has a version's name can be loaded, and whatever has a checkpoint's."""
    for path in (
        version_directories(directory / "models/ctr").values() if (directory / "models").exists() else ()
    ):
        assert check_manifest(path) is not None
        read_model(path)
    loaded = load_checkpoint(directory / "checkpoints")
    assert loaded is None or not loaded.skipped


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The checksum of the model that nobody disturbed."""
    return run(tmp_path_factory.mktemp("undisturbed"))[-1]


@pytest.mark.parametrize("where", ["models/ctr", "checkpoints"])
@pytest.mark.parametrize(("write", "moment"), [(1, "filled"), (3, "whole")])
def test_killed_while_it_writes(
    tmp_path: Path, undisturbed: str, where: str, write: int, moment: str
) -> None:
    """In checkpointing and in publishing: the draft is there when the process is killed."""
    marker, directory = tmp_path / "paused", tmp_path / where
    kill_paused([*pausing(marker, moment, write, directory), PROGRAM, str(tmp_path), str(STEPS)], marker)
    (draft,) = directory.glob(".publishing-*")
    assert (draft / MANIFEST_FILE).exists() == (moment == "whole")
    assert max(version_directories(directory), default=0) == write - 1
    everything_is_whole(tmp_path)
    assert run(tmp_path)[-1] == undisturbed
    everything_is_whole(tmp_path)


def test_killed_again_and_again_at_any_time(tmp_path: Path, undisturbed: str) -> None:
    chance = random.Random(4)
    for _ in range(6):
        with start(tmp_path) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("from ")  # it has begun
            with suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0.0, 0.65))
            process.kill()
        everything_is_whole(tmp_path)
    assert run(tmp_path)[-1] == undisturbed
    everything_is_whole(tmp_path)


def test_a_damaged_checkpoint_costs_only_the_rows_since_the_one_before(
    tmp_path: Path, undisturbed: str
) -> None:
    run(tmp_path, 12)
    newest = max(version_directories(tmp_path / "checkpoints"))
    file = tmp_path / f"checkpoints/{newest}/table.npy"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    lines = run(tmp_path)
    assert lines[0] == "from 10"
    assert lines[-1] == undisturbed
