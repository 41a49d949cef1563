"""The supervisor process of several workers is killed: the workers end, too, and nothing stays."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.still_serves import MODEL, does_it_still_serve
from tests.faults.test_worker_starts_while_draining import GATED
from tests.faults.worker_processes import connections_of, is_worker, workers_of, workers_ready
from tests.model_directories import write
from tests.running_server import RunningServer
from tests.waiting import seconds_left, until
from tools.services.ports import free_ports


def test_nothing_is_left_of_a_server_whose_supervisor_is_killed(models: Path) -> None:
    ports = tuple(map(str, free_ports(2)))  # which nobody who connects to anybody is given meanwhile
    with RunningServer(models, "--workers", "2", "--http-port", ports[0], "--grpc-port", ports[1]) as server:
        left = workers_of(server)
        assert server.kill() == -9
        until(lambda: not any(map(is_worker, left)))
    with RunningServer(models, "--workers", "2", "--http-port", ports[0], "--grpc-port", ports[1]) as server:
        does_it_still_serve(server)
        assert server.stop() == 0


@pytest.mark.rest
def test_a_worker_that_still_loads_ends_with_it(models: Path, tmp_path: Path) -> None:
    """It has accepted nothing, and would keep the ports from a server that is started again."""
    gate = tmp_path / "gate"
    gate.touch()
    write(models, "gated", 1, GATED.format(gate=gate))
    with RunningServer(models, "--allow-code", "--workers", "2") as server:
        server.wait_for(lambda: workers_ready(server) == 2, "both to serve")
        gate.unlink()
        loading = server.count_in_log("version is loading")
        os.kill(workers_of(server)[0], signal.SIGKILL)
        server.wait_for(lambda: server.count_in_log("version is loading") > loading, "another one to load")
        left = workers_of(server)
        assert server.kill() == -9
        until(lambda: not any(map(is_worker, left)))
        until(lambda: server.count_in_log("this worker has accepted no connection yet, and exits") == 1)
        assert server.count_in_log("while models are still loading") == 0


HANGS = """
import sys

if "headrace.cli.worker" in sys.orig_argv:
    import pathlib
    import signal
    import time

    def hang(*_):
        pathlib.Path({file!r}).touch()
        time.sleep(10**6)

    signal.signal(signal.SIGUSR1, hang)
"""


@pytest.mark.rest
def test_a_worker_whose_serving_thread_hangs_ends_too(models: Path, tmp_path: Path) -> None:
    """Nobody else would end it, and it keeps the ports."""
    hangs = tmp_path / "hangs"
    (tmp_path / "sitecustomize.py").write_text(HANGS.format(file=str(hangs)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
        with RunningServer(models, "--workers", "2", "--drain-seconds", "1") as server:
            hanging = workers_of(server)[0]
            os.kill(hanging, signal.SIGUSR1)
            until(hangs.exists)
            server.process.kill()  # its output ends with the worker's only
            try:
                until(lambda: not is_worker(hanging))
            finally:
                with suppress(ProcessLookupError):
                    os.kill(hanging, signal.SIGKILL)
            assert server.wait_until_ended() == -9


REQUEST = b'{"instances": [1.0]}'
HEAD = b"POST /v1/models/%s:predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"


def started_again(models: Path, *options: str) -> RunningServer:
    """A server that is started until the ports can be had, as a service manager does."""
    deadline = time.monotonic() + seconds_left()
    while True:
        server = RunningServer(models, *options)
        try:
            return server.__enter__()
        except AssertionError:
            assert time.monotonic() < deadline, "the ports stay taken"


@pytest.mark.parametrize(
    ("options", "number"),
    [(("--workers", "2"), signal.SIGKILL), ((), signal.SIGTERM)],
    ids=["the supervisor is killed", "one process is told to stop"],
)
def test_the_ports_are_free_while_a_request_is_still_read(
    models: Path, options: tuple[str, ...], number: signal.Signals
) -> None:
    """Its caller takes his time; whoever starts the server again does not wait for him. He is answered."""
    with RunningServer(models, "--drain-seconds", "300", *options) as server:
        ports = ("--http-port", str(server.http_port), "--grpc-port", str(server.grpc_port))
        processes = workers_of(server) or [server.process.pid]
        with socket.create_connection(("127.0.0.1", server.http_port)) as caller:
            caller.settimeout(60)
            caller.sendall(HEAD % (MODEL.encode(), len(REQUEST)) + REQUEST[:1])
            server.wait_for(
                lambda: any(connections_of(one, server) for one in processes), "the half request to come"
            )
            server.process.send_signal(number)
            following = started_again(models, *options, *ports)
            try:
                does_it_still_serve(following)
                caller.sendall(REQUEST[1:])
                assert caller.recv(65536).startswith(b"HTTP/1.1 200")
            finally:
                assert following.stop() == 0
