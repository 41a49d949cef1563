"""Administration at a port and at a path of its own: there it works, and everywhere else it is refused."""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from headrace.base.errors import FailedPrecondition
from headrace.base.status_codes import codes
from headrace.cli.main import main
from headrace.example import write as write_example
from tests.certificates import Authority
from tests.model_directories import affine, write
from tests.running_server import RunningServer

LOAD, UNLOAD = (f"/v2/repository/models/half_plus_two/{what}" for what in ("load", "unload"))
GRPC_UNLOAD = "/inference.GRPCInferenceService/RepositoryModelUnload"
RELOAD = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"
NAME = b"\x12\x0dhalf_plus_two"
SECONDS = 30.0


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    write_example(directory)
    return directory


class _AtPath(http.client.HTTPConnection):
    """HTTP at a path of this machine."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(SECONDS)
        self.sock.connect(str(self._path))


def asked(connection: http.client.HTTPConnection, method: str, path: str) -> tuple[int, bytes]:
    try:
        connection.request(method, path, b"" if method == "POST" else None)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def admin_port(server: RunningServer) -> int:
    (line,) = [line for line in server.output if re.match(r"\s+administration\s+https?:", line)]
    return int(line.rpartition(":")[2])


@pytest.fixture(scope="module", params=[(), ("--workers", "2")], ids=["one process", "two workers"])
def server(
    request: pytest.FixtureRequest, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningServer, Path]]:
    path = tmp_path_factory.mktemp("admin") / "admin.sock"
    options = ("--admin-port", "0", "--admin-socket", str(path), "--admin-metrics", *request.param)
    with RunningServer(models, *options) as running:
        yield running, path
    assert not path.exists(), "it is removed at the end"


def test_models_are_unloaded_and_loaded_there_and_nowhere_else(server: tuple[RunningServer, Path]) -> None:
    running, path = server
    port, refused, ready = (
        admin_port(running),
        codes(FailedPrecondition("")).http,
        "/v2/models/half_plus_two/ready",
    )
    at_port = [lambda: http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS), lambda: _AtPath(path)]
    for connect in at_port:
        status, body = running.request("POST", UNLOAD, b"")
        assert status == refused, body
        assert b"this port does not serve administration" in body
        assert asked(connect(), "POST", UNLOAD)[0] == 200
        running.wait_for(lambda: running.get(ready)[0] != 200, "the model to go")
        assert asked(connect(), "POST", LOAD)[0] == 200
        running.wait_for(lambda: running.get(ready)[0] == 200, "the model to come back")
        assert running.post("/v1/models/half_plus_two:predict", {"instances": [1.0]})[0] == 200


def test_grpc_is_refused_and_served_likewise(server: tuple[RunningServer, Path]) -> None:
    running, path = server
    with grpc.insecure_channel(f"127.0.0.1:{running.grpc_port}") as channel:
        for method, message in ((GRPC_UNLOAD, NAME), (RELOAD, b"")):
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(method)(message, timeout=SECONDS)
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert "this port does not serve administration" in caught.value.details()
    for address in (f"127.0.0.1:{admin_port(running)}", f"unix:{path}"):
        with grpc.insecure_channel(address, options=[("grpc.default_authority", "localhost")]) as channel:
            index = channel.unary_unary("/inference.GRPCInferenceService/RepositoryIndex")(
                b"", timeout=SECONDS
            )
            assert b"half_plus_two" in index
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(b"", timeout=SECONDS)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED, "predictions are not asked for there"


def test_metrics_are_given_there_only(server: tuple[RunningServer, Path]) -> None:
    running, path = server
    assert running.get("/metrics")[0] == 404
    assert b"headrace_ready" in asked(_AtPath(path), "GET", "/metrics")[1]
    assert running.get("/v2/health/live")[0] == 200


def test_the_path_is_for_the_servers_own_user(server: tuple[RunningServer, Path]) -> None:
    _, path = server
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_port_is_encrypted_where_the_others_are(models: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.write_server()
    context = authority.context(as_client=True)
    with RunningServer(models, "--admin-port", "0", *authority.options(mutual=True), tls=context) as running:
        port = admin_port(running)
        stranger = http.client.HTTPSConnection(
            "127.0.0.1", port, timeout=SECONDS, context=authority.context()
        )
        with pytest.raises((ConnectionError, ssl.SSLError, http.client.BadStatusLine)):
            asked(stranger, "POST", UNLOAD)
        known = http.client.HTTPSConnection("127.0.0.1", port, timeout=SECONDS, context=context)
        assert asked(known, "GET", "/v2/health/live")[0] == 200


def ended(models: Path, *options: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "headrace", "serve", str(models), "--http-port", "0", "--grpc-port", "0"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_a_path_that_cannot_be_had_is_an_error_that_says_why(models: Path, tmp_path: Path) -> None:
    taken, file, stale = (tmp_path / name for name in ("taken", "file", "stale"))
    file.write_text("precious")
    with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as other:
        one.bind(str(taken))
        one.listen()
        other.bind(str(stale))
        cases = {
            taken: "is taken, perhaps by another headrace server",
            file: "expected an unused path, but",
            tmp_path / ("x" * 200): "cannot listen at",
            tmp_path / "missing" / "sock": "; make the directory ",
        }
        for path, why in cases.items():
            code, said = ended(models, "--admin-socket", str(path))
            assert code == 2
            assert "admin-socket" in said
            assert why in said
    assert file.read_text() == "precious"
    with RunningServer(models, "--admin-socket", str(stale)):
        assert asked(_AtPath(stale), "GET", "/v2/health/live")[0] == 200


def test_metrics_for_administration_only_need_a_port_for_it(models: Path) -> None:
    code, said = ended(models, "--admin-metrics")
    assert code == 2
    assert "admin_port or admin_socket" in said


def test_where_it_is_stands_in_the_json(models: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace", "serve", str(models), "--http-port", "0", "--grpc-port", "0"]
    path = tmp_path / "sock"
    with subprocess.Popen(
        [*command, "--admin-socket", str(path), "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["administration"] == [f"unix:{path}"]
        finally:
            process.terminate()
            process.wait()


FAILS = """
class Model:
    inputs = outputs = [("x", "FP32", [])]

    def __init__(self):
        raise ValueError("no such table in /srv/secret")
"""


@pytest.mark.parametrize("workers", [(), ("--workers", "2")], ids=["one process", "two workers"])
def test_why_a_version_does_not_load_is_told_in_full_there_and_nowhere_else(
    tmp_path: Path, workers: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "models", "m", 3, FAILS, "[versions]\nload_attempts = 1\n")
    write(tmp_path / "models", "other", 1, affine(2.0, 1.0))
    with RunningServer(tmp_path / "models", "--allow-code", "--admin-port", "0", *workers) as running:
        running.wait_for(lambda: running.count_in_log("failed to load") >= 1 + bool(workers), "it to fail")
        whole = "model.py fails: ValueError: no such table in /srv/secret"
        running.wait_for(lambda: whole in status_told(admin_port(running), capsys), "the whole reason")
        told = status_told(running.http_port, capsys)
        assert "m 3 does not load: model.py fails; the server's log says more" in told
        for path in ("/v1/models/m", "/v2/repository/index"):
            answers = [
                asked(http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS), method, path)
                for port in (admin_port(running), running.http_port)
                for method in ("GET" if path.startswith("/v1") else "POST",)
            ]
            assert [(status, b"no such table" in body) for status, body in answers] == [
                (200, True),
                (200, False),
            ]


def status_told(port: int, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["status", f"http://127.0.0.1:{port}", "--interval-seconds", "0.1"]) == 0
    return capsys.readouterr().out
