"""The keeper of the workers' shared memory is killed: it is started again, and versions go on arriving."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.faults.still_serves import does_it_still_serve
from tests.faults.worker_processes import children_of
from tests.running_server import RunningServer
from tests.sharing_models import publish_lookup


def test_versions_arrive_without_it_and_with_the_next_one(models: Path) -> None:
    publish_lookup(models, 2**21)
    with RunningServer(models, "--workers", "2") as server:
        server.wait_for(lambda: rows(server) == 1, "the model")
        (first,) = keepers(server)
        os.kill(first, signal.SIGKILL)
        assert rows(server) == 1, "a copy went with the keeper that made it"
        for version in (2, 3):
            publish_lookup(models, 2**21, version)
            server.wait_for(lambda n=version: ready(server, n), f"version {version}")
        server.wait_for(lambda: bool(keepers(server)) and keepers(server) != [first], "another keeper")
        does_it_still_serve(server)
        assert server.stop() == 0


def rows(server: RunningServer) -> int:
    status, said = server.post("/v1/models/lookup:predict", {"instances": [5]})
    predictions = said.get("predictions") if status == 200 else []
    assert isinstance(predictions, list)
    return len(predictions)


def ready(server: RunningServer, version: int) -> bool:
    return server.get(f"/v2/models/lookup/versions/{version}/ready")[0] == 200


def keepers(server: RunningServer) -> list[int]:
    return children_of(server, b"headrace.sealed_memory.keeper")
