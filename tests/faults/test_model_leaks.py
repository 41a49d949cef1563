"""A model takes more and more memory: its process is replaced, and the server goes on."""

from __future__ import annotations

import http.client
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.control_groups import entering, group_with_memory
from tests.faults.isolated_models import (
    GRAB,
    HOSTILE,
    LEAK,
    NAME,
    answers,
    ask,
    children_of,
    is_there,
    neighbours,
    restarts,
    write_hostile,
)
from tests.faults.still_serves import does_it_still_serve
from tests.faults.worker_processes import scrape, workers_of, workers_ready
from tests.model_directories import write
from tests.running_server import RunningServer

WORKERS_BYTES = 900 * 2**20


def test_a_leak_is_replaced_without_losing_a_request(models: Path) -> None:
    write_hostile(models, settings="[isolation]\nmemory_bytes = 300_000_000\n")
    with RunningServer(models, "--allow-code") as server, neighbours(server):
        (first,) = children_of(server.process.pid)
        status, said = ask(server, GRAB)
        assert status == 500, said
        server.wait_for(lambda: server.count_in_log("MemoryError") > 0, "the log to say why")

        def leaks() -> bool:
            assert ask(server, 5, LEAK) == (200, [10, 2 * LEAK])
            return bool(restarts(server))

        server.wait_for(leaks, "the process to be replaced")
        assert restarts(server) == {"memory": 1}
        server.wait_for(lambda: not is_there(first), "the first process to end")
        assert answers(server)
        does_it_still_serve(server)


@pytest.mark.rest
def test_a_worker_that_the_system_kills_for_it_is_replaced(models: Path) -> None:
    """The model is in all of them; the largest is killed, and others go on."""
    write(models, NAME, 1, HOSTILE)
    with (
        group_with_memory(WORKERS_BYTES) as group,
        RunningServer(models, "--allow-code", "--workers", "2", prefix=entering(group)) as server,
    ):
        first = workers_of(server)

        def one_is_killed() -> bool:
            with suppress(OSError, http.client.HTTPException):
                ask(server, 5, LEAK)
            return workers_of(server) != first

        server.wait_for(one_is_killed, "the system to kill a worker")
        server.wait_for(lambda: workers_ready(server) == 2, "another to serve")
        assert scrape(server)["headrace_worker_restarts_total"] >= 1
        server.wait_for(lambda: server.count_in_log("SIGKILL") > 0, "a word in the log")
        does_it_still_serve(server)
