"""Keys where two processes serve: what a caller takes counts in both, and what is revoked is so in both."""

from __future__ import annotations

import http.client
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace import example
from headrace.access.keys import KeyEntry
from headrace.cli.main import main
from tests.faults.worker_processes import connections_of, workers_of
from tests.model_directories import affine, write
from tests.running_server import RunningServer
from tests.unit.access.keys_of_tests import entry, key_of, written

PREDICT = "/v1/models/half_plus_two:predict"
BODY = json.dumps({"instances": [1.0]}).encode()
CONNECTIONS, BURST = 24, 30


def a_key(file: Path, name: str, *limits: str) -> KeyEntry:
    key = entry(name, ["predict"])
    before = file.read_text("utf-8") if file.exists() else ""
    written(file, key)
    file.write_text("\n".join([before + file.read_text("utf-8"), *limits, ""]), "utf-8")
    return key


@contextmanager
def both_serving(models: Path, keys: Path) -> Iterator[RunningServer]:
    with RunningServer(models, "--workers", "2", "--access-file", str(keys)) as server:
        server.wait_for(lambda: both_are_reached(server), "both workers to get connections")
        yield server


def both_are_reached(server: RunningServer) -> bool:
    with kept(server) as connections:
        for connection in connections:
            connection.request("GET", "/v2/health/live")
            connection.getresponse().read()
        return [connections_of(worker, server) > 0 for worker in workers_of(server)] == [True, True]


@contextmanager
def kept(server: RunningServer) -> Iterator[list[http.client.HTTPConnection]]:
    """Connections that stay open, some to each worker."""
    made = [http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30) for _ in range(CONNECTIONS)]
    try:
        yield made
    finally:
        for connection in made:
            connection.close()


def status(connection: http.client.HTTPConnection, name: str) -> int:
    connection.request("POST", PREDICT, BODY, {"x-api-key": key_of(name).text})
    answer = connection.getresponse()
    answer.read()
    return answer.status


def counted(server: RunningServer, path: str, name: str) -> dict[str, int]:
    """How many rows of each model all workers have answered, as a caller is told."""
    told, body = server.request("GET", path, b"", {"x-api-key": key_of(name).text})
    assert told == 200, body
    return {one["name"]: one["inference_count"] for one in json.loads(body)["model_stats"]}


def test_statistics_of_all_workers_are_told_of_ones_own_models(tmp_path: Path) -> None:
    example.write(tmp_path / "models")
    write(tmp_path / "models", "other", 1, affine(0.0, 1.0))
    file = tmp_path / "keys.toml"
    a_key(file, "all")
    keys = file.read_text("utf-8")
    written(file, entry("his", ["predict"], ["half*"]))
    file.write_text(keys + file.read_text("utf-8"))
    with (
        both_serving(tmp_path / "models", file) as server,
        kept(server) as connections,
    ):
        assert {status(connection, "all") for connection in connections} == {200}
        for _ in range(8):  # whichever worker tells
            assert counted(server, "/v2/models/half_plus_two/stats", "his") == {"half_plus_two": CONNECTIONS}
            assert counted(server, "/v2/models/stats", "his") == {"half_plus_two": CONNECTIONS}
            assert counted(server, "/v2/models/stats", "all") == {"half_plus_two": CONNECTIONS, "other": 0}
        assert (
            server.request("GET", "/v2/models/other/stats", b"", {"x-api-key": key_of("his").text})[0] == 403
        )


def test_limits_and_revocations_hold_in_all_workers(tmp_path: Path) -> None:
    example.write(tmp_path / "models")
    file = tmp_path / "keys.toml"
    a_key(file, "limited", "requests_per_second = 1", f"burst_seconds = {BURST}")
    a_key(file, "free")
    with (
        both_serving(tmp_path / "models", file) as server,
        kept(server) as connections,
    ):
        began = time.monotonic()
        found = Counter(status(connections[turn % CONNECTIONS], "limited") for turn in range(4 * BURST))
        earned = time.monotonic() - began
        assert found.keys() == {200, 429}
        # Counted by each alone it would be two bursts, but for luck: both have connections.
        assert BURST <= found[200] <= BURST + 2 + earned, found
        assert [connections_of(worker, server) > 0 for worker in workers_of(server)] == [True, True]
        assert {status(connection, "free") for connection in connections} == {200}

        assert main(["key", "revoke", "free", "--file", str(file)]) == 0
        server.wait_for(
            lambda: {status(connection, "free") for connection in connections} == {401},
            "both workers to refuse a revoked key",
        )
        assert status(connections[0], "limited") in {200, 429}
