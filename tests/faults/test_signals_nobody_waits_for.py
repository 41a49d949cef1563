"""Signals come early, to the wrong process, or to a server that has no use for them: none ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.faults.test_worker_starts_while_draining import GATED
from tests.faults.worker_processes import children_of, workers_of, workers_ready
from tests.model_directories import affine, write
from tests.running_server import RunningServer

SIGNALS = (signal.SIGHUP, signal.SIGUSR2)
HANGS = """
import {loop}, asyncio, os, sys
from headrace.server.process import ends_in_time

async def served():
    asyncio.get_running_loop().run_in_executor(None, os.read, os.pipe()[0], 1)
    return 3

sys.exit({loop}.run(ends_in_time(served())))
"""


def is_told(server: RunningServer, number: signal.Signals) -> bool:
    return server.count_in_log(f"{number.name}: ") > 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_server_that_has_no_use_for_them_goes_on(models: Path, workers: str) -> None:
    """Also where a service manager sends them to all processes of the service."""
    write(models, "m", 1, affine(1.0, 1.0))
    with RunningServer(models, "--workers", workers) as server:
        if workers == "2":
            server.wait_for(lambda: workers_ready(server) == 2, "both workers")
        processes = [
            server.process.pid,
            *workers_of(server),
            *children_of(server, b"headrace.sealed_memory.keeper"),
        ]
        assert len(processes) == (1 if workers == "1" else 4)
        for number in SIGNALS:
            for process in processes:
                os.kill(process, number)
            server.wait_for(lambda number=number: is_told(server, number), "a word about it")
        assert server.get("/v2/health/ready")[0] == 200
        assert server.count_in_log("a worker has ended") == 0


def test_a_server_that_still_loads_goes_on(models: Path, tmp_path: Path) -> None:
    write(models, "gated", 1, GATED.format(gate=tmp_path / "gate"))
    server = RunningServer(models, "--allow-code", "--workers", "2")
    server.wait_for(lambda: server.count_in_log("version is loading  model=gated") > 0, "it to load")
    for number in SIGNALS:
        server.process.send_signal(number)
        server.wait_for(lambda number=number: is_told(server, number), "a word about it")
    (tmp_path / "gate").touch()
    with server:
        assert server.get("/v2/models/gated/ready")[0] == 200


def test_a_certificate_that_became_a_pipe_is_refused_and_the_server_stops_when_it_is_told(
    models: Path, tmp_path: Path
) -> None:
    """It was waited for, and the thread that did kept the process for ever."""
    write(models, "m", 1, affine(1.0, 1.0))
    authority = Authority(tmp_path)
    authority.write_server()
    with RunningServer(models, *authority.options(), tls=authority.context()) as server:
        authority.path("server.pem").unlink()
        os.mkfifo(authority.path("server.pem"))
        server.process.send_signal(signal.SIGHUP)
        server.wait_for(lambda: server.count_in_log("server.pem cannot be read") > 0, "the refusal")
        assert server.stop() == 0


@pytest.mark.rest
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_thread_that_hangs_does_not_keep_the_process(loop: str) -> None:
    """In a read of a file on a network disk, say, which no signal ends."""
    ended = subprocess.run(
        [sys.executable, "-c", HANGS.format(loop=loop)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (3, "a thread did not end in time; exiting without it\n")
