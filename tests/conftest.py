"""Settings and fixtures that all tests share."""

from __future__ import annotations

import os
import signal
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
    """Add options that make the drain tests longer."""
    parser.addoption("--drain-requests", type=int, default=3000, help="answers before SIGTERM")
    parser.addoption("--drain-runs", type=int, default=1, help="servers stopped for each way to ask")


@pytest.fixture(scope="session")
def clients_python() -> Path:
    """The interpreter that has tritonclient and TensorFlow Serving's stubs."""
    python = Path(os.environ.get("HEADRACE_CLIENTS", ROOT / ".venvs/clients")) / "bin/python"
    if not python.exists():
        pytest.fail("the foreign clients are not installed: run `make clients`")
    return python
