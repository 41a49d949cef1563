"""No body ends the server or keeps neighbours from their answers, and the worst get what they deserve.

How many milliseconds a neighbour waits is measured by ``benchmarks/door.py``, on a quiet machine: where tests
run, others run, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path

import pytest

from tests.faults.neighbours import Connection, sending, waits
from tests.faults.still_serves import does_it_still_serve
from tests.faults.worst_bodies import WORST, large_numbers, large_text, too_many_binary_texts, write_models
from tests.model_directories import write
from tests.running_server import RunningServer

FAULTS = {0, 500, 502}
SECONDS = 1.0
LARGE_BYTES = 64 * 1024 * 1024
SLICE_SECONDS = 0.001


@pytest.fixture
def menagerie(models: Path) -> Path:
    """Models of all kinds beside the good one."""
    write_models(models)
    return models


@pytest.mark.rest
@pytest.mark.exact
def test_each_of_the_worst_bodies_is_answered_and_so_are_its_neighbours(menagerie: Path) -> None:
    bodies = {one.name: one.request() for one in WORST}
    bodies |= {f"{one.name}, gzip": one.packed(1 << 20) for one in WORST}
    with RunningServer(menagerie, "--allow-code") as server:
        with sending(server.http_port, list(bodies.values()), connections=1) as statuses:
            waits(server.http_port, SECONDS)  # each of its requests is answered
        assert [name for name, status in zip(cycle(bodies), statuses, strict=False) if status in FAULTS] == []
        does_it_still_serve(server)


SWITCH = """
import sys

class Model:
    inputs = [("x", "FP32", [])]
    outputs = [("seconds", "FP32", [])]

    def predict(self, inputs):
        return {"seconds": inputs["x"] * 0 + sys.getswitchinterval()}
"""


def test_the_thread_that_reads_sockets_gets_the_gil_within_a_slice(models: Path) -> None:
    """Python's own 5 ms are never over where turns are shorter: what had come lay there for 0.1 to 0.6 s."""
    write(models, "switch", 1, SWITCH)
    with RunningServer(models, "--allow-code") as server:
        status, said = server.post("/v1/models/switch:predict", {"instances": [0.0]})
    assert status == 200
    assert said["predictions"] < [SLICE_SECONDS]


LARGE = {
    "texts": (large_text, 200),
    "too many binary texts": (too_many_binary_texts, 413),
    **{
        f"numbers, {form}": (partial(large_numbers, form=form), 200)
        for form in ("rows", "columns", "flat", "nested")
    },
}


@pytest.mark.rest
@pytest.mark.parametrize(("request_of", "status"), LARGE.values(), ids=LARGE)
def test_neighbours_of_a_body_of_64_mb_are_answered(
    menagerie: Path, request_of: Callable[[int], bytes], status: int
) -> None:
    request = request_of(LARGE_BYTES - 4096)
    with RunningServer(menagerie, "--allow-code") as server:
        ended = threading.Event()
        statuses = []

        def send() -> None:
            connection = Connection(server.http_port)
            statuses.append(connection.send(request))
            connection.close()
            ended.set()

        sender = threading.Thread(target=send)
        sender.start()
        waits(server.http_port, 120, ended)  # each of its requests is answered
        sender.join()
        assert statuses == [status]
        does_it_still_serve(server)
