"""What all tests share: the foreign clients' environment, and the proof that nothing is left running."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
from collections import Counter
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
    """Add what makes tests as long, or as large, as a proof asks for."""
    parser.addoption("--drain-requests", type=int, default=3000, help="answers before SIGTERM")
    parser.addoption("--idle-connections", type=int, default=10_000, help="connections that say nothing")
    parser.addoption("--drain-runs", type=int, default=1, help="servers stopped for each way to ask")


@cache
def asks_for_services(file: str) -> bool:
    """Say whether a file of tests names a fixture of ``tests/services.py``."""
    named = r"\b((redis|cassandra|kafka)_server|own_(redis|cassandra|kafka))\b"
    return re.search(named, (ROOT / file).read_text("utf-8")) is not None


def lane_of(file: str) -> str:
    """Say in which lane a file of tests runs; its own name where it is in none.

    Four lanes, the longest first: ``end_to_end``, ``faults``, those faults that stop servers, train or fill,
    and all files that share Redis, Cassandra and Kafka, so that each of those is started once. They wait
    more than they compute, so one goes beside another; more servers that are overloaded at once would test
    the machine.
    """
    if asks_for_services(file):
        return LANES[0]
    if re.match(r"tests/faults/test_(archive|drain|handover|training)_?", file):
        return LANES[3]
    return next((lane for lane in LANES[1:3] if file.startswith(f"tests/{lane}/")), file)


LANES = ("services", "faults", "end_to_end", "stops")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the lanes, which take longest; then with the files of most tests."""
    lanes = [lane_of(item.nodeid.partition("::")[0]) for item in items]
    sizes = Counter(lanes)
    order = {lane: (LANES.index(lane) if lane in LANES else len(LANES), -sizes[lane], lane) for lane in sizes}
    ordered = sorted(zip(lanes, items, strict=True), key=lambda each: order[each[0]])
    items[:] = [item for _, item in ordered]


class Lanes(LoadScopeScheduling):
    """Tests of one lane follow one another; files that are in none run in the rest of the processes."""

    def _split_scope(self, nodeid: str) -> str:
        return lane_of(nodeid.partition("::")[0])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Give workers whole files, so that what a module's fixtures make is made once."""
    config.option.loadscopereorder = False  # they are in order already
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


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What is logged, without what threads of Cassandra's driver log that a test before has left."""

    def is_of_this_test(record: logging.LogRecord) -> bool:
        return not record.name.startswith("cassandra")

    caplog.handler.addFilter(is_of_this_test)
    yield caplog
    caplog.handler.removeFilter(is_of_this_test)


@pytest.fixture(scope="session")
def clients_python() -> Path:
    """The interpreter that has tritonclient and TensorFlow Serving's stubs."""
    python = Path(os.environ.get("HEADRACE_CLIENTS", ROOT / ".venvs/clients")) / "bin/python"
    if not python.exists():
        pytest.fail("the foreign clients are not installed: run `make clients`")
    return python
