"""What lies in one model's directory is that model's failure only, and a server ends at no file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.still_serves import does_it_still_serve
from tests.model_directories import affine, write
from tests.running_server import RunningServer

BAD: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "nested": ("headrace.toml", lambda path: path.write_text("x = " + "[" * 100_000), "nested too deeply"),
    "digits": ("headrace.toml", lambda path: path.write_text("x = " + "9" * 5000), "Exceeds the limit"),
    "seconds": (
        "headrace.toml",
        lambda path: path.write_text("[batching]\nmax_wait_seconds = 1e300"),
        "at most 60",
    ),
    "pipe": ("headrace.toml", os.mkfifo, "expected a file, got a pipe"),
    "pin": ("headrace.pin", lambda path: path.write_text("9" * 5000), "larger than the 1024 bytes"),
    "record": (
        "headrace-control.json",
        lambda path: path.write_text('{"format": 1}'),
        "missing required field",
    ),
    "newer": ("headrace-control.json", lambda path: path.write_text('{"format": 2}'), "update headrace"),
    "manifest": (
        "1/headrace-manifest.json",
        lambda path: path.write_text('{"format": 1, "files": {}, "metadata": {"a": ' + "[" * 100_000),
        "not a manifest",
    ),
    "open": ("1/model.onnx", lambda path: path.chmod(0o666), "others may write model.onnx (mode 0666"),
    "recording": ("1/warm_up.jsonl", lambda path: path.write_text("[" * 100_000), "is not a request"),
}


def problem(server: RunningServer, model: str) -> str:
    """What a caller of a model is told."""
    status, body = server.post(f"/v1/models/{model}:predict", {"instances": [1.0]})
    assert status != 200
    return str(body["error"])


def test_models_with_bad_files_fail_alone(models: Path) -> None:
    for name, (place, put, _) in BAD.items():
        write(models, name, 1, affine(1.0, 1.0))
        put(models / name / place)
    (models / "loop").symlink_to("loop")
    with RunningServer(models) as server:
        does_it_still_serve(server)
        for name, (_, _, says) in BAD.items():
            server.wait_for(lambda name=name, says=says: says in problem(server, name), f"{name}: {says}")  # type: ignore[misc]
        server.wait_for(lambda: "symbolic links" in problem(server, "loop"), "the loop to be told")
        does_it_still_serve(server)


@pytest.mark.parametrize("content", ["x = " + "{a=" * 100_000, "[batching]\nmax_batch_rows = " + "9" * 5000])
def test_settings_that_turn_bad_leave_what_serves(models: Path, content: str) -> None:
    write(models, "m", 1, affine(1.0, 1.0))
    with RunningServer(models) as server:
        (models / "m" / "headrace.toml").write_text(content)
        write(models, "new", 1, affine(1.0, 2.0))
        server.wait_for(lambda: server.get("/v2/models/new/ready")[0] == 200, "a later model to be served")
        assert server.post("/v1/models/m:predict", {"instances": [1.0]})[0] == 200
        does_it_still_serve(server)
