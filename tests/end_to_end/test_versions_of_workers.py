"""What is decided about versions beside their directories holds in all workers; one process reads it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.versions.layout import CONTROL_FILE
from tests.faults.still_serves import grpc_calls, infer
from tests.faults.worker_processes import children_of, workers_of
from tests.model_directories import affine, write
from tests.running_server import RunningServer

CONNECTIONS = 24
"""So many new ones in a row that each worker gets some."""


def answers(server: RunningServer) -> set[float]:
    """What is answered on many new connections, REST and gRPC."""
    found = set[float]()
    for _ in range(CONNECTIONS):
        status, said = server.post("/v1/models/m:predict", {"instances": [0.0]})
        assert status == 200, said
        found |= set(said["predictions"])
        with grpc_calls(server) as call:
            found |= set(infer(call, "m", 0.0))
    return found


@pytest.mark.rest
def test_all_workers_follow_a_rollback_and_its_release(tmp_path: Path) -> None:
    models = tmp_path / "models"
    for number in (1, 2, 3):
        write(models, "m", number, affine(0.0, float(number)))
    model = str(models / "m")
    with RunningServer(models, "--workers", "2") as server:
        first = workers_of(server)
        assert answers(server) == {3.0}
        assert main(["rollback", model]) == 0
        server.wait_for(lambda: answers(server) == {2.0}, "the version before")
        assert main(["hold", f"{model}/1", "--holder", "audit"]) == 0
        assert main(["rollback", f"{model}/1"]) == 0
        server.wait_for(lambda: answers(server) == {1.0}, "the version that is named")
        write(models, "m", 4, affine(0.0, 4.0))
        write(models, "later", 1, affine(0.0, 1.0))
        server.wait_for(lambda: server.get("/v2/models/later/ready")[0] == 200, "a later look at the disk")
        assert answers(server) == {1.0}, "a newer version waits until the pin is released"
        assert main(["rollback", model, "--release"]) == 0
        server.wait_for(lambda: answers(server) == {4.0}, "the newest")
        assert main(["hold", f"{model}/1", "--holder", "audit", "--release"]) == 0
        os.kill(first[0], 9)
        server.wait_for(lambda: len(set(workers_of(server)) - set(first)) == 1, "another worker")
        assert main(["rollback", f"{model}/3"]) == 0  # while it starts
        server.wait_for(lambda: answers(server) == {3.0}, "the other one and the new one")
        assert server.stop() == 0


# Each Python process of the server tells which directories it lists and which files it opens.
TELLS = """
import os, sys
_told = os.open(os.environ["TOLD"], os.O_WRONLY | os.O_APPEND)

def _tell(name, arguments):
    if name in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], (str, os.PathLike)):
        os.write(_told, f"{os.getpid()} {name} {os.path.abspath(arguments[0])}\\n".encode())

sys.addaudithook(_tell)
"""


@pytest.mark.rest
def test_only_the_supervisor_looks_at_the_directories_of_models(tmp_path: Path) -> None:
    models, told, hook = tmp_path / "models", tmp_path / "told", tmp_path / "hook"
    write(models, "m", 1, affine(0.0, 1.0))
    told.touch()
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(TELLS, "utf-8")
    path = os.pathsep.join([str(hook), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path.rstrip(os.pathsep), "TOLD": str(told)}

    def seen() -> set[tuple[int, str]]:
        """Which process has listed or opened which file at a model directory or above."""
        found = (line.split(" ", 2) for line in told.read_text("utf-8").splitlines())
        looked_at = {str(models), str(models / "m"), str(models / "m" / CONTROL_FILE)}
        return {(int(process), path) for process, _, path in found if path in looked_at}

    def processes_below(directory: Path) -> set[int]:
        found = (line.split(" ", 2) for line in told.read_text("utf-8").splitlines())
        return {int(process) for process, _, path in found if path.startswith(str(directory))}

    with RunningServer(models, "--workers", "2", environment=environment) as server:
        assert main(["rollback", str(models / "m" / "1")]) == 0
        write(models, "m", 2, affine(0.0, 2.0))
        assert main(["rollback", str(models / "m" / "2")]) == 0
        server.wait_for(lambda: answers(server) == {2.0}, "the version that it is pinned to")
        workers, keepers = workers_of(server), children_of(server, b"headrace.sealed_memory")
        looked = {process for process, _ in seen()}
        paths = {path for _, path in seen()}
        assert processes_below(models / "m" / "2") >= set(workers), "those who load it tell, too"
    assert len(workers) == 2
    assert len(keepers) == 1
    assert looked == {server.process.pid}
    assert paths == {str(models), str(models / "m"), str(models / "m" / CONTROL_FILE)}
