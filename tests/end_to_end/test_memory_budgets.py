"""A server in a control group with little memory: what holds memory by default takes its part of that."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.faults.control_groups import entering, group_with_memory
from tests.faults.still_serves import MODEL, connect, does_it_still_serve, http_request
from tests.model_directories import affine, write
from tests.running_server import RunningServer

MIB = 2**20
BODY = 14 * MIB
MESSAGES = ("--limits-max-message-bytes", str(16 * MIB))
FILE = "[limits]\nmax_inflight_bytes = 100663296\n"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    directory = tmp_path / "models"
    write(directory, MODEL, 1, affine(1.0, 1.0))
    return directory


def refused(server: RunningServer, most: int) -> bytes:
    """Send bodies that do not end, each on a connection of its own, until one is refused; what it is told."""
    head = http_request(f"/v1/models/{MODEL}:predict", b"").replace(b": 0\r\n", f": {BODY + 1}\r\n".encode())
    with ExitStack() as held:
        connections = []
        for _ in range(most):
            connections.append(held.enter_context(connect(server.http_port)))
            connections[-1].settimeout(60)
            with suppress(ConnectionResetError, BrokenPipeError):
                connections[-1].sendall(head + b" " * BODY)
            if told := _answered(connections, 0.1):
                return told
        return _answered(connections, 30.0)


def _answered(connections: list[socket.socket], seconds: float) -> bytes:
    """What one of them is told within some time; nothing, if none is."""
    readable, _, _ = select.select(connections, [], [], seconds)
    for one in readable:
        connections.remove(one)
        with suppress(ConnectionResetError):  # its end came before what it was told could be read
            return one.recv(65536)
    return b""


@pytest.mark.parametrize(
    ("settings", "workers", "group", "expected"),
    [("", 1, 256, 64), (FILE, 2, 512, 48)],
    ids=["a quarter", "what is set, divided among workers"],
)
def test_requests_hold_their_part_of_the_memory_of_the_control_group(
    models: Path, tmp_path: Path, settings: str, workers: int, group: int, expected: int
) -> None:
    file = tmp_path / "server.toml"
    file.write_text(settings, "utf-8")
    options: Sequence[str] = (*MESSAGES, "--workers", str(workers), "--config", str(file))
    with (
        group_with_memory(group * MIB) as place,
        RunningServer(models, *options, prefix=entering(place)) as server,
    ):
        told = refused(server, 2 * workers * expected * MIB // BODY)
        assert b" 503 " in told, told
        assert f"max_inflight_bytes = {expected * MIB}".encode() in told, told
        does_it_still_serve(server)
        assert server.stop() == 0


def test_an_archives_cache_takes_its_part_of_the_memory_of_the_control_group(tmp_path: Path) -> None:
    told = (
        "import sys; from pathlib import Path\n"
        "from headrace.archive.model.archive_toml import read_archive_config\n"
        "print(*(read_archive_config(Path(one)).cache.size_bytes for one in sys.argv[1:]))"
    )
    files = tmp_path / "by_default.toml", tmp_path / "set.toml"
    for file, cache in zip(files, ("", f"[cache]\nsize_bytes = {200 * MIB}\n"), strict=True):
        file.write_text(f"[spaces.items]\ndimension = 3\n{cache}", "utf-8")
    with group_with_memory(400 * MIB) as group:
        command = [*entering(group), sys.executable, "-c", told, *map(str, files)]
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert found == [str(50 * MIB), str(200 * MIB)]
