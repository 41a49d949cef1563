"""A server with one model of each kind, by both pairs of servers that can be chosen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.model_directories import write_menagerie
from tests.running_server import RunningServer

PAIRS = {
    "h2corn": (),
    "uvicorn and grpcio": ("--http-server", "uvicorn", "--grpc-server", "grpcio"),
}


@pytest.fixture(scope="session")
def menagerie(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one model of each kind; not to be changed."""
    directory = tmp_path_factory.mktemp("menagerie")
    write_menagerie(directory)
    return directory


@pytest.fixture(scope="session", params=PAIRS, ids=str)
def server(request: pytest.FixtureRequest, menagerie: Path) -> Iterator[RunningServer]:
    """A running server of them, shared by all tests that leave it as it is."""
    with RunningServer(menagerie, "--allow-code", *PAIRS[request.param]) as running:
        yield running
