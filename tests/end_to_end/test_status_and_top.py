"""`headrace status` and `headrace top` against real servers, on a real terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from headrace.cli.main import main
from tests.certificates import Authority
from tests.model_directories import affine, write
from tests.running_server import RunningServer
from tests.waiting import seconds_left
from tools.services.ports import free_ports

OBJECTIVE = "[objective]\nlatency_seconds = 1e-9\ntarget = 0.5\n"  # which nobody keeps


@pytest.fixture
def models(tmp_path: Path) -> Path:
    write(tmp_path / "models", "m", 1, affine(2.0, 1.0), OBJECTIVE)
    return tmp_path / "models"


@contextmanager
def asked(server: RunningServer) -> Iterator[None]:
    """Requests come as long as this is entered."""
    enough = threading.Event()

    def ask() -> None:
        while not enough.is_set():
            server.post("/v1/models/m:predict", {"instances": [1.0, 2.0]})

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


class Screen:
    """``headrace top`` on a terminal."""

    def __init__(self, url: str) -> None:
        self.shown = ""
        self._master, slave = pty.openpty()
        command = [sys.executable, "-m", "headrace", "top", url, "--interval-seconds", "0.2"]
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)

    def wait_for(self, pattern: str) -> None:
        """Read until a pattern comes; what came before it is forgotten."""
        until = time.monotonic() + seconds_left()
        while not (found := re.search(pattern, self.shown)):
            assert time.monotonic() < until, f"{pattern!r} is not on the screen: {self.shown[-2000:]!r}"
            assert self.process.poll() is None, self.shown
            if select.select([self._master], [], [], 0.1)[0]:
                self.shown += os.read(self._master, 65536).decode(errors="replace")
        self.shown = self.shown[found.end() :]

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        until = time.monotonic() + seconds_left()
        while self.process.poll() is None and time.monotonic() < until:
            if select.select([self._master], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self._master, 65536).decode(errors="replace")
                except OSError:  # its other side has closed
                    break
        code = self.process.wait()
        with suppress(OSError):  # its other side has closed, and nothing is left
            while select.select([self._master], [], [], 0)[0] and (more := os.read(self._master, 65536)):
                self.shown += more.decode(errors="replace")
        os.close(self._master)
        return code


def test_status_says_who_breaks_its_objective(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunningServer(models) as server, asked(server):
        assert (
            main(["status", f"http://127.0.0.1:{server.http_port}", "--interval-seconds", "1.5", "--json"])
            == 0
        )
        (model,) = json.loads(capsys.readouterr().out)["models"]
        assert model["versions"] == [{"version": 1, "state": "ready"}]
        assert model["requests_per_second"] > 0
        assert 0 < model["p50_seconds"] <= model["p99_seconds"]
        assert model["objective"]["kept"] == 0
        assert model["objective"]["broken_by"] in {"queue", "compute", "transport"}
        assert (
            main(["top", f"127.0.0.1:{server.http_port}", "--interval-seconds", "0.5"]) == 0
        )  # no terminal: once
        told = capsys.readouterr().out
        assert "BROKEN by" in told
        assert "\x1b" not in told


@pytest.mark.rest
def test_top_waits_for_a_server_that_goes_and_shows_it_when_it_is_back(models: Path) -> None:
    (port,) = free_ports(1)  # which nobody who connects to anybody is given meanwhile
    with RunningServer(models, "--http-port", str(port)) as server, asked(server):
        screen = Screen(f"http://127.0.0.1:{port}")
        screen.wait_for(r"\x1b\[\?1049h")
        screen.wait_for(r"ready, load .*\n.*model .*\n.*m +1\*")
    screen.wait_for("its metrics cannot be read")
    with RunningServer(models, "--http-port", str(port)):
        screen.wait_for("the server answers again")
        screen.wait_for(r"m +1\*")
        assert screen.end() == 0
    assert screen.shown.endswith("\x1b[?25h\x1b[?1049l")


def test_a_server_that_is_not_there_is_an_error_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("status", "top"):
        assert main([verb, "http://127.0.0.1:1"]) == 1
        told = capsys.readouterr().err
        assert told.startswith("headrace: http://127.0.0.1:1: its metrics cannot be read: ")
        assert told.endswith("; is the server running there?\n")


def test_over_https_with_a_key(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority = Authority(tmp_path)
    authority.write_server()
    file, token = tmp_path / "keys.toml", tmp_path / "token"
    assert main(["key", "new", "scraper", "--file", str(file), "--verbs", "metrics"]) == 0
    token.write_text(capsys.readouterr().out)
    keys = ("--access-file", str(file))
    with RunningServer(models, *authority.options(), *keys, tls=authority.context()) as server:
        url = f"https://localhost:{server.http_port}"
        trusted = ["--ca-file", str(authority.path("ca.pem")), "--interval-seconds", "0.1"]
        assert main(["status", url, *trusted, "--token-file", str(token)]) == 0
        assert "https://localhost" in capsys.readouterr().out
        assert main(["status", url, *trusted]) == 2
        assert "a token is required: --token-file FILE" in capsys.readouterr().err
        assert main(["status", url, "--token-file", str(token)]) == 1
        assert "certificate verify failed" in capsys.readouterr().err


def test_over_https_with_a_certificate_of_its_own(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(tmp_path)
    authority.write_server()
    certificate, key = map(str, authority.client_files())
    context = authority.context(as_client=True)
    with RunningServer(models, *authority.options(mutual=True), tls=context) as server:
        url = f"https://localhost:{server.http_port}"
        asked = ["status", url, "--ca-file", str(authority.path("ca.pem")), "--interval-seconds", "0.1"]
        assert main([*asked, "--certificate-file", certificate, "--key-file", key]) == 0
        assert "https://localhost" in capsys.readouterr().out
        assert main(asked) == 1
        assert "its metrics cannot be read" in capsys.readouterr().err
