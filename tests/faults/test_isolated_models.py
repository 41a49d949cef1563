"""Isolated models crash, hang and misbehave: their process is replaced, and nobody else notices."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.faults.isolated_models import (
    CRASH,
    CUT,
    GARBLE,
    HANG,
    HELP,
    LEAVE,
    METRICS,
    NAME,
    PREDICT,
    QUIT,
    answers,
    ask,
    children_of,
    is_there,
    neighbours,
    restarts,
    write_hostile,
)
from tests.faults.still_serves import does_it_still_serve
from tests.running_server import RunningServer
from tests.stopped_processes import stop
from tests.waiting import seconds_left

SWAPS = 6


@pytest.fixture
def server(models: Path, request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    """One whose isolated model may take some time, which a crowded machine does not; or what a test says."""
    write_hostile(models, settings=f"[isolation]\ntimeout_seconds = {getattr(request, 'param', 30)}\n")
    with RunningServer(models, "--allow-code") as running:
        server_is_as_it_should_be(running)
        yield running
        does_it_still_serve(running)
        left = children_of(running.process.pid)
        running.stop()
        assert not [child for child in left if is_there(child)]


def server_is_as_it_should_be(server: RunningServer) -> None:
    assert answers(server)
    assert server.get(f"/v2/models/{NAME}/ready")[0] == 200
    assert len(children_of(server.process.pid)) == 1


def test_a_crash_in_native_code_fails_its_own_request_only(server: RunningServer) -> None:
    with neighbours(server):
        for count in (1, 2):
            status, said = ask(server, 1, CRASH)
            assert status == 500
            assert (
                said == "hostile version 1: its process was ended by SIGSEGV while it computed this request"
            )
            server.wait_for(lambda: answers(server), "a new process")
            assert restarts(server) == {"crash": count}
    server.wait_for(lambda: server.count_in_log("Segmentation fault") > 0, "faulthandler's words in the log")


@pytest.mark.rest
def test_while_there_is_no_process_requests_are_refused_at_once(server: RunningServer) -> None:
    for _ in range(3):
        server.wait_for(lambda: answers(server), "a process")
        assert ask(server, CRASH)[0] == 500
    # The third time it is not started again at once.
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
    connection.request("POST", PREDICT, json.dumps({"instances": [1]}))
    response = connection.getresponse()
    said = json.loads(response.read())["error"]
    connection.close()
    assert response.status == 503
    assert int(response.headers["retry-after"]) >= 1
    assert "its process was ended by SIGSEGV; a new one is " in said
    assert server.get(f"/v2/models/{NAME}/ready")[0] != 200
    status = json.loads(server.get(f"/v1/models/{NAME}")[1])["model_version_status"][0]
    assert status["state"] == "AVAILABLE"
    assert "its process was ended by SIGSEGV" in status["status"]["error_message"]
    ready = re.search(rb"headrace_isolated_ready\{[^}]*\} (\S+)", server.get(METRICS)[1])
    assert ready is not None
    assert float(ready[1]) == 0
    server.wait_for(lambda: answers(server), "a new process")
    assert server.get(f"/v2/models/{NAME}/ready")[0] == 200


def test_a_process_that_exits_is_replaced(server: RunningServer) -> None:
    with neighbours(server):
        status, said = ask(server, LEAVE)
        assert (status, "ended by itself with exit code 0" in str(said)) == (500, True)
        server.wait_for(lambda: answers(server), "a new process")
    assert restarts(server) == {"exit": 1}


@pytest.mark.rest
@pytest.mark.parametrize("server", [1], indirect=True)
def test_a_hang_is_answered_at_the_deadline_and_the_process_is_replaced(server: RunningServer) -> None:
    with neighbours(server):
        (process,) = children_of(server.process.pid)
        assert ask(server, HANG, seconds=0.3)[0] == 504
        server.wait_for(lambda: not is_there(process), "the process to be ended")
        server.wait_for(lambda: answers(server), "a new process")
        status, said = ask(server, HANG)
        assert status == 500
        assert "because a batch took longer than isolation.timeout_seconds = 1" in str(said)
        server.wait_for(lambda: answers(server), "a new process")
    assert restarts(server) == {"hang": 2}


@pytest.mark.parametrize("server", [1], indirect=True)
def test_a_process_that_is_stopped_is_replaced(server: RunningServer) -> None:
    with neighbours(server):
        (process,) = children_of(server.process.pid)
        stop(process)
        assert ask(server, 1)[0] == 500
        server.wait_for(lambda: answers(server), "a new process")
        assert not is_there(process)


def test_errors_of_a_healthy_model_are_reported_as_in_process(server: RunningServer) -> None:
    (process,) = children_of(server.process.pid)
    with neighbours(server):
        assert ask(server, 3, GARBLE) == (200, [6, 2 * GARBLE])
        status, said = ask(server, 3, CUT)
        assert (status, "for a batch of 2 rows" in str(said)) == (500, True)
        status, said = ask(server, QUIT)
        assert (status, said) == (500, "the model failed; the server's log says more")
        server.wait_for(
            lambda: any(r"\xff\xfe no text \x1b[2J" in line for line in server.errors), "its words"
        )
    assert children_of(server.process.pid) == [process], "the same process goes on"
    assert answers(server)


def test_nothing_is_left_when_the_server_is_killed(models: Path) -> None:
    write_hostile(models)
    with RunningServer(models, "--allow-code") as server:
        (process,) = children_of(server.process.pid)
        with ThreadPoolExecutor(1) as caller:
            hanging = caller.submit(ask, server, HANG)
            server.wait_for(
                lambda: b'outstanding_requests{model="hostile",version="1"} 1' in server.get(METRICS)[1],
                "the call",
            )
            server.kill()
            assert isinstance(hanging.exception(30), OSError | http.client.HTTPException)
    until = time.monotonic() + seconds_left()
    while is_there(process):
        assert time.monotonic() < until
        time.sleep(0.02)


def test_programs_that_a_model_has_started_end_with_its_process(models: Path) -> None:
    """After a crash, and when a terminal interrupts the server."""
    write_hostile(models)
    with RunningServer(models, "--allow-code") as server:

        def started() -> tuple[list[int], Path]:
            (process,) = children_of(server.process.pid)
            assert os.getpgid(process) == process, "a terminal would interrupt it as well"
            assert ask(server, 3, HELP) == (200, [6, 2 * HELP])
            programs = children_of(process)
            assert len(programs) == 2, "a program, and Python's tracker of shared memory"
            shared = Path(f"/dev/shm/hostile-{process}")
            assert shared.exists()
            return programs, shared

        programs, shared = started()
        assert ask(server, CRASH)[0] == 500
        server.wait_for(lambda: answers(server), "a new process")
        server.wait_for(lambda: not any(map(is_there, programs)), "the programs to end")
        assert not shared.exists(), "the tracker had no time to remove it"
        programs, shared = started()
        server.process.send_signal(signal.SIGINT)
        server.wait_until_ended()
        assert not any(map(is_there, programs))
        assert not shared.exists()


def test_requests_get_the_default_while_there_is_no_process(models: Path) -> None:
    write_hostile(models, settings="[default]\nvalues = { y = 7 }\n")
    with RunningServer(models, "--allow-code") as server:
        server_is_as_it_should_be(server)
        assert ask(server, CRASH)[0] == 500

        def is_default() -> bool:
            status, said = ask(server, 1)
            assert status == 200
            if said == [2]:  # it was started at once
                assert ask(server, CRASH)[0] in (200, 500)
            return said == [7]

        server.wait_for(is_default, "a default answer")
        server.wait_for(lambda: answers(server), "a new process")


@pytest.mark.rest
@pytest.mark.exact
def test_versions_are_swapped_and_reloaded_without_losing_a_request_or_a_descriptor(models: Path) -> None:
    write_hostile(models)
    with RunningServer(models, "--allow-code") as server, neighbours(server):
        server_is_as_it_should_be(server)
        lost, ended = list[object](), threading.Event()

        def load() -> None:
            while not ended.is_set():
                answer = ask(server, 4)
                if answer != (200, [8]):
                    lost.append(answer)

        thread = threading.Thread(target=load)
        thread.start()
        opened = descriptors(server)
        for version in range(2, 2 + SWAPS):
            write_hostile(models, version=version)
            ready = f"/v2/models/{NAME}/versions/{version}/ready"
            server.wait_for(lambda ready=ready: server.get(ready)[0] == 200, f"version {version}")
            server.wait_for(lambda: len(children_of(server.process.pid)) == 1, "the old process to end")
        # Connections come and go, and an old version's are closed a moment after its process has ended.
        server.wait_for(
            lambda: descriptors(server) <= opened + 4, "the old versions' descriptors to be closed"
        )
        ended.set()
        thread.join(120)
        assert lost == []


def descriptors(server: RunningServer) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def test_replaced_files_are_not_loaded_by_a_restarted_process(models: Path) -> None:
    """A process that is started again loads what was checked before, or nothing."""
    write_hostile(models, settings="[isolation]\ntimeout_seconds = 5\n")
    version = models / NAME / "1"
    marker = models.parent / "was_run"
    with RunningServer(models, "--allow-code") as server:
        assert answers(server)
        (version / "model.py").write_text(f"open({str(marker)!r}, 'w')\n")
        (version / "model.py").chmod(0o666)
        assert ask(server, 1, CRASH)[0] == 500
        server.wait_for(
            lambda: any("others may write model.py (mode 0666" in line for line in server.errors),
            "the refusal",
        )
        assert ask(server, 21)[0] == 503
        assert not marker.exists()
        does_it_still_serve(server)
