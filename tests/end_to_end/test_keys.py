"""Keys with real servers and clients: REST and gRPC, on each transport, while the file changes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from headrace import example
from headrace.cli.main import main
from headrace.frontends.wire import protos
from tests.running_server import RunningServer

PREDICT = "/v1/models/half_plus_two:predict"
BODY = json.dumps({"instances": [1.0, 2.0]}).encode()


def made(file: Path, capsys: pytest.CaptureFixture[str], name: str, *options: str) -> str:
    capsys.readouterr()
    assert main(["key", "new", name, "--file", str(file), *options]) == 0
    return capsys.readouterr().out.strip()


def status_of_grpc(server: RunningServer, key: str, model: str = "half_plus_two") -> grpc.StatusCode:
    request = protos.message("inference.ModelMetadataRequest")(name=model)
    metadata = (("authorization", f"Bearer {key}"),) if key else ()
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        ask = channel.unary_unary("/inference.GRPCInferenceService/ModelMetadata")
        try:
            ask(request.SerializeToString(), timeout=30, metadata=metadata)
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def health_of_grpc(server: RunningServer) -> bytes:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        answer: bytes = channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=30)
    return answer


def predicted(server: RunningServer, key: str) -> int:
    return server.request("POST", PREDICT, BODY, {"x-api-key": key} if key else {})[0]


def metrics_of(server: RunningServer, key: str) -> str:
    return server.request("GET", "/metrics", headers={"x-api-key": key})[1].decode()


@pytest.mark.rest
@pytest.mark.parametrize(
    "options", [(), ("--http-server", "uvicorn", "--grpc-server", "grpcio")], ids=["h2corn", "others"]
)
def test_keys_are_wanted_by_every_transport_and_change_while_it_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    example.write(tmp_path / "models")
    file = tmp_path / "keys.toml"
    first = made(file, capsys, "first", "--models", "half*")
    other = made(file, capsys, "other", "--models", "elsewhere", "--verbs", "predict,metrics")
    assert file.stat().st_mode & 0o077 == 0
    assert first not in file.read_text("utf-8")
    with RunningServer(tmp_path / "models", "--access-file", str(file), *options) as server:
        assert [predicted(server, key) for key in ("", first, other, first[:-1])] == [401, 200, 403, 401]
        codes = grpc.StatusCode
        assert status_of_grpc(server, "") is codes.UNAUTHENTICATED
        assert status_of_grpc(server, first) is codes.OK
        assert status_of_grpc(server, other) is codes.PERMISSION_DENIED
        assert status_of_grpc(server, first, "elsewhere") is codes.PERMISSION_DENIED
        assert status_of_grpc(server, other, "elsewhere") is codes.NOT_FOUND
        assert health_of_grpc(server) == b"\x08\x01"
        assert server.request("GET", "/metrics")[0] == 401
        metrics = metrics_of(server, other)
        assert 'headrace_caller_calls_total{caller="first"} 3.0' in metrics
        assert 'headrace_access_refused_total{error="Unauthenticated"} 4.0' in metrics
        assert "headrace_access_keys 2.0" in metrics

        second = made(file, capsys, "second", "--models", "*")
        server.wait_for(lambda: predicted(server, second) == 200, "a new key to be taken")
        assert main(["key", "revoke", "first", "--file", str(file)]) == 0
        server.wait_for(lambda: predicted(server, first) == 401, "a key to be revoked")

        right = file.read_text("utf-8")
        file.write_text(right[: len(right) // 2], "utf-8")
        server.wait_for(
            lambda: "the previous keys stay valid" in "".join(server.errors), "the log to tell of it"
        )
        assert "headrace_access_file_broken 1.0" in metrics_of(server, other)
        assert predicted(server, second) == 200
        file.write_text(right, "utf-8")
        server.wait_for(lambda: "headrace_access_file_broken 0.0" in metrics_of(server, other), "its mending")
        for key in (first, second, other):
            assert key not in "".join(server.errors)


def test_a_server_does_not_start_with_a_file_of_keys_that_is_wrong(tmp_path: Path) -> None:
    example.write(tmp_path / "models")
    for text, told in (
        (None, "cannot be read"),
        ("", "the file is empty"),
        ('[[key]]\nname = "a"\nverbs = ["fly"]\n', "fly"),
        ("[keys]\n", "unknown setting; did you mean key?"),
    ):
        if text is not None:
            (tmp_path / "keys.toml").write_text(text)
        command = [sys.executable, "-m", "headrace", "serve", str(tmp_path / "models")]
        command += ["--http-port", "0", "--grpc-port", "0", "--access-file", str(tmp_path / "keys.toml")]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        said = ended.stderr
        assert ended.returncode == 2
        assert told in said, said
        assert said.count("\n") == 1
