"""A worker stands still: the others go on, and after a while another takes its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.still_serves import does_it_still_serve
from tests.faults.worker_processes import workers_of, workers_ready
from tests.running_server import RunningServer
from tests.stopped_processes import stop, stopped


@pytest.mark.rest
def test_a_worker_that_does_not_answer_is_replaced(models: Path) -> None:
    with RunningServer(models, "--workers", "2", "--worker-timeout-seconds", "6") as server:
        server.wait_for(lambda: workers_ready(server) == 2, "both to serve")
        hanging = workers_of(server)[0]
        stop(hanging)
        server.wait_for(lambda: server.count_in_log("gets no new connections") == 1, "it to be noticed")
        server.wait_for(lambda: workers_ready(server) == 1, "it to be left out")
        does_it_still_serve(server)
        server.wait_for(lambda: hanging not in workers_of(server), "its end")
        server.wait_for(lambda: len(workers_of(server)) == 2, "another one")
        server.wait_for(lambda: workers_ready(server) == 2, "it to serve")
        does_it_still_serve(server)
        assert server.stop() == 0


@pytest.mark.rest
def test_a_worker_that_answers_again_in_time_stays(models: Path) -> None:
    with RunningServer(models, "--workers", "2", "--worker-timeout-seconds", "21") as server:
        server.wait_for(lambda: workers_ready(server) == 2, "both to serve")
        worker = workers_of(server)[0]
        with stopped(worker):
            server.wait_for(lambda: server.count_in_log("gets no new connections") == 1, "it to be noticed")
        server.wait_for(lambda: server.count_in_log("answers again") == 1, "it to be seen again")
        assert worker in workers_of(server)
        does_it_still_serve(server)
        assert server.stop() == 0
