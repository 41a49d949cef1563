"""A trainer is killed, wherever it is: started again, it ends with the same model; nothing is half there."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.ctr.files.reading import read_model
from headrace.training.running.checkpoint import load_checkpoint
from headrace.versions.layout import version_directories
from headrace.versions.manifest import check_manifest

ROOT = Path(__file__).resolve().parents[2]
STEPS = 24


def start(directory: Path, steps: int = STEPS) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.faults.small_trainer", str(directory), str(steps)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def run(directory: Path, steps: int = STEPS) -> list[str]:
    """Run to the end; what it printed."""
    process = start(directory, steps)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return output.splitlines()


def kill_when(directory: Path, now: Callable[[], bool]) -> bool:
    """Start, and kill as soon as it is time; False if it ended before."""
    process = start(directory)
    deadline = time.monotonic() + 60
    while process.poll() is None and not now():
        assert time.monotonic() < deadline, "it never came to the point where it is killed"
    ended = process.poll() is not None
    process.kill()
    process.communicate()
    return not ended


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
@pytest.mark.parametrize("write", [1, 3])
def test_killed_while_it_writes(tmp_path: Path, undisturbed: str, where: str, write: int) -> None:
    """In checkpointing and in publishing: the draft is there when the process is killed."""
    seen: set[str] = set()

    def writing() -> bool:
        if (tmp_path / where).is_dir():
            seen.update(path.name for path in (tmp_path / where).glob(".publishing-*"))
        return len(seen) >= write

    assert kill_when(tmp_path, writing)
    everything_is_whole(tmp_path)
    assert run(tmp_path)[-1] == undisturbed
    everything_is_whole(tmp_path)


def test_killed_again_and_again_at_any_time(tmp_path: Path, undisturbed: str) -> None:
    chance = random.Random(4)
    for _ in range(6):
        due = time.monotonic() + chance.uniform(0.25, 0.9)
        kill_when(tmp_path, lambda due=due: time.monotonic() > due)  # type: ignore[misc]
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
