"""A model answers after the deadline: the caller was told then, and nobody gets what came too late."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from tests.faults.neighbours import Connection
from tests.faults.still_serves import does_it_still_serve, http_request
from tests.faults.worker_processes import scrape
from tests.model_directories import UNPROBED, write
from tests.running_server import RunningServer

ECHO = """
import time

class Model:
    inputs = [("seconds", "FP32", []), ("name", "INT64", [])]
    outputs = [("echo", "INT64", [])]

    def predict(self, inputs):
        time.sleep(float(inputs["seconds"].max()))
        return {"echo": inputs["name"]}
"""
SETTINGS = "[batching]\ninstances = 1\nmax_batch_rows = 4\n" + UNPROBED
LATE_SECONDS = 1.5


def test_late_answers_are_given_to_nobody(models: Path) -> None:
    write(models, "late", 1, ECHO, SETTINGS)
    with RunningServer(models, "--allow-code") as server:

        def ask(name: int, seconds: float, *headers: str) -> tuple[int, object]:
            body = b'{"instances": [{"seconds": %f, "name": %d}]}' % (seconds, name)
            with closing(Connection(server.http_port)) as connection:
                status = connection.send(http_request("/v1/models/late:predict", body, *headers))
                return status, time.monotonic()

        def counted() -> float:
            return scrape(server).get('headrace_outstanding_requests{model="late",version="1"}', 0.0)

        with ThreadPoolExecutor(12) as threads:
            began = time.monotonic()
            late = threads.submit(ask, 1, LATE_SECONDS, "x-request-timeout-ms: 300")
            server.wait_for(lambda: late.done() or counted() > 0, "the model to have it")
            in_time = [threads.submit(ask, 2 + number, 0.0) for number in range(8)]
            status, at = late.result()
            assert status == 504
            assert isinstance(at, float)
            assert [one.result()[0] for one in in_time] == [200] * 8
            assert max(float(str(one.result()[1])) for one in in_time) - began > LATE_SECONDS
        given = []
        for name in range(100, 120):
            status, body = server.post(
                "/v1/models/late:predict", {"instances": [{"seconds": 0, "name": name}]}
            )
            given.append(body["predictions"])
            assert status == 200
        assert given == [[name] for name in range(100, 120)]
        does_it_still_serve(server)
