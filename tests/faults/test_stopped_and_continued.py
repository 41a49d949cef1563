"""A server stands still under load (SIGSTOP), and goes on (SIGCONT): who waited is answered."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from pathlib import Path

import grpc
import pytest

from tests.faults.still_serves import (
    MODEL,
    connect,
    does_it_still_serve,
    grpc_calls,
    http_request,
    infer_message,
    predict_request,
)
from tests.faults.strict_callers import Callers, grpc_unary, http1, http2
from tests.faults.test_idle_connections import answer
from tests.model_directories import affine, write
from tests.running_server import RunningServer
from tests.stopped_processes import stopped

STILL_SECONDS = 1.0
DEADLINE_SECONDS = 0.3
CALLERS = 4
QUEUED = 200


@pytest.mark.rest
@pytest.mark.parametrize("caller", [http1, http2, grpc_unary])
def test_no_request_without_a_deadline_is_lost(models: Path, caller: object) -> None:
    with RunningServer(models) as server, Callers(caller, server, CALLERS) as tally:  # type: ignore[arg-type]
        for times in range(1, 4):
            server.wait_for(lambda n=times: tally.answered > 50 * n, "the load")
            with stopped(server.process.pid):
                write(models, MODEL, 1 + times, affine(1.0, 1.0))  # it comes meanwhile
                threading.Event().wait(STILL_SECONDS)
            before = tally.answered
            server.wait_for(lambda n=before: tally.answered > n + 50, "the load to go on")
        server.wait_for(lambda: server.get(f"/v2/models/{MODEL}/versions/4/ready")[0] == 200, "the version")
        tally.ended.set()
    assert tally.lost == []
    assert tally.refused == 0


def test_deadlines_that_passed_meanwhile_are_told_and_new_connections_taken(models: Path) -> None:
    """What expired is not computed before what did not."""
    request = predict_request(MODEL, [1.0])
    late = predict_request(MODEL, [1.0], f"x-request-timeout-ms: {1000 * DEADLINE_SECONDS:.0f}")
    with RunningServer(models) as server, grpc_calls(server) as call:
        assert call(infer_message(MODEL, 1.0), timeout=30)
        waiting = [connect(server.http_port) for _ in range(2)]
        for one in waiting:
            one.sendall(request)
            assert one.recv(4096).startswith(b"HTTP/1.1 200")
        with stopped(server.process.pid):
            for one in waiting:
                one.sendall(request)
            calls = [call.future(infer_message(MODEL, 1.0), timeout=DEADLINE_SECONDS) for _ in range(QUEUED)]
            arriving = [connect(server.http_port) for _ in range(50)]  # the system takes them
            for number, one in enumerate(arriving):
                one.sendall(late if number % 2 else request)
            codes = Counter(one.exception().code() for one in calls)
            assert codes == {grpc.StatusCode.DEADLINE_EXCEEDED: QUEUED}, "callers do not wait for it"
        for one in waiting:
            assert one.recv(4096).startswith(b"HTTP/1.1 200")
        # A deadline in a head counts from when the server reads it: it cannot know how long that lay there.
        statuses = [one.recv(4096)[9:12] for one in arriving]
        assert set(statuses[::2]) == {b"200"}
        assert set(statuses[1::2]) <= {b"200", b"503", b"504"}
        for one in (*waiting, *arriving):
            one.close()
        does_it_still_serve(server)
        assert server.stop() == 0


def test_a_stop_that_came_meanwhile_is_carried_out(models: Path) -> None:
    with RunningServer(models) as server:
        with connect(server.http_port) as caller:
            assert answer(caller).startswith(b"HTTP/1.1 200")
            with stopped(server.process.pid):
                caller.sendall(http_request("/v2/health/live", b"", method="GET"))
                server.process.send_signal(signal.SIGTERM)
                assert server.process.poll() is None
            assert caller.recv(4096).startswith(b"HTTP/1.1 200")
        assert server.wait_until_ended() == 0
