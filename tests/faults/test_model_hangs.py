"""A model hangs: callers hear of it at their deadline, others are answered, and the server ends."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from tests.faults.neighbours import Connection
from tests.faults.still_serves import does_it_still_serve, grpc_calls, http_request, infer_message
from tests.faults.worker_processes import workers_of, workers_ready
from tests.model_directories import affine, write
from tests.running_server import RunningServer

HANGS = """
import ctypes
import threading

class Model:
    inputs = [("x", "FP32", [])]
    outputs = [("y", "FP32", [])]

    def predict(self, inputs):
        x = inputs["x"]
        if (x == -1).any():
            threading.Event().wait()
        if (x == -2).any():
            ctypes.PyDLL(None).sleep(3600)  # with the GIL
        return {"y": x}
"""
SMALL = "[batching]\ninstances = 1\nmax_batch_rows = 1\nmax_queue_rows = 4\n"
PREDICT = "/v1/models/hangs:predict"
DEADLINE_SECONDS = 0.5
OPTIONS = ("--allow-code", "--drain-seconds", "1")


def asking(value: float) -> bytes:
    return http_request(
        PREDICT, b'{"instances": [%f]}' % value, f"x-request-timeout-ms: {1000 * DEADLINE_SECONDS:.0f}"
    )


def test_callers_are_told_at_their_deadline_and_the_queue_is_bounded(models: Path) -> None:
    """Its only place is taken for ever, so that no call after it is computed either."""
    write(models, "hangs", 1, HANGS, SMALL)
    with RunningServer(models, *OPTIONS) as server:

        def ask(value: float) -> int:
            with closing(Connection(server.http_port)) as connection:
                return connection.send(asking(value))

        assert ask(-1.0) == 504
        with ThreadPoolExecutor(16) as threads:
            statuses = Counter(threads.map(ask, [1.0] * 48))
        assert set(statuses) <= {503, 504}, "none is computed, and none waits for ever"
        with grpc_calls(server) as call, pytest.raises(grpc.RpcError) as told:
            call(infer_message("hangs", 1.0), timeout=DEADLINE_SECONDS)
        assert told.value.code() in {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE}
        does_it_still_serve(server)
        began = time.monotonic()
        assert server.stop() == 0
        (said,) = re.findall(
            r"stopped while a model was still at work\s+after_seconds=([0-9.]+)", "\n".join(server.errors)
        )
        assert 1.0 <= float(said) <= time.monotonic() - began + 0.1, "how long it took, not what was set"


def test_a_new_version_takes_the_place_of_one_that_hangs(models: Path) -> None:
    write(models, "hangs", 1, HANGS, SMALL)
    with RunningServer(models, *OPTIONS) as server, closing(Connection(server.http_port)) as caller:
        assert caller.send(asking(-1.0)) == 504
        write(models, "hangs", 2, affine(1.0, 0.0))
        server.wait_for(lambda: caller.send(asking(1.0)) == 200, "the new version")
        does_it_still_serve(server)
        assert server.stop() == 0


@pytest.mark.rest
def test_a_worker_whose_model_hangs_with_pythons_lock_is_replaced(models: Path) -> None:
    """Nothing else of its process goes on, and only other processes can notice."""
    write(models, "hangs", 1, HANGS)
    options = (*OPTIONS, "--workers", "2", "--worker-timeout-seconds", "4")
    with RunningServer(models, *options) as server, closing(Connection(server.http_port)) as caller:
        before = workers_of(server)
        assert caller.send(asking(-2.0)) == 0, "its connection ends with the process"
        server.wait_for(
            lambda: len(set(workers_of(server)) - set(before)) == 1 and workers_ready(server) == 2, "another"
        )
        assert sum(os.path.exists(f"/proc/{one}") for one in before) == 1
        does_it_still_serve(server)
        assert server.stop() == 0
