"""Versions come and go: nothing holds those that are gone, and memory stays bounded.

A thousand of them, under requests, are in `benchmarks/tests/test_reloads.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.versions.manifest import publish
from tests.faults.still_serves import does_it_still_serve
from tests.model_directories import affine, write
from tests.running_server import RunningServer

RELOADS = 50
STRETCH = 10
BALLAST_BYTES = 8_000_000


NOTED = """
import weakref

def note(line):
    with open({file!r}, "a") as file:
        print(line, file=file)

class Model:
    inputs = [("x", "FP32", [])]
    outputs = [("y", "FP32", [])]

    def load(self, path, context):
        self._number = int(path.name)
        note(f"loaded {{self._number}}")
        weakref.finalize(self, note, f"gone {{self._number}}").atexit = False

    def predict(self, inputs):
        return {{"y": inputs["x"] + self._number}}
"""


def reload(server: RunningServer, number: int) -> None:
    """Wait until a version answers, and the one before it is gone."""
    answer = (200, {"predictions": [float(number)]})
    server.wait_for(
        lambda: server.post("/v1/models/m:predict", {"instances": [0.0]}) == answer, f"version {number}"
    )
    gone = f"/v2/models/m/versions/{number - 1}/ready"
    server.wait_for(lambda: server.get(gone)[0] != 200, "the version before to go")


def test_nothing_holds_a_version_that_is_gone(models: Path, tmp_path: Path) -> None:
    noted = tmp_path / "noted"
    content = NOTED.format(file=str(noted))
    with RunningServer(models, "--allow-code", "--poll-seconds", "0.05") as server:
        for number in range(1, 1 + STRETCH):
            publish(lambda path: (path / "model.py").write_text(content), models / "m", number)
            reload(server, number)
        wanted = {f"gone {number}" for number in range(1, STRETCH)}
        server.wait_for(lambda: wanted <= set(noted.read_text().splitlines()), "all but the last to be freed")
        assert f"gone {STRETCH}" not in noted.read_text()
        does_it_still_serve(server)


@pytest.mark.timing
def test_fifty_reloads_leave_memory_as_it_was(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(models, "m", 1, affine(0.0, 1.0, BALLAST_BYTES))
    held, files, threads = [], [], []
    with RunningServer(models, "--poll-seconds", "0.05") as server:
        for number in range(2, 2 + RELOADS):
            write(models, "m", number, affine(0.0, float(number), BALLAST_BYTES))
            reload(server, number)
            held.append(server.rss_bytes())
            process = Path(f"/proc/{server.process.pid}")
            files.append(len(list((process / "fd").iterdir())))
            threads.append(len(list((process / "task").iterdir())))
        does_it_still_serve(server)
    # What the allocator keeps of unloaded versions goes up and down by several; the lowest of ten tells
    before, after = min(held[:STRETCH]), min(held[-STRETCH:])
    with capsys.disabled():
        print(f"\n[{before / 2**20:.0f} MB in the first ten, {after / 2**20:.0f} MB in the last] ", end="")
    # A connection or two may be open at the moment, and a loader thread at work; forty reloads more are not.
    assert max(files[-STRETCH:]) - max(files[:STRETCH]) < 5, files
    assert max(threads[-STRETCH:]) - max(threads[:STRETCH]) < 5, threads
    # Forty more reloads of 8 MB each; were half of each kept, this would fail.
    assert after - before < 0.5 * (RELOADS - STRETCH) * BALLAST_BYTES
