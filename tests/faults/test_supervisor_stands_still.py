"""The supervisor of the workers stands still: they say so, and answer; it goes on, and so does all else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.still_serves import does_it_still_serve
from tests.faults.worker_processes import workers_ready
from tests.running_server import RunningServer
from tests.stopped_processes import stopped


@pytest.mark.rest
def test_its_workers_answer_and_say_so(models: Path) -> None:
    with RunningServer(models, "--workers", "2", "--worker-timeout-seconds", "2") as server:
        server.wait_for(lambda: workers_ready(server) == 2, "both to be ready")
        with stopped(server.process.pid):
            server.wait_for(
                lambda: server.count_in_log("the supervisor has been silent") >= 2, "it to be said"
            )
            does_it_still_serve(server)
            assert server.get("/metrics")[0] == 503
        server.wait_for(lambda: server.count_in_log("the supervisor answers again") >= 2, "it to go on")
        server.wait_for(lambda: workers_ready(server) == 2, "both to be ready again")
        assert server.stop() == 0
