"""Four workers, and large tables are in memory once: click models', and external data of ONNX models."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.worker_processes import pss_bytes, workers_of
from tests.running_server import RunningServer
from tests.sharing_models import publish_clicks, publish_lookup

WORKERS = 4
SIZE = 64 * 2**20


@pytest.mark.rest
def test_large_tables_are_in_memory_once(tmp_path: Path) -> None:
    publish_clicks(tmp_path, 2**10)
    publish_lookup(tmp_path, 2**10)
    with RunningServer(tmp_path, "--workers", str(WORKERS)) as server:
        server.wait_for(lambda: server.count_in_log("version is ready") == 2 * WORKERS, "small models")
        workers = workers_of(server)
        before = pss_bytes(workers)
        publish_clicks(tmp_path, SIZE)
        publish_lookup(tmp_path, SIZE)
        server.wait_for(lambda: server.count_in_log("version is ready") == 4 * WORKERS, "large models")
        server.wait_for(lambda: server.count_in_log("version is unloaded") == 2 * WORKERS, "their leaving")
        for ad in range(8):
            answer(server, "lookup", ad * 1000)
            answer(server, "clicks", {"ad": ad, "user": 1})
        mapped = [memory_files(worker) for worker in workers]
        assert len(mapped[0]) >= 2
        assert sum(mapped[0].values()) >= 2 * SIZE
        assert all(one == mapped[0] for one in mapped), "each has copies of its own"
        grown = pss_bytes(workers) - before
        assert grown < 2 * SIZE * 1.6, f"{grown / 2**20:.0f} MB for {2 * SIZE / 2**20:.0f} MB of tables"
        assert server.count_in_log("makes its own copy") == 0
        assert server.stop() == 0


def answer(server: RunningServer, model: str, row: object) -> None:
    status, said = server.post(f"/v1/models/{model}:predict", {"instances": [row]})
    assert status == 200, said


def memory_files(process: int) -> dict[str, int]:
    """The sealed copies that a process has mapped: their sizes, by inode."""
    found = {}
    for line in Path(f"/proc/{process}/maps").read_text().splitlines():
        if "/memfd:headrace" in line:
            addresses, _, offset, _, inode, *_ = line.split()
            start, end = (int(one, 16) for one in addresses.split("-"))
            found[inode] = max(found.get(inode, 0), int(offset, 16) + end - start)
    return found
