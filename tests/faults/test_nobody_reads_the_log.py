"""Whoever collects a server's log hangs: the server goes on, and ends when it is told to."""

from __future__ import annotations

import fcntl
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.waiting import seconds_left

SECONDS = 90.0
BROKEN = 100


class Collected:
    """A server whose standard error somebody else has, who may read it or not."""

    def __init__(self, process: subprocess.Popen[str], port: int, log: int) -> None:
        self.process = process
        self.port = port
        self.log = log

        self.said = b""

    def get(self, path: str) -> bytes:
        """What it answers; nothing where that says that it is not so yet."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            said = answer.read()
            return said if answer.status == 200 else b""
        finally:
            connection.close()

    def read(self) -> None:
        """Read the log to its end."""
        while piece := os.read(self.log, 2**16):
            self.said += piece


@contextmanager
def serving(models: Path, log: int, given: int, *options: str) -> Iterator[Collected]:
    command = [sys.executable, "-m", "headrace", "serve", str(models), "--poll-seconds", "0.1"]
    command += ["--http-port", "0", "--grpc-port", "0", "--drain-lead-seconds", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=given, text=True) as process:
        os.close(given)
        try:
            assert process.stdout is not None
            found = next(found for line in process.stdout if (found := re.search(r"REST .*:(\d+)$", line)))
            server = Collected(process, int(found[1]), log)
            until = time.monotonic() + seconds_left()
            while not server.get("/v2/health/ready"):
                assert time.monotonic() < until, "it is not ready"
                time.sleep(0.05)
            yield server
        finally:
            process.kill()
            os.close(log)


def collector(kind: str) -> tuple[int, int]:
    """What a collector reads, and what the server gets: it holds what a start says, and not much more."""
    if kind == "pipe":
        log, given = os.pipe()
        fcntl.fcntl(log, fcntl.F_SETPIPE_SZ, 2**14)
        return log, given
    ours, theirs = socket.socketpair()  # as the journal of systemd
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**15)
    return ours.detach(), theirs.detach()


def fill(server: Collected, models: Path) -> None:
    """Have the server say far more than its collector holds."""
    for number in range(BROKEN):
        (directory := models / f"broken{number:03}" / "1").mkdir(parents=True)
        (directory / "model.onnx").write_bytes(b"none")
    until = time.monotonic() + seconds_left()
    while b"model.onnx" not in server.get(f"/v1/models/broken{BROKEN - 1:03}"):
        assert time.monotonic() < until, "it does not get on"
        time.sleep(0.05)


@pytest.mark.parametrize(("kind", "workers"), [("pipe", 1), ("socket", 1), ("pipe", 2)])
def test_the_server_answers_and_ends(models: Path, kind: str, workers: int) -> None:
    with serving(models, *collector(kind), "--workers", str(workers)) as server:
        fill(server, models)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait() == 0


def test_a_collector_that_goes_on_is_told_how_much_it_has_missed(models: Path) -> None:
    with serving(models, *collector("pipe")) as server:
        fill(server, models)
        said = threading.Thread(target=server.read, daemon=True)
        said.start()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait() == 0
        said.join(SECONDS)
    lost = re.findall(rb"lines_lost=(\d+)", server.said)
    assert lost
    assert server.said.count(b"version is loading") + sum(map(int, lost)) > BROKEN
