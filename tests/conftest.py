"""Settings and fixtures that all tests share."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent

pytest_plugins = ("tests.lanes", "tests.services")

# Shared machines stall for longer than any deadline per example. The same examples each run: failures repeat.
settings.register_profile("headrace", deadline=None, derandomize=True)
settings.load_profile("headrace")

# A shell starts background jobs with SIGINT ignored, and children inherit that; restore it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options that make tests longer or larger."""
    parser.addoption("--drain-requests", type=int, default=3000, help="answers before SIGTERM")
    parser.addoption("--idle-connections", type=int, default=10_000, help="connections that say nothing")
    parser.addoption("--drain-runs", type=int, default=1, help="servers stopped for each way to ask")


@pytest.fixture(autouse=True)
def root_level() -> Iterator[None]:
    """Restore the level of the root logger, which commands that a test runs in this process set."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)


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
