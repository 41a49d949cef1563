"""A version needs more memory than there is: it fails with the reason, and the server lives."""

from __future__ import annotations

import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli.main import main
from tests.faults.control_groups import ENTER, group_with_memory
from tests.faults.still_serves import does_it_still_serve
from tests.faults.test_bad_versions import answer, state
from tests.model_directories import affine, write
from tests.running_server import RunningServer

SPARE_BYTES, WANTED_BYTES = 48 * 2**20, 160 * 2**20
GREEDY = f"""
import numpy as np

class Model:
    inputs = [("x", "FP32", [])]
    outputs = [("y", "FP32", [])]

    def __init__(self, *_):
        self.weights = np.ones({WANTED_BYTES}, np.uint8)

    def predict(self, inputs):
        return {{"y": inputs["x"] + 2}}
"""
TOO_GREEDY = GREEDY.replace(str(WANTED_BYTES), str(2**31))
SETTINGS = "[versions]\nload_retry_seconds = 0.5\n"


@pytest.mark.parametrize("kind", ["onnx", "python"])
def test_the_version_fails_and_is_loaded_once_there_is_room(models: Path, kind: str) -> None:
    write(models, "m", 1, affine(1.0, 1.0), SETTINGS)
    with RunningServer(models, "--allow-code") as server:
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        size = re.search(r"VmSize:\s+(\d+) kB", status)
        assert size is not None
        before = resource.prlimit(server.process.pid, resource.RLIMIT_AS)
        most = int(size[1]) * 1024 + SPARE_BYTES
        resource.prlimit(server.process.pid, resource.RLIMIT_AS, (most, before[1]))
        write(models, "m", 2, affine(1.0, 2.0, WANTED_BYTES) if kind == "onnx" else GREEDY)
        reason = re.compile("failed to load.*(alloc|memory)", re.IGNORECASE)
        server.wait_for(lambda: any(map(reason.search, server.errors)), "the reason")
        assert re.search("alloc|memory|log says more", state(server, "m", 2), re.IGNORECASE)
        assert answer(server, "m") == [1.0]
        does_it_still_serve(server)
        resource.prlimit(server.process.pid, resource.RLIMIT_AS, before)
        server.wait_for(lambda: answer(server, "m") == [2.0], "the version, now that there is room")
        does_it_still_serve(server)


@pytest.fixture
def little_memory() -> Iterator[tuple[str, ...]]:
    """What starts a server in a control group of 500 MB: the system kills what wants more."""
    with group_with_memory(500 * 2**20) as group:
        yield ("sh", "-c", ENTER, str(group))


def test_an_isolated_version_is_what_the_system_kills(models: Path, little_memory: tuple[str, ...]) -> None:
    write(models, "m", 1, affine(1.0, 1.0), "isolate = true\n[versions]\nload_attempts = 1\n")
    with RunningServer(models, "--allow-code", prefix=little_memory) as server:
        write(models, "m", 2, TOO_GREEDY)
        server.wait_for(lambda: "its process" in state(server, "m", 2), "the version to fail")
        assert "SIGKILL" in state(server, "m", 2)
        assert answer(server, "m") == [1.0]
        does_it_still_serve(server)


@pytest.mark.rest
def test_a_server_that_is_killed_for_its_own_load_serves_once_the_version_is_not_wanted(
    models: Path, little_memory: tuple[str, ...]
) -> None:
    write(models, "m", 1, affine(1.0, 1.0))
    with RunningServer(models, "--allow-code", prefix=little_memory) as server:
        write(models, "m", 2, TOO_GREEDY)
        assert server.wait_until_ended() == -signal.SIGKILL
    again = [*little_memory, sys.executable, "-m", "headrace", "serve", str(models), "--allow-code"]
    again += ["--http-port", "0", "--grpc-port", "0"]
    ended = subprocess.run(again, capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert main(["rollback", str(models / "m" / "1")]) == 0
    with RunningServer(models, "--allow-code", prefix=little_memory) as server:
        assert answer(server, "m") == [1.0]
        does_it_still_serve(server)
