"""What all tests share: the foreign clients' environment, and the proof that nothing is left running."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).resolve().parent.parent

pytest_plugins = ("tests.services",)

# Shared machines stall for longer than any deadline per example. The same examples each run: failures repeat.
settings.register_profile("headrace", deadline=None, derandomize=True)
settings.load_profile("headrace")

# Where tests run in a script's background, the shell has them ignore it, and all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what makes the test of draining as long as the proof asks for."""
    parser.addoption("--drain-requests", type=int, default=3000, help="answers before SIGTERM")
    parser.addoption("--drain-runs", type=int, default=1, help="servers stopped for each way to ask")


@cache
def asks_for_services(file: str) -> bool:
    """Say whether a file of tests names a fixture of ``tests/services.py``."""
    named = r"\b((redis|cassandra|kafka)_server|own_(redis|cassandra|kafka))\b"
    return re.search(named, (ROOT / file).read_text("utf-8")) is not None


class Lanes(LoadScopeScheduling):
    """Tests that start processes follow one another in one, and other files run in the rest.

    Two servers that are overloaded at once would test the machine. Files that share Redis, Cassandra and
    Kafka stay together, too, so that each of those is started once; these mostly wait for those.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if asks_for_services(file):
            return "services"
        return "processes" if file.startswith(("tests/end_to_end/", "tests/faults/")) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Give workers whole files, so that what a module's fixtures make is made once."""
    return Lanes(config, log)


def children() -> list[str]:
    """Give the command lines of the processes this one has started and not waited for."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        try:
            pids = (task / "children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):  # a thread that has ended just now
            continue
        for pid in pids:
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            found.append(command.replace(b"\0", b" ").decode(errors="replace").strip())
    # multiprocessing's tracker lives as long as the process that uses shared memory.
    return [command for command in found if command and "resource_tracker" not in command]


@pytest.fixture(scope="session", autouse=True)
def nothing_left_running() -> Iterator[None]:
    """Fails the run when a test has left a process behind."""
    yield
    if sys.platform == "linux" and Path("/proc/self/task").exists():
        left = children()
        assert not left, f"tests left processes running: {left}"


@pytest.fixture(scope="session")
def clients_python() -> Path:
    """The interpreter that has tritonclient and TensorFlow Serving's stubs."""
    python = Path(os.environ.get("HEADRACE_CLIENTS", ROOT / ".venvs/clients")) / "bin/python"
    if not python.exists():
        pytest.fail("the foreign clients are not installed: run `make clients`")
    return python
