"""No body jams the door: a neighbour of the worst ones is answered about as soon as one of good ones.

How many milliseconds a neighbour waits is measured by ``benchmarks/door.py``, on a quiet machine: where tests
run, others run, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.faults.neighbours import Connection, percentile, sending, waits
from tests.faults.still_serves import does_it_still_serve
from tests.faults.worst_bodies import (
    GOOD,
    WORST,
    large_numbers,
    large_text,
    too_many_binary_texts,
    write_models,
)
from tests.model_directories import write
from tests.running_server import RunningServer

SECONDS = 0.5
TRIES = 3
# What jams a door takes 0.2 s or more (12 s with 64 KB, before); the aim, 5 ms, is for benchmarks/door.py.
MOST_LONGER_SECONDS = 0.25
LARGE_BYTES = 64 * 1024 * 1024
SLICE_SECONDS = 0.001
MOST_STALL_SECONDS = 0.5  # it is 0.1 on a quiet machine


@pytest.fixture
def menagerie(models: Path) -> Path:
    """Models of all kinds beside the good one."""
    write_models(models)
    return models


def test_the_worst_bodies_hold_up_neighbours_hardly_more_than_good_ones(menagerie: Path) -> None:
    with RunningServer(menagerie, "--allow-code") as server:

        def beside(requests: list[bytes]) -> float:
            with sending(server.http_port, requests) as statuses:
                waited = percentile(waits(server.http_port, SECONDS), 0.99)
            assert 0 not in statuses
            assert not any(status in (500, 502) for status in statuses)
            return waited

        def longer(request: bytes) -> float:
            """How much longer than beside good bodies, measured now: the machine is never the same."""
            return beside([request]) - max(beside([one.request()]) for one in GOOD)

        wrong = {}
        for one in WORST:
            for name, request in ((one.name, one.request()), (f"{one.name}, gzip", one.packed(1 << 20))):
                waited = beside([request])
                for _ in range(TRIES):
                    if waited > MOST_LONGER_SECONDS:
                        waited = min(waited, longer(request))
                if waited > MOST_LONGER_SECONDS:
                    wrong[name] = round(waited * 1000)
        assert wrong == {}, f"milliseconds longer than beside good bodies: {wrong}"
        does_it_still_serve(server)


SWITCH = """
import sys

class Model:
    inputs = [("x", "FP32", [])]
    outputs = [("seconds", "FP32", [])]

    def predict(self, inputs):
        return {"seconds": inputs["x"] * 0 + sys.getswitchinterval()}
"""


def test_the_thread_that_reads_sockets_has_pythons_lock_within_a_slice(models: Path) -> None:
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


@pytest.mark.parametrize(("request_of", "status"), LARGE.values(), ids=LARGE)
def test_a_body_of_64_mb_holds_up_nobody(
    menagerie: Path, request_of: Callable[[int], bytes], status: int
) -> None:
    request = request_of(LARGE_BYTES - 4096)
    with RunningServer(menagerie, "--allow-code") as server:

        def stall() -> float:
            ended = threading.Event()
            statuses = []

            def send() -> None:
                connection = Connection(server.http_port)
                statuses.append(connection.send(request))
                connection.close()
                ended.set()

            sender = threading.Thread(target=send)
            sender.start()
            longest = max(waits(server.http_port, 60, ended))
            sender.join()
            assert statuses == [status]
            return longest

        longest = stall()
        for _ in range(TRIES):
            if longest > MOST_STALL_SECONDS:
                longest = min(longest, stall())
        assert longest < MOST_STALL_SECONDS, f"a neighbour waited {longest:.3f} s"
