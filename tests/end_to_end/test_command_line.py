"""The command: what it says, and the codes it ends with."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.faults.held import held_until
from tests.model_directories import affine, write
from tests.running_server import RunningServer


def headrace(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", *map(str, words)]
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "120"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize(
    "words", [(), ("serve",), ("example",), ("versions",), ("rollback",), ("hold",)], ids=" ".join
)
def test_help_tells_what_there_is_with_an_example(words: tuple[str, ...]) -> None:
    ran = headrace(*words, "--help")
    assert ran.returncode == 0
    assert ran.stderr == ""
    assert ran.stdout.startswith("usage: headrace")
    assert "headrace " in ran.stdout.partition("example")[2]


def test_the_version_is_that_of_the_package() -> None:
    import headrace as package

    ran = headrace("--version")
    assert (ran.returncode, ran.stdout.strip()) == (0, f"headrace {package.__version__}")


WRONG = {
    "no verb": ((), 2, "serve the models in a directory"),
    "no tool": (("stream",), 2, "draw rows from a hidden model"),
    "an unknown verb": (("swerve",), 2, "swerve"),
    "an unknown option": (("serve", "models", "--quick"), 2, "--quick"),
    "a port that is no number": (
        ("serve", "models", "--http-port", "http"),
        2,
        "http-port: expected a whole number",
    ),
    "a port that cannot be": (("serve", ".", "--http-port", "70000"), 2, "--http-port: expected"),
    "nothing to serve": (("serve",), 2, "nothing to serve"),
    "a directory that is missing": (("serve", "no-such-directory"), 2, "headrace example no-such-directory"),
    "a configuration that is missing": (("serve", ".", "--config", "no-such-file"), 2, "no-such-file"),
    "versions of a missing directory": (("versions", "no-such-directory"), 2, "no-such-directory"),
    "a rollback without a model": (("rollback",), 2, "DIR/NAME"),
    "a rollback of a missing model": (("rollback", "no-such-model"), 2, "no-such-model"),
}


@pytest.mark.parametrize(("words", "code", "says"), WRONG.values(), ids=WRONG)
def test_wrong_usage_is_explained_without_a_traceback(words: tuple[str, ...], code: int, says: str) -> None:
    ran = headrace(*words)
    assert ran.returncode == code, ran
    assert ran.stdout == ""
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_wrong_configuration_names_the_setting(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text("http_prot = 1\n", "utf-8")
    ran = headrace("serve", tmp_path, "--config", file)
    assert ran.returncode == 2
    assert "did you mean http_port?" in ran.stderr


def test_the_example_is_served_with_a_table_and_a_line_to_try(tmp_path: Path) -> None:
    ran = headrace("example", tmp_path / "models")
    assert ran.returncode == 0
    assert "headrace serve" in ran.stdout
    with RunningServer(tmp_path / "models") as server:
        server.wait_for(lambda: any("curl" in line for line in server.output), "the line of curl")
        printed = "\n".join(server.output)
        for part in (
            f"http://127.0.0.1:{server.http_port}",
            f"127.0.0.1:{server.grpc_port}",
            "half_plus_two",
            "READY",
            "x FP32 [rows]",
        ):
            assert part.lower() in printed.lower(), printed
        assert server.stop() == 0


def test_a_model_that_cannot_be_loaded_is_in_the_table_and_harms_no_other(tmp_path: Path) -> None:
    write(tmp_path, "broken", 1, b"not an ONNX model")
    write(tmp_path, "good", 1, affine(1.0, 1.0))
    with RunningServer(tmp_path) as server:
        assert server.post("/v1/models/good:predict", {"instances": [1.0]})[0] == 200
        status, _ = server.post("/v1/models/broken:predict", {"instances": [1.0]})
        assert status in {400, 500, 503}
        server.wait_for(lambda: any("curl" in line for line in server.output), "the table")
        assert any("broken" in line and "failed" in line.lower() for line in server.output), server.output


def test_a_model_with_wrong_settings_is_in_the_table_and_the_index(tmp_path: Path) -> None:
    write(tmp_path, "good", 1, affine(1.0, 1.0))
    write(tmp_path, "wrong", 1, affine(1.0, 1.0))
    (tmp_path / "wrong" / "headrace.toml").write_text("[batchin]\n")
    with RunningServer(tmp_path) as server:
        server.wait_for(lambda: any("curl" in line for line in server.output), "the table")
        assert any("wrong" in line and "not served" in line for line in server.output), server.output
        status, index = server.post("/v2/repository/index", {})
        assert status == 200
        (wrong,) = [one for one in index if one["name"] == "wrong"]
        assert wrong["state"] == "UNAVAILABLE"
        assert "batchin" in wrong["reason"]


def test_unusable_directories_are_listed_and_answered_with_the_way_out(tmp_path: Path) -> None:
    models, settings = tmp_path / "models", tmp_path / "server.toml"
    write(models, "good", 1, affine(1.0, 1.0))
    write(models, "bad name!", 1, affine(1.0, 1.0))
    (models / "flat").mkdir()
    (models / "flat" / "model.onnx").write_bytes(affine(1.0, 1.0))
    settings.write_text('[models.gone]\npath = "nowhere"\n')
    ways_out = {
        "bad name!": "rename its directory",
        "flat": "into a subdirectory named 1",
        "gone": "correct the path in [models.gone]",
    }
    with RunningServer(models, "--config", str(settings)) as server:
        server.wait_for(lambda: any("curl" in line for line in server.output), "the table")
        for name, way_out in ways_out.items():
            assert any(name in line and "not served" in line and way_out in line for line in server.output)
            path = f"/v1/models/{quote(name)}"
            status, body = server.get(path)
            assert (status, way_out in body.decode()) == (404, True), body
            status, answer = server.post(f"{path}:predict", {"instances": [1.0]})
            assert (status, way_out in answer["error"]) == (400 if name == "gone" else 404, True), answer
        assert not any(str(tmp_path) in line for line in server.output[3:])


def test_versions_lists_them_and_rollback_pins_one(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        write(tmp_path, "m", number, affine(1.0, float(number)))
    listed = headrace("versions", tmp_path)
    assert listed.returncode == 0
    assert [number for number in "123" if number in listed.stdout] == ["1", "2", "3"]
    unknown = headrace("rollback", tmp_path / "m/9")
    assert unknown.returncode == 2
    assert "m has no version 9; it has: 1, 2, 3" in unknown.stderr
    back = headrace("rollback", tmp_path / "m")
    assert back.returncode == 0
    assert "2" in back.stdout
    assert "pinned" in headrace("versions", tmp_path / "m").stdout
    assert headrace("rollback", tmp_path / "m", "--release").returncode == 0
    assert "pinned" not in headrace("versions", tmp_path / "m").stdout


@pytest.mark.exact
def test_a_running_server_follows_a_rollback_without_a_failed_request(tmp_path: Path) -> None:
    for number in (1, 2):
        write(tmp_path, "m", number, affine(0.0, float(number)))
    with RunningServer(tmp_path) as server:
        answers: list[object] = []
        ended = threading.Event()

        def load() -> None:
            while not ended.is_set():
                answers.append(server.post("/v1/models/m:predict", {"instances": [0.0]}))

        def answered_by(number: int) -> bool:
            return bool(answers) and answers[-1] == (200, {"predictions": [float(number)]})

        asking = threading.Thread(target=load)
        asking.start()
        try:
            server.wait_for(lambda: answered_by(2), "the newest version")
            assert headrace("rollback", tmp_path / "m").returncode == 0
            server.wait_for(lambda: answered_by(1), "the version before")
            assert headrace("rollback", tmp_path / "m", "--release").returncode == 0
            server.wait_for(lambda: answered_by(2), "the newest version again")
        finally:
            ended.set()
            asking.join(120)
    fine = [(200, {"predictions": [1.0]}), (200, {"predictions": [2.0]})]
    assert [answer for answer in answers if answer not in fine] == []


# ---- Stopping ----


def ask_slowly(server: RunningServer, seconds: float, answers: list[object]) -> threading.Thread:
    """Ask the slow model, and return when the server has the request."""

    def ask() -> None:
        try:
            answers.append(server.post("/v1/models/slow:predict", {"instances": [seconds]}))
        except OSError as error:
            answers.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    server.wait_for(lambda: b'outstanding_requests{model="slow",version="1"} 1.0' in metrics(server), "it")
    return asking


def metrics(server: RunningServer) -> bytes:
    return server.get("/monitoring/prometheus/metrics")[1]


def test_sigterm_answers_what_was_accepted_and_ends_with_zero(tmp_path: Path) -> None:
    write(tmp_path / "models", "slow", 1, held_until(gate := tmp_path / "gate"))
    with RunningServer(tmp_path / "models", "--allow-code") as server:
        answers: list[object] = []
        asking = ask_slowly(server, 1.0, answers)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for(lambda: any("draining" in line for line in server.errors), "draining to begin")
        gate.touch()
        assert server.wait_until_ended() == 0
        asking.join(120)
        assert answers == [(200, {"predictions": [1]})]
        assert not any("Traceback" in line or "ERROR" in line for line in server.errors), server.errors


def test_readiness_goes_while_a_stopping_server_drains(tmp_path: Path) -> None:
    import http.client

    write(tmp_path / "models", "slow", 1, held_until(gate := tmp_path / "gate"))
    with RunningServer(tmp_path / "models", "--allow-code") as server:
        # A connection that is open already, as a balancer's is.
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=20)
        connection.request("GET", "/v2/health/ready")
        response = connection.getresponse()
        assert (response.status, response.read()[:1]) == (200, b"{")
        answers: list[object] = []
        asking = ask_slowly(server, 1.0, answers)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for(lambda: any("draining" in line for line in server.errors), "draining to begin")
        status = 0
        try:
            connection.request("GET", "/v2/health/ready")
            status = connection.getresponse().status
        except (http.client.HTTPException, OSError):
            pass  # closed: not ready either
        finally:
            connection.close()
        assert status in {0, 503}
        gate.touch()
        assert server.wait_until_ended() == 0
        asking.join(120)
        assert answers == [(200, {"predictions": [1]})]


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    """The model holds its batch all the time, and draining might go on for longer than the test waits."""
    write(tmp_path / "models", "slow", 1, held_until(tmp_path / "never"))
    with RunningServer(tmp_path / "models", "--allow-code", "--drain-seconds", "100") as server:
        answers: list[object] = []
        asking = ask_slowly(server, 1.0, answers)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for(lambda: any("draining" in line for line in server.errors), "draining to begin")
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_until_ended() != 0
        asking.join(120)
        assert isinstance(answers[0], OSError)


# ---- Starting ----


def test_a_port_that_is_taken_is_named_with_the_way_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for option, other in (("--http-port", "--grpc-port"), ("--grpc-port", "--http-port")):
            ran = headrace("serve", tmp_path, option, str(port), other, "0")
            assert ran.returncode == 1  # it may be free later: a service manager tries again
            assert f"port {port} of 127.0.0.1 is taken" in ran.stderr
            assert f"{option} N" in ran.stderr
            assert "Traceback" not in ran.stderr


def test_the_example_is_served(tmp_path: Path) -> None:
    """`benchmarks start` tells how soon it answers, and how much memory the server holds."""
    assert headrace("example", tmp_path).returncode == 0
    with RunningServer(tmp_path) as server:
        answer = (200, {"predictions": [3.0]})
        server.wait_for(
            lambda: server.post("/v1/models/half_plus_two:predict", {"instances": [2.0]}) == answer,
            "a first answer",
        )
