"""Workers are killed, and no total that a board reads ever falls."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.faults.still_serves import MODEL, does_it_still_serve
from tests.faults.worker_processes import scrape, workers_of, workers_ready
from tests.running_server import RunningServer
from tests.stopped_processes import stopped

NAMES = (
    f'headrace_requests_total{{model="{MODEL}",version="1"}}',
    f'headrace_model_requests_total{{model="{MODEL}"}}',
    'headrace_calls_total{code="200",protocol="REST"}',
)


def test_totals_go_on_when_workers_are_killed(models: Path) -> None:
    with RunningServer(models, "--workers", "2") as server:
        asked = 0
        before = scrape(server)
        for kills in range(1, 4):
            for _ in range(20):
                assert server.post(f"/v1/models/{MODEL}:predict", {"instances": [1.0]})[0] == 200
            asked += 20
            now = scrape(server)
            assert now[NAMES[0]] == now[NAMES[1]] == asked
            os.kill(workers_of(server)[0], signal.SIGKILL)
            server.wait_for(
                lambda n=kills: scrape(server)["headrace_worker_restarts_total"] == n, "it to be counted"
            )
            after = scrape(server)
            for name in NAMES:
                assert after[name] >= now[name] >= before[name], name
            server.wait_for(lambda: workers_ready(server) == 2, "another to serve")
            again = scrape(server)
            assert again[NAMES[0]] == again[NAMES[1]] == asked
            before = again
        does_it_still_serve(server)
        assert server.stop() == 0


@pytest.mark.rest
def test_totals_are_told_for_a_worker_that_stands_still(models: Path) -> None:
    """What it had answered counts, while the others tell of it."""
    with RunningServer(models, "--workers", "2", "--worker-timeout-seconds", "24") as server:
        for _ in range(40):  # of both
            assert server.post(f"/v1/models/{MODEL}:predict", {"instances": [1.0]})[0] == 200
        before = scrape(server)
        assert before[NAMES[0]] == 40
        with stopped(workers_of(server)[0]):
            server.wait_for(lambda: server.count_in_log("gets no new connections") == 1, "it to be noticed")
            for asked in range(1, 6):
                assert server.post(f"/v1/models/{MODEL}:predict", {"instances": [1.0]})[0] == 200
                now = scrape(server)
                assert now[NAMES[0]] == now[NAMES[1]] == 40 + asked
        server.wait_for(lambda: server.count_in_log("answers again") == 1, "it to be seen again")
        assert scrape(server)[NAMES[0]] == 45
        does_it_still_serve(server)
        assert server.stop() == 0
