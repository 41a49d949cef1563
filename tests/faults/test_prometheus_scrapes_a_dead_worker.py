"""A worker is killed while Prometheus scrapes: the server is up all the time, and no total falls."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.faults.still_serves import MODEL, does_it_still_serve
from tests.faults.worker_processes import workers_of, workers_ready
from tests.prometheus import scraping
from tests.running_server import RunningServer

COUNTED = f'headrace_model_requests_total{{model="{MODEL}"}}'
TOTALS = (
    "headrace_requests_total",
    "headrace_model_requests_total",
    "headrace_model_rows_total",
    "headrace_model_request_seconds_count",
    "headrace_calls_total",
    "headrace_worker_restarts_total",
)


@pytest.mark.rest
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Debian's package prometheus is not installed")
def test_the_server_stays_up_and_no_total_falls(models: Path, tmp_path: Path) -> None:
    with RunningServer(models, "--workers", "2") as server:
        target = {"targets": [f"127.0.0.1:{server.http_port}"]}
        with scraping(
            tmp_path / "prometheus", {"job_name": "headrace", "static_configs": [target]}
        ) as prometheus:
            asked = 0

            def ask_and_see() -> None:
                nonlocal asked
                for _ in range(20):
                    assert server.post(f"/v1/models/{MODEL}:predict", {"instances": [1.0]})[0] == 200
                asked += 20
                server.wait_for(lambda: prometheus.values(COUNTED) == [asked], "Prometheus to know of them")

            ask_and_see()
            for _ in range(2):
                os.kill(killed := workers_of(server)[0], signal.SIGKILL)
                # It may be about to accept a connection; it does not any more when it is waited for.
                server.wait_for(lambda n=killed: not os.path.exists(f"/proc/{n}"), "its end")
                ask_and_see()  # while a worker is missing
                server.wait_for(lambda: workers_ready(server) == 2, "another to serve")
                ask_and_see()
            assert prometheus.values("min_over_time(up[10m])") == [1.0]
            assert prometheus.values("count_over_time(up[10m])")[0] > 4
            for name in TOTALS:
                assert set(prometheus.values(f"resets({name}[10m])")) == {0.0}, name
            assert prometheus.values("headrace_worker_restarts_total") == [2.0]
        does_it_still_serve(server)
