"""Two servers serve one directory: both follow what is published and decided there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from headrace.versions.manifest import publish
from tests.faults.still_serves import does_it_still_serve
from tests.faults.test_bad_versions import answer
from tests.model_directories import affine
from tests.running_server import RunningServer

MANY = 20


def versions_verb(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "headrace", *words], check=True, capture_output=True)


def test_both_follow_what_is_published_and_pinned(models: Path) -> None:
    model = models / "m"

    def publish_next(offset: float) -> None:
        publish(lambda path: (path / "model.onnx").write_bytes(affine(0.0, offset)), model)

    publish_next(1.0)
    with RunningServer(models) as one, RunningServer(models) as other:
        for number in range(2, MANY):
            publish_next(float(number))
        for server in (one, other):
            server.wait_for(lambda server=server: answer(server, "m") == [MANY - 1.0], "the newest version")
        versions_verb("rollback", str(model / "3"), "--why", "both shall follow")
        for server in (one, other):
            server.wait_for(lambda server=server: answer(server, "m") == [3.0], "the pinned version")
        other.kill()
        does_it_still_serve(one)
        versions_verb("rollback", str(model), "--release")
        one.wait_for(lambda: answer(one, "m") == [MANY - 1.0], "the newest version again")
        with RunningServer(models) as third:
            assert answer(third, "m") == [MANY - 1.0]
            does_it_still_serve(third)
        does_it_still_serve(one)
