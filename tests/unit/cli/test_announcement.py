"""The table of models that ``headrace serve`` prints, and the lines of those that load for longer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.cli import announcement
from headrace.config import ServerConfig
from headrace.server.server import Server
from tests.model_directories import affine, write

SLOW = """
import time
from pathlib import Path

class Model:
    inputs = [("slowly", "FP32", [])]
    outputs = [("y", "FP32", [])]

    def load(self, path, context):
        while not Path({go!r}).exists():
            time.sleep(0.01)
        {then}

    def predict(self, inputs):
        return {{"y": inputs["slowly"]}}
"""
PORTS = ServerConfig(http_port=0, grpc_port=0, allow_code=True)


def slow(folder: Path, name: str = "slow", then: str = "pass") -> Callable[[], None]:
    """Write a model; return the call that lets it load."""
    go = folder / "go"
    version = folder / "models" / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(SLOW.format(go=str(go), then=then))
    return go.touch


async def announced(
    folder: Path, let: Callable[[], None], capsys: pytest.CaptureFixture[str], *, as_json: bool = False
) -> tuple[str, str]:
    """Return what is printed before and after the slow model may load."""
    server = Server(folder / "models", PORTS)
    await server.start()
    try:
        task = asyncio.create_task(announcement.announce(server, folder / "models", 0.1, as_json=as_json))
        early = ""
        while "loading" not in early and not task.done():
            await asyncio.sleep(0.01)
            early += capsys.readouterr().out
        let()
        await task
        return early, capsys.readouterr().out
    finally:
        let()
        await server.stop(lead=False)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcement, "_SETTLE_SECONDS", 0.5)
    monkeypatch.setattr(announcement, "_LOOK_SECONDS", 0.01)


def test_a_model_that_loads_after_the_table_gets_a_line_and_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    early, later = asyncio.run(announced(tmp_path, slow(tmp_path), capsys))
    assert "try it" not in early
    lines = later.splitlines()
    assert lines[0].split()[:4] == ["slow", "1", "(default)", "ready"]
    assert lines[0].endswith("slowly FP32 [rows] → y FP32 [rows]")
    assert lines[1] == "try it:"
    assert lines[2].endswith("/v1/models/slow:predict")
    assert len(lines) == 3


def test_the_command_is_printed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    let = slow(tmp_path)
    write(tmp_path / "models", "fast", 1, affine(1.0, 1.0))
    early, later = asyncio.run(announced(tmp_path, let, capsys))
    assert f"{early}{later}".count("try it:") == 1
    ready = [line.split()[0] for line in f"{early}{later}".splitlines() if " ready " in line]
    assert sorted(ready) == ["fast", "slow"]


def test_a_model_that_fails_after_the_table_gets_a_line_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    let = slow(tmp_path, then="raise ValueError")
    _, later = asyncio.run(announced(tmp_path, let, capsys))
    assert later.split()[:3] == ["slow", "1", "failed"]
    assert later.count("\n") == 1
    assert "model.py fails" in later


def test_json_is_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    early, later = asyncio.run(announced(tmp_path, slow(tmp_path), capsys, as_json=True))
    assert json.loads(early)["models"][0]["versions"][0]["state"] == "loading"
    assert later == ""
