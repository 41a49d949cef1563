"""Fifty versions of a large model come and go: memory stays bounded, and nothing else is left of them.

A thousand of them, under requests, are in `benchmarks/tests/test_reloads.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.still_serves import does_it_still_serve
from tests.model_directories import affine, write
from tests.running_server import RunningServer

RELOADS = 50
STRETCH = 10
BALLAST_BYTES = 8_000_000


def test_fifty_reloads_leave_memory_as_it_was(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(models, "m", 1, affine(0.0, 1.0, BALLAST_BYTES))
    held, files, threads = [], [], []
    with RunningServer(models, "--poll-seconds", "0.05") as server:
        for number in range(2, 2 + RELOADS):
            write(models, "m", number, affine(0.0, float(number), BALLAST_BYTES))
            answer = (200, {"predictions": [float(number)]})
            server.wait_for(
                lambda answer=answer: server.post("/v1/models/m:predict", {"instances": [0.0]}) == answer,
                f"version {number}",
            )
            gone = f"/v2/models/m/versions/{number - 1}/ready"
            server.wait_for(lambda gone=gone: server.get(gone)[0] != 200, "the version before to go")
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
