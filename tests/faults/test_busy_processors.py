"""Other processes want all of the processor for ever: the server starts, swaps and ends all the same."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.versions.manifest import publish
from tests.faults.still_serves import MODEL, does_it_still_serve
from tests.model_directories import affine
from tests.running_server import RunningServer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processors are chosen as on Linux")

ARRIVAL_SECONDS = 90.0
"""Ten on a machine that does nothing else; a busy one has been seen to take more than thirty."""

SLOWEST_SECONDS = 2.0
"""The longest that an answer may take beside a load and a busy process, all on one core."""

WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()
"""What an ordinary user may: give way, and not take it back."""

HALF_A_SECOND = """
import time

class Model:
    inputs = [("x", "FP32", [])]
    outputs = [("y", "FP32", [])]

    def load(self, path, context):
        began = time.thread_time()
        while time.thread_time() - began < 0.5:
            sum(range(1000))  # with the GIL

    def predict(self, inputs):
        return {"y": inputs["x"] + 2}
"""


@contextmanager
def busy_loops(core: str, count: int) -> Iterator[None]:
    """Processes that compute for ever on one core."""
    command = ["taskset", "-c", core, sys.executable, "-c", "while True: pass"]
    loops = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def test_a_server_starts_and_ends_beside_busy_processes(models: Path) -> None:
    core = str(min(os.sched_getaffinity(0)))
    with busy_loops(core, 2), RunningServer(models, prefix=("taskset", "-c", core)) as server:
        does_it_still_serve(server)
        assert server.stop() == 0
    assert MODEL in "".join(server.output)


def write_onnx(directory: Path) -> None:
    (directory / "model.onnx").write_bytes(affine(1.0, 2.0, extra_bytes=2**26))


def write_python(directory: Path) -> None:
    (directory / "model.py").write_text(HALF_A_SECOND)


def slowest_answer(models: Path, version: Callable[[Path], None]) -> float:
    """Ask until version 2 answers, and have an answer each time; how long the slowest took, in seconds."""
    core = str(min(os.sched_getaffinity(0)))
    prefix = (*WITHOUT_RIGHTS, "taskset", "-c", core)
    slowest, asked = 0.0, time.monotonic()
    with RunningServer(models, "--allow-code", prefix=prefix) as server, busy_loops(core, 1):
        publish(version, models / MODEL, 2)
        published = time.monotonic()
        while asked - published < ARRIVAL_SECONDS:
            asked = time.monotonic()
            status, answer = server.post(f"/v1/models/{MODEL}:predict", {"instances": [1.0]})
            slowest = max(slowest, time.monotonic() - asked)
            assert status == 200
            if answer == {"predictions": [3.0]}:
                return slowest
            assert answer == {"predictions": [2.0]}
    pytest.fail(f"version 2 did not arrive within {ARRIVAL_SECONDS:g} s")


@pytest.mark.rest
@pytest.mark.parametrize("version", [write_onnx, write_python])
def test_a_version_arrives_beside_busy_processes_and_requests_are_answered_meanwhile(
    models: Path, version: Callable[[Path], None]
) -> None:
    slowest_answer(models, version)


@pytest.mark.timing
@pytest.mark.parametrize("version", [write_onnx, write_python])
def test_no_answer_is_late_while_a_version_arrives_beside_busy_processes(
    models: Path, version: Callable[[Path], None]
) -> None:
    assert slowest_answer(models, version) < SLOWEST_SECONDS
