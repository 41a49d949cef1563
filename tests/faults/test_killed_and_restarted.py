"""The process is killed in the middle of its work: what comes after it starts from the directory alone."""

from __future__ import annotations

import http.client
import threading
from pathlib import Path

from headrace.versions.pins_and_holds import pin
from tests.faults.still_serves import does_it_still_serve
from tests.model_directories import affine, write
from tests.running_server import RunningServer
from tools.services.ports import free_ports


def test_a_killed_server_starts_again_on_the_same_ports_with_the_same_versions(models: Path) -> None:
    for number in (1, 2):
        write(models, "m", number, affine(0.0, float(number)))
    pin(models / "m", 1)
    answer = (200, {"predictions": [1.0]})
    ports = tuple(map(str, free_ports(2)))  # which nobody who connects to anybody is given meanwhile
    with RunningServer(models, "--http-port", ports[0], "--grpc-port", ports[1]) as server:
        refused = threading.Event()

        def load() -> None:
            while not refused.is_set():
                try:
                    server.post("/v1/models/m:predict", {"instances": [0.0]})
                except (OSError, ValueError, http.client.HTTPException):
                    refused.set()

        clients = [threading.Thread(target=load) for _ in range(4)]
        for client in clients:
            client.start()
        assert server.post("/v1/models/m:predict", {"instances": [0.0]}) == answer
        assert server.kill() == -9
        for client in clients:
            client.join(120)
    with RunningServer(models, "--http-port", ports[0], "--grpc-port", ports[1]) as server:
        assert (str(server.http_port), str(server.grpc_port)) == ports
        assert server.post("/v1/models/m:predict", {"instances": [0.0]}) == answer
        does_it_still_serve(server)


def test_drafts_that_a_killed_publisher_left_are_never_served(models: Path) -> None:
    draft = models / "good/.publishing-4711-0"
    draft.mkdir()
    (draft / "model.onnx").write_bytes(affine(1.0, 9.0)[:40])
    with RunningServer(models) as server:
        does_it_still_serve(server)
        assert server.stop() == 0
