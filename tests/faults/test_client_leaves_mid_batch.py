"""A client leaves while its request waits, or while its batch runs: its neighbours are answered."""

from __future__ import annotations

import threading
from pathlib import Path

import grpc
import pytest

from tests.faults.held import held_until
from tests.faults.still_serves import (
    connect,
    does_it_still_serve,
    grpc_calls,
    hang_up,
    infer_message,
    predict_request,
)
from tests.model_directories import write
from tests.running_server import RunningServer

ONE_AT_A_TIME = "[batching]\ninstances = 1\n"
LEFT = 'headrace_errors_total{code="CANCELLED",protocol="gRPC"} '


def counted(server: RunningServer, metric: str) -> float:
    """A metric of the slow model."""
    text = server.get("/monitoring/prometheus/metrics")[1].decode()
    start = f'headrace_{metric}{{model="slow",version="1"}} '
    return sum(float(line.removeprefix(start)) for line in text.splitlines() if line.startswith(start))


def wait_until_told(server: RunningServer, leavers: int) -> None:
    """Wait until the server knows how many callers over gRPC have cancelled."""
    line = f"{LEFT}{leavers}".encode()
    server.wait_for(lambda: line in server.get("/metrics")[1], "the server to be told of it")


class Neighbours:
    """Requests to the slow model from clients that stay, each in a thread.

    Attributes:
        answers: What each was answered, in the order in which they asked; None for no answer.
    """

    def __init__(self, server: RunningServer) -> None:
        self.answers: list[object] = []
        self._server = server
        self._threads: list[threading.Thread] = []

    def ask(self, seconds: float) -> None:
        turn = len(self.answers)
        self.answers.append(None)

        def run() -> None:
            self.answers[turn] = self._server.post("/v1/models/slow:predict", {"instances": [seconds]})

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def wait(self) -> None:
        for thread in self._threads:
            thread.join(120)


@pytest.mark.parametrize("leave", ["REST", "gRPC"])
def test_neighbours_of_clients_that_leave_are_answered(models: Path, leave: str) -> None:
    write(models, "slow", 1, held_until(gate := models.parent / "gate"), ONE_AT_A_TIME)
    with RunningServer(models, "--allow-code") as server, grpc_calls(server) as call:
        neighbours = Neighbours(server)
        neighbours.ask(1.0)  # keeps the only instance busy
        server.wait_for(lambda: counted(server, "outstanding_requests") == 1, "the model to be busy")
        for _ in range(4):
            neighbours.ask(0.0)
        leavers = [call.future(infer_message("slow", 0.0, name="seconds")) for _ in range(3)]
        sockets = [connect(server.http_port) for _ in range(3)]
        for one in sockets:
            one.sendall(predict_request("slow", [0.0]))
        server.wait_for(lambda: counted(server, "queued_rows") == 10, "everybody to wait")
        for one, call_of in zip(sockets, leavers, strict=True):
            if leave == "REST":
                hang_up(one)
            else:
                call_of.cancel()
        if leave == "gRPC":
            wait_until_told(server, 3)
        gate.touch()
        neighbours.wait()
        # The batch held the four neighbours and the three who stayed. Those who left it did not hold; but
        # h2corn does not tell when a client of HTTP/1.1 leaves, so these are computed for nobody.
        rows = 10 if leave == "REST" else 7
        assert neighbours.answers == [(200, {"predictions": [1]})] + [(200, {"predictions": [rows]})] * 4
        for call_of in leavers if leave == "REST" else ():
            call_of.result(timeout=30)
        for one in sockets if leave == "gRPC" else ():
            assert b" 200 " in one.recv(4096)
        for one in sockets:
            one.close()
        server.wait_for(lambda: counted(server, "outstanding_requests") == 0, "nothing to be left")
        does_it_still_serve(server)


def test_a_client_that_leaves_while_its_batch_runs_harms_nobody(models: Path) -> None:
    write(models, "slow", 1, held_until(gate := models.parent / "gate"), ONE_AT_A_TIME)
    with RunningServer(models, "--allow-code") as server, grpc_calls(server) as call:
        neighbours = Neighbours(server)
        leaver = connect(server.http_port)
        leaver.sendall(predict_request("slow", [1.0]))
        server.wait_for(lambda: counted(server, "outstanding_requests") == 1, "the batch to run")
        neighbours.ask(0.0)
        canceled = call.future(infer_message("slow", 0.0, name="seconds"))
        server.wait_for(lambda: counted(server, "queued_rows") == 2, "the others to wait")
        canceled.cancel()
        wait_until_told(server, 1)
        hang_up(leaver)
        gate.touch()
        neighbours.wait()
        assert neighbours.answers == [(200, {"predictions": [1]})]
        with pytest.raises(grpc.FutureCancelledError):
            canceled.result(timeout=20)
        server.wait_for(lambda: counted(server, "outstanding_requests") == 0, "nothing to be left")
        does_it_still_serve(server)
