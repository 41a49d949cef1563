"""A server that is to take another one's place cannot, or dies, or hangs: the running one goes on."""

from __future__ import annotations

import json
import signal
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.still_serves import MODEL
from tests.faults.strict_callers import Callers, http1
from tests.faults.test_worker_starts_while_draining import GATED
from tests.model_directories import write
from tests.running_server import RunningServer
from tests.stopped_processes import stopped

SECONDS = 60.0


@pytest.fixture
def place(tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    return directory / "handover"


def started(models: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "headrace", "serve", str(models), "--http-port", "0", "--grpc-port", "0"]
    return subprocess.Popen(
        [*command, *options], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )


def ended(models: Path, *options: str) -> tuple[int, str]:
    """Start a server that gives up: its code, and its last words."""
    process = started(models, *options)
    try:
        _, said = process.communicate()
    finally:
        process.kill()
        process.wait()
    return process.returncode, said


def still_hands_over(server: RunningServer, models: Path, place: Path) -> None:
    """The running server answers, and one that can takes its place."""
    assert server.post(f"/v1/models/{MODEL}:predict", {"instances": [1.0]})[0] == 200
    with RunningServer(models, "--handover", str(place)) as after:
        assert server.wait_until_ended() == 0
        assert after.post(f"/v1/models/{MODEL}:predict", {"instances": [1.0]})[0] == 200


def test_a_model_that_is_not_served_by_the_new_one(models: Path, place: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with RunningServer(models, "--handover", str(place)) as server:
        code, said = ended(tmp_path / "empty", "--handover", str(place))
        assert (code, f"{MODEL} is served by the running server, but not by this one" in said) == (1, True), (
            said
        )
        still_hands_over(server, models, place)


def test_a_version_that_fails_to_load_in_the_new_one(models: Path, place: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken" / MODEL / "1"
    broken.mkdir(parents=True)
    (broken / "model.onnx").write_bytes(b"none")
    with RunningServer(models, "--handover", str(place)) as server:
        code, said = ended(tmp_path / "broken", "--handover", str(place))
        assert (code, "is ready in the running server, but not here" in said) == (1, True), said
        still_hands_over(server, models, place)


def test_another_port_or_host_is_refused(models: Path, place: Path) -> None:
    with RunningServer(models, "--handover", str(place)) as server:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
        code, said = ended(models, "--handover", str(place), "--http-port", str(port))
        assert (code, f"--http-port: expected {server.http_port}" in said) == (2, True), said
        code, said = ended(models, "--handover", str(place), "--host", "127.0.0.2")
        assert (code, "host: expected 127.0.0.1" in said) == (2, True), said
        still_hands_over(server, models, place)


@pytest.mark.rest
def test_a_running_server_that_hangs_is_not_taken_over(models: Path, place: Path) -> None:
    with RunningServer(models, "--handover", str(place)) as server:
        with stopped(server.process.pid):
            code, said = ended(models, "--handover", str(place))
        assert (code, "has not answered for 10 s" in said) == (1, True), said
        still_hands_over(server, models, place)


def test_a_new_server_that_is_killed_while_it_loads_costs_nothing(models: Path, place: Path) -> None:
    with (
        RunningServer(models, "--handover", str(place)) as server,
        Callers(http1, server, 4, 0.01) as tally,
    ):
        for signals in ((signal.SIGKILL,), (signal.SIGSTOP, signal.SIGKILL), (signal.SIGTERM,)):
            before = server.count_in_log("the handover to a new server was aborted")
            begun = server.count_in_log("about to take over")
            process = started(models, "--handover", str(place))
            server.wait_for(
                lambda begun=begun: server.count_in_log("about to take over") > begun, "it to begin"
            )
            for number in signals:
                process.send_signal(number)
            process.communicate()
            server.wait_for(
                lambda before=before: (
                    server.count_in_log("the handover to a new server was aborted") > before
                ),
                "its end",
            )
        before = tally.answered
        server.wait_for(lambda: tally.answered > before + 20, "answers")
        tally.ended.set()
    assert (tally.lost, tally.refused) == ([], 0)


def test_a_server_that_ends_takes_the_one_that_waits_for_it_along(models: Path, place: Path) -> None:
    hello = b'{"type":"hello","headrace":"x","protocols":[1]}'
    with RunningServer(models, "--handover", str(place)) as server, said_by(place, hello) as taker:
        assert b'"type":"given"' in taker.recv(65536)
        code, said = ended(models, "--handover", str(place))
        assert (code, "another server is about to take over" in said) == (1, True), said
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_until_ended() == 0
        assert taker.recv(1024) in (b"", b"d")
    assert not place.exists()


def administration(server: RunningServer) -> list[str]:
    return [line for line in server.output if line.startswith("  administration  ")]


def said_by(place: Path, message: bytes) -> socket.socket:
    taker = socket.socket(socket.AF_UNIX)
    taker.settimeout(SECONDS)
    taker.connect(str(place))
    taker.sendall(struct.pack("<I", len(message)) + message)
    return taker


def test_another_protocol_is_refused_with_both_releases(models: Path, place: Path) -> None:
    with RunningServer(models, "--handover", str(place)) as server:
        with said_by(place, b'{"type":"hello","headrace":"99.0","protocols":[99],"more":1}') as taker:
            said = json.loads(taker.recv(65536)[4:])
            assert said["type"] == "refused"
            assert "speaks handover protocol 1, not 99" in said["why"]
            assert taker.recv(1) == b""
        still_hands_over(server, models, place)


@pytest.mark.parametrize("message", [b"", b"{", b'{"type":"taken"}', b"\xff" * 100])
def test_whatever_else_is_said_is_passed_over(models: Path, place: Path, message: bytes) -> None:
    with RunningServer(models, "--handover", str(place)) as server:
        for number, content in enumerate((struct.pack("<I", len(message)) + message, b"\xff" * 4), 1):
            with socket.socket(socket.AF_UNIX) as taker:
                taker.settimeout(SECONDS)
                taker.connect(str(place))
                taker.sendall(content)
                with suppress(ConnectionResetError):  # it has not read all of that
                    assert taker.recv(1) == b""
            server.wait_for(
                lambda number=number: (
                    server.count_in_log("the handover to a new server was aborted") == number
                ),
                "its end",
            )
        assert server.count_in_log("too large a message: 4294967295 bytes") == 1
        still_hands_over(server, models, place)


def test_the_socket_of_a_killed_server_is_replaced(models: Path, place: Path) -> None:
    with RunningServer(models, "--handover", str(place)) as server:
        server.kill()
    assert place.exists()
    with RunningServer(models, "--handover", str(place)):
        assert place.stat().st_mode & 0o777 == 0o600
    assert not place.exists()


def test_a_directory_that_others_can_write_is_refused(models: Path, place: Path) -> None:
    place.parent.chmod(0o770)
    code, said = ended(models, "--handover", str(place))
    assert (code, "expected a directory that only this user can write" in said) == (2, True), said
    place.parent.chmod(0o700)
    place.write_text("mine")
    code, said = ended(models, "--handover", str(place))
    assert (code, "is something else: remove it" in said) == (2, True), said
    assert place.read_text() == "mine"
    code, said = ended(models, "--handover", str(place), "--grpc-server", "grpcio")
    assert (code, "only h2corn hands ports over" in said) == (2, True), said


def test_administration_is_handed_over_too(models: Path, place: Path) -> None:
    path = place.with_name("admin")
    options = ("--handover", str(place), "--admin-port", "0", "--admin-socket", str(path))
    with RunningServer(models, *options, "--max-connection-age-seconds", "1") as server:
        server.wait_for(lambda: len(administration(server)) == 2, "the addresses")
        port = administration(server)[0].rpartition(":")[2]
        with RunningServer(models, *options, "--max-connection-age-seconds", "1") as after:
            assert server.wait_until_ended() == 0
            after.wait_for(lambda: len(administration(after)) == 2, "the addresses")
            assert administration(after) == administration(server)
            with socket.socket(socket.AF_UNIX) as asking:
                asking.settimeout(SECONDS)
                asking.connect(str(path))
                asking.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: a\r\n\r\n")
                assert asking.recv(1024).startswith(b"HTTP/1.1")
            with socket.create_connection(("127.0.0.1", int(port)), timeout=SECONDS) as asking:
                asking.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: a\r\n\r\n")
                assert asking.recv(1024).startswith(b"HTTP/1.1")


def test_a_path_that_cannot_be_had_any_more(models: Path, place: Path, tmp_path: Path) -> None:
    """Before the place is taken, the new server gives up; after that it serves, without the path."""
    gate = tmp_path / "gate"
    gate.touch()
    write(models, "gated", 1, GATED.format(gate=gate))
    options = ("--allow-code", "--handover", str(place))
    with RunningServer(models, *options) as server:
        gate.unlink()
        process = started(models, *options)
        try:
            in_the_way = place.with_name(f".{place.name}.{process.pid}")
            in_the_way.mkdir()
            server.wait_for(lambda: server.count_in_log("about to take over") > 0, "it to begin")
            gate.touch()
            _, said = process.communicate()
        finally:
            process.kill()
            process.wait()
        assert (process.returncode, f"cannot listen at {place}" in said) == (2, True), said
        in_the_way.rmdir()
        gate.unlink()
        after = RunningServer(models, *options)
        try:
            server.wait_for(lambda: server.count_in_log("about to take over") > 1, "it to begin")
            place.unlink()
            place.mkdir()
            gate.touch()
            with after:
                assert server.wait_until_ended() == 0
                after.wait_for(
                    lambda: after.count_in_log("no other server can take over from it") > 0, "its word"
                )
                assert after.post(f"/v1/models/{MODEL}:predict", {"instances": [1.0]})[0] == 200
                assert after.stop() == 0
        finally:
            after.process.kill()
    assert [one.name for one in place.parent.iterdir()] == [place.name]
