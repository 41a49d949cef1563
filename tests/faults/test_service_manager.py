"""A service manager (systemd) starts the server: what it is told, sockets that it has opened, successors."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.faults.still_serves import MODEL, predict_request
from tests.faults.strict_callers import Callers
from tests.faults.test_handover import http1_new
from tests.faults.test_worker_starts_while_draining import GATED
from tests.model_directories import write
from tests.stopped_processes import stopped
from tests.waiting import seconds_left

SECONDS = 90.0
START = """
import fcntl, os, sys
given, command = [int(one) for one in sys.argv[1].split()], sys.argv[2:]
held = [fcntl.fcntl(one, fcntl.F_DUPFD, 100) for one in given]
for number, one in enumerate(held, 3):
    os.dup2(one, number)
pid = str(os.getpid())
os.environ["WATCHDOG_PID"] = pid
if given:
    os.environ |= {"LISTEN_PID": pid, "LISTEN_FDS": str(len(given))}
os.execv(command[0], command)
"""


class Manager:
    """What a service manager is to a service: a socket for its words, and a way to start it."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "notify"
        self._heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._heard.bind(str(self._path))
        self._heard.settimeout(SECONDS)

    def hear(self) -> list[str]:
        return self._heard.recv(4096).decode().split("\n")

    def until(self, word: str) -> list[str]:
        """Wait for a word; what came with it."""
        until = time.monotonic() + seconds_left()
        while time.monotonic() < until:
            if word in (words := self.hear()):
                return words
        raise AssertionError(f"{word} was not told")

    def silence(self) -> bool:
        """Take what has come; whether nothing more comes for longer than the watchdog allows."""
        self._heard.setblocking(False)
        with suppress(BlockingIOError):
            for _ in range(10_000):
                self._heard.recv(4096)
        time.sleep(1.5)
        with suppress(BlockingIOError):
            return not self._heard.recv(4096)
        self._heard.settimeout(SECONDS)
        return True

    @contextmanager
    def started(
        self, models: Path, *options: str, sockets: tuple[socket.socket, ...] = (), names: str = "http:grpc"
    ) -> Iterator[subprocess.Popen[str]]:
        numbers = [one.fileno() for one in sockets]
        command = [
            sys.executable,
            "-m",
            "headrace",
            "serve",
            str(models),
            "--http-port",
            "0",
            "--grpc-port",
            "0",
        ]
        process = subprocess.Popen(
            [sys.executable, "-c", START, " ".join(map(str, numbers)), *command, *options],
            pass_fds=numbers,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "NOTIFY_SOCKET": str(self._path),
                "WATCHDOG_USEC": "1000000",
                "LISTEN_FDNAMES": names,
            },
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            assert process.stderr is not None
            process.stderr.close()

    def close(self) -> None:
        self._heard.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(tmp_path)
    yield made
    made.close()


def listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0), backlog=1024)


def ask(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
        connection.sendall(predict_request(MODEL, [1.0]))
        return connection.recv(65536)


@pytest.mark.rest
@pytest.mark.parametrize("workers", ["1", "2"])
def test_it_is_told_when_the_server_is_ready_that_it_turns_and_when_it_stops(
    models: Path, manager: Manager, workers: str
) -> None:
    with manager.started(models, "--workers", workers, "--drain-lead-seconds", "0") as process:
        words = manager.until("READY=1")
        assert f"MAINPID={process.pid}" in words
        assert "STATUS=serves 1 model" in words
        for _ in range(3):
            manager.until("WATCHDOG=1")
        with stopped(process.pid):
            assert manager.silence(), "a server that hangs says that it turns"
        manager.until("WATCHDOG=1")
        process.send_signal(signal.SIGTERM)
        manager.until("STOPPING=1")
        assert process.wait() == 0


@pytest.mark.rest
def test_a_restart_loses_no_request_where_the_service_manager_has_the_sockets(
    models: Path, manager: Manager
) -> None:
    with listener() as http, listener() as grpc:
        server = SimpleNamespace(http_port=http.getsockname()[1])
        callers = Callers(http1_new, server, 4, 0.01)  # type: ignore[arg-type]
        with callers as tally:
            for turn in range(1, 4):
                lead = ("--drain-lead-seconds", "0.2")
                with manager.started(models, *lead, sockets=(http, grpc)) as process:
                    manager.until("READY=1")
                    until = time.monotonic() + seconds_left()
                    while tally.answered < 200 * turn and time.monotonic() < until:
                        time.sleep(0.02)
                    if turn == 3:
                        callers.end()
                    process.send_signal(signal.SIGTERM)
                    assert process.wait() == 0
        assert tally.lost == []
        assert tally.answered >= 600


@pytest.mark.parametrize(
    ("names", "options", "said"),
    [
        ("http", (), "expected two sockets, named http and grpc, not 'http'"),
        ("http:grpc", ("--workers", "2"), "need --workers 1"),
    ],
)
def test_sockets_that_a_server_cannot_use_are_refused(
    models: Path, manager: Manager, names: str, options: tuple[str, ...], said: str
) -> None:
    with listener() as http, listener() as grpc:
        both = (http, grpc)[: len(names.split(":"))]
        with manager.started(models, *options, sockets=both, names=names) as process:
            _, error = process.communicate()
            assert (process.returncode, said in error) == (2, True), error


def runs(number: int) -> bool:
    """Whether a process has not ended; one that has, and whose end nobody has asked for, has no command."""
    with suppress(OSError):
        return bool(Path(f"/proc/{number}/cmdline").read_bytes())
    return False


@pytest.mark.parametrize("activated", [False, True])
def test_a_signal_has_the_server_start_its_successor(
    models: Path, manager: Manager, tmp_path: Path, activated: bool
) -> None:
    place = tmp_path / "run"
    place.mkdir(mode=0o700)
    with listener() as http, listener() as grpc:
        sockets = (http, grpc) if activated else ()
        audit = tmp_path / "audit.jsonl"
        options = ("--handover", str(place / "handover"), "--drain-lead-seconds", "0.2")
        options += ("--audit-file", str(audit))
        with manager.started(models, *options, sockets=sockets) as process:
            manager.until("READY=1")
            process.send_signal(signal.SIGUSR2)
            manager.until("RELOADING=1")
            words = manager.until("READY=1")
            successor = next(int(one.partition("=")[2]) for one in words if one.startswith("MAINPID="))
            try:
                assert successor != process.pid
                assert '"action":"start-successor"' in audit.read_text("utf-8")
                assert process.wait() == 0
                if activated:
                    assert b"2.0" in ask(http.getsockname()[1])
            finally:
                os.kill(successor, signal.SIGTERM)
                manager.until("STOPPING=1")
                until = time.monotonic() + seconds_left()
                while runs(successor) and time.monotonic() < until:
                    time.sleep(0.02)


@pytest.mark.parametrize("activated", [False, True])
def test_a_server_with_handover_that_still_loads_ends_when_it_is_told(
    models: Path, manager: Manager, tmp_path: Path, activated: bool
) -> None:
    write(models, "gated", 1, GATED.format(gate=tmp_path / "gate"))
    place = tmp_path / "run"
    place.mkdir(mode=0o700)
    with listener() as http, listener() as grpc:
        sockets = (http, grpc) if activated else ()
        options = ("--allow-code", "--handover", str(place / "handover"))
        with manager.started(models, *options, sockets=sockets) as process:
            assert process.stderr is not None
            assert any("version is loading" in line for line in process.stderr)
            process.send_signal(signal.SIGTERM)
            threading.Thread(target=process.stderr.read, daemon=True).start()
            (tmp_path / "gate").touch() if not activated else None
            assert process.wait() == 0


def test_a_successor_that_hangs_ends_with_the_server(models: Path, manager: Manager, tmp_path: Path) -> None:
    place, config = tmp_path / "run", tmp_path / "config.toml"
    place.mkdir(mode=0o700)
    config.write_text("")
    with manager.started(
        models, "--handover", str(place / "handover"), "--config", str(config), "--drain-lead-seconds", "0"
    ) as process:
        manager.until("READY=1")
        config.unlink()
        os.mkfifo(config)  # as a disk that does not answer
        process.send_signal(signal.SIGUSR2)
        manager.until("RELOADING=1")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        until = time.monotonic() + seconds_left()
        while not (found := children.read_text().split()) and time.monotonic() < until:
            time.sleep(0.02)
        (successor,) = map(int, found)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
        while runs(successor) and time.monotonic() < until:
            time.sleep(0.02)
        assert not runs(successor)
