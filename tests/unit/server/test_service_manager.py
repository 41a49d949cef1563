"""What the service manager is told of the models, and what of the environment is whose."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from headrace.lifecycle.version_states import State, VersionStatus
from headrace.server.service_manager import ServiceManager, StatusReporter, status
from tests.virtual_loop import run_virtually

READY, FAILED = VersionStatus(1, State.READY), VersionStatus(2, State.FAILED, error="cut off")


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ({}, "serves 0 models"),
        ({"m": [READY]}, "serves 1 model"),
        ({"m": [READY, FAILED], "n": [READY]}, "serves 2 models; 1 version failed"),
        ({"m": [FAILED]}, "serves 0 models; 1 version failed"),
    ],
)
def test_the_status_line_counts_served_models(
    models: Mapping[str, Sequence[VersionStatus]], said: str
) -> None:
    assert status(models) == said


def test_the_service_managers_variables_are_removed_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "2000000")
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
        monkeypatch.setenv("LISTEN_PID", "1")
        manager = ServiceManager()
        assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_PID"} & os.environ.keys()
        assert manager.watchdog_seconds() == 2.0
        assert {"NOTIFY_SOCKET", "WATCHDOG_USEC"} <= manager.for_a_successor.keys()
        assert "LISTEN_PID" not in manager.for_a_successor
        manager.notify("READY=1", "STATUS=well")
        assert heard.recv(100) == b"READY=1\nSTATUS=well"
    manager.notify("STOPPING=1")  # nobody listens any more, and that is no error


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "500000"}, 0.5),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_of_another_process_is_ignored(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], seconds: float | None
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert ServiceManager().watchdog_seconds() == seconds


def test_a_successor_that_does_not_come_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.server.service_manager._BEGIN_SECONDS", 0.0)
    monkeypatch.setattr("sys.orig_argv", ["python", "-c", "import time; time.sleep(600)"])

    async def scenario() -> None:
        reporter = StatusReporter(ServiceManager(), dict, 0.0)
        assert reporter.start_successor()
        successor = reporter._successor
        assert successor is not None
        assert await asyncio.to_thread(successor.wait, 60) == -signal.SIGKILL
        reporter.stop(None)

    asyncio.run(scenario())


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Successors do nothing for long."""
    monkeypatch.setattr("sys.orig_argv", ["python", "-c", "import time; time.sleep(600)"])


def with_successor(reporter: StatusReporter) -> subprocess.Popen[bytes]:
    assert reporter.start_successor()
    assert reporter._successor is not None
    return reporter._successor


@pytest.mark.usefixtures("idle")
def test_a_successor_that_has_taken_over_is_let_live(caplog: pytest.LogCaptureFixture) -> None:
    """The old server answers its last requests for longer than a successor may take to come."""

    async def scenario() -> None:
        reporter = StatusReporter(ServiceManager(), dict, 0.0)
        successor = with_successor(reporter)
        reporter.stop(successor.pid)
        await asyncio.sleep(1000)
        successor.terminate()
        assert successor.wait(120) == -signal.SIGTERM, "nothing has ended it before"
        await asyncio.sleep(1000)

    run_virtually(scenario())
    assert "keeps serving" not in caplog.text


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("follower", [None, os.getpid()], ids=["the server stops", "another has taken over"])
def test_a_successor_that_has_not_taken_over_ends_with_its_server(
    caplog: pytest.LogCaptureFixture, follower: int | None
) -> None:
    async def scenario() -> None:
        reporter = StatusReporter(ServiceManager(), dict, 0.0)
        successor = with_successor(reporter)
        reporter.stop(follower)
        assert successor.wait(120) == -signal.SIGTERM
        await asyncio.sleep(1000)

    run_virtually(scenario())
    assert "keeps serving" not in caplog.text


def test_process_1_of_a_container_starts_no_successor(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        reporter = StatusReporter(ServiceManager(), dict, 0.0)
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: 1)
            assert not reporter.start_successor()
        assert reporter._successor is None
        reporter.stop(None)

    asyncio.run(scenario())
    assert "replace the container" in caplog.text
