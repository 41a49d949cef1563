"""The audit log with real servers: who loaded, unloaded and forgot what, by which door."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from headrace import example
from headrace.archive.model.catalog import partition, with_version
from headrace.archive.operations.open_archive import open_archive_file
from headrace.cli.main import main
from headrace.frontends.wire import protos
from headrace.versions.manifest import publish
from tests.certificates import Authority
from tests.model_directories import affine
from tests.running_server import RunningServer

MODEL = "half_plus_two"
ARCHIVE = "[spaces.items]\ndimension = 3\n"


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


OF_THE_SERVER = {"start", "stop", "take-over", "hand-over", "start-successor"}


def told(file: Path) -> list[tuple[str, str, str]]:
    """Actions that have ended, but for the server's own start and end."""
    return [
        (one["action"], one["on"], one["result"])
        for one in lines(file)
        if one["stage"] == "ended" and one["action"] not in OF_THE_SERVER
    ]


def told_of_servers(file: Path, process: int) -> list[tuple[str, str]]:
    """What one server told of itself."""
    return [
        (one["action"], one["result"])
        for one in lines(file)
        if one["stage"] == "ended" and one["action"] in OF_THE_SERVER and one["pid"] == process
    ]


def call(server: RunningServer, path: str, message: bytes) -> grpc.StatusCode:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        try:
            channel.unary_unary(path)(message, timeout=30)
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


@pytest.mark.parametrize(
    "options", [(), ("--http-server", "uvicorn", "--grpc-server", "grpcio")], ids=["h2corn", "others"]
)
def test_administration_over_the_network_is_told(tmp_path: Path, options: tuple[str, ...]) -> None:
    example.write(tmp_path / "models")
    (tmp_path / "archive.toml").write_text(ARCHIVE)
    file = tmp_path / "audit.jsonl"
    given = ("--admin", "--audit-file", str(file), "--archive", str(tmp_path / "archive.toml"), *options)
    oip, archive = "/inference.GRPCInferenceService", "/headrace.archive.v1.Archive"
    load = protos.message("inference.RepositoryModelLoadRequest")(model_name=MODEL).SerializeToString()
    forget = protos.message("headrace.archive.v1.ForgetRequest")(space="items", keys=["a"])
    invalidate = protos.message("headrace.archive.v1.InvalidateRequest")(space="items", keys=["a"])
    reload = protos.message("tensorflow.serving.ReloadConfigRequest")()
    reload.config.model_config_list.config.add(name=MODEL)
    again = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"
    with RunningServer(tmp_path / "models", *given) as server:
        assert server.post(f"/v1/models/{MODEL}:predict", {"instances": [1.0]})[0] == 200
        assert server.request("POST", f"/v2/repository/models/{MODEL}/load", b"")[0] == 200
        assert server.request("POST", "/v2/repository/models/none/load", b"")[0] == 404
        assert call(server, f"{oip}/RepositoryModelLoad", load) is grpc.StatusCode.OK
        assert server.request("POST", "/v1/archive/items:forget", b'{"keys": ["a"]}')[0] == 200
        assert call(server, f"{archive}/Forget", forget.SerializeToString()) is grpc.StatusCode.OK
        assert server.request("POST", "/v1/archive/items:invalidate", b'{"keys": ["a"]}')[0] == 200
        assert call(server, f"{archive}/Invalidate", invalidate.SerializeToString()) is grpc.StatusCode.OK
        assert call(server, again, reload.SerializeToString()) is grpc.StatusCode.OK
        reload.config.model_config_list.config.add(name="new")
        assert call(server, again, reload.SerializeToString()) is grpc.StatusCode.UNIMPLEMENTED
        assert server.request("POST", f"/v2/repository/models/{MODEL}/unload", b"")[0] == 200
    found = told(file)
    assert [one[:2] for one in found] == [
        ("load", MODEL), ("load", "none"), ("load", MODEL), ("forget", "items"), ("forget", "items"),
        ("invalidate", "items"), ("invalidate", "items"), ("reload", MODEL), ("reload", f"{MODEL}, new"),
        ("unload", MODEL),
    ]  # fmt: skip
    assert found[1][2].startswith("failed: NotFound: ")
    assert found[8][2].startswith("failed: Unsupported: ")
    assert {one[2] for number, one in enumerate(found) if number not in (1, 8)} == {"done"}
    asked_for = [one for one in lines(file) if one["action"] not in OF_THE_SERVER]
    assert all(one["by"]["address"].startswith("127.0.0.1:") for one in asked_for)


def test_key_holders_are_named_and_new_keys_are_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example.write(tmp_path / "models")
    keys, file = tmp_path / "keys.toml", tmp_path / "audit.jsonl"
    new = ["key", "new", "--file", str(keys), "--audit-file", str(file)]
    capsys.readouterr()
    assert main([*new, "ops", "--verbs", "admin", "--models", "*"]) == 0
    key = capsys.readouterr().out.strip()
    with RunningServer(
        tmp_path / "models", "--admin", "--access-file", str(keys), "--audit-file", str(file)
    ) as server:
        path = f"/v2/repository/models/{MODEL}/load"
        assert server.request("POST", path, b"", {"x-api-key": key})[0] == 200
        assert main([*new, "other"]) == 0
        server.wait_for(lambda: ("reload-keys", str(keys), "done") in told(file), "the new keys")
    by = {one["action"]: one["by"] for one in lines(file)}
    assert by["load"]["caller"] == "ops"
    assert by["reload-keys"] == {"process": "server", "uid": os.getuid()}
    assert by["key-new"]["uid"] >= 0
    assert key not in file.read_text("utf-8")


def test_workers_write_one_log(tmp_path: Path) -> None:
    example.write(tmp_path / "models")
    file = tmp_path / "audit.jsonl"
    with RunningServer(tmp_path / "models", "--admin", "--workers", "2", "--audit-file", str(file)) as server:
        for _ in range(8):
            assert server.request("POST", f"/v2/repository/models/{MODEL}/load", b"")[0] == 200
        process = server.process.pid
    assert len(told(file)) == 8
    assert told_of_servers(file, process) == [("start", "done"), ("stop", "done")]
    assert {one["pid"] for one in lines(file) if one["action"] in OF_THE_SERVER} == {process}, "no worker"


def test_new_certificates_are_told_and_those_that_cannot_be_used(tmp_path: Path) -> None:
    example.write(tmp_path / "models")
    file, authority = tmp_path / "audit.jsonl", Authority(tmp_path)
    authority.write_server()
    options = ("--audit-file", str(file), *authority.options())
    with RunningServer(tmp_path / "models", *options, tls=authority.context()) as server:
        authority.write_server()
        server.process.send_signal(signal.SIGHUP)
        server.wait_for(lambda: len(told(file)) == 1, "the new certificate")
        authority.replace("server.pem", b"no certificate")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for(lambda: len(told(file)) == 2, "the wrong certificate")
    (taken, refused) = told(file)
    assert taken == ("reload-certificate", str(authority.path("server.pem")), "done")
    assert refused[:2] == taken[:2]
    assert refused[2].startswith("failed: ")


def test_archives_verbs_and_signatures_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, settings = tmp_path / "audit.jsonl", tmp_path / "archive.toml"
    settings.write_text('[spaces.items]\ndimension = 3\n[spaces.titles]\nembedder = "minilm"\n')
    archive = ["--archive", str(settings), "--audit-file", str(file)]
    assert main(["archive", "forget", "items", "a", "b", *archive]) == 0
    assert main(["archive", "invalidate", "titles", "a", *archive]) == 0
    (tmp_path / "models").mkdir()
    with open_archive_file(settings) as opened:
        (first,) = opened.record("items").versions
        opened.store.create(partition("items", 2))
        second = msgspec.structs.replace(first, fingerprint="newer")
        opened.catalog.change("items", lambda record: with_version(record, second))
    assert main(["archive", "drop", "items", "2", "--models", str(tmp_path / "models"), *archive]) == 0
    assert main(["signing-key", str(tmp_path / "key.pem")]) == 0
    (tmp_path / "made").mkdir()
    (tmp_path / "made/model.onnx").write_bytes(affine(1.0, 1.0))
    version = publish(tmp_path / "made", tmp_path / "models/m")
    assert main(["sign", str(version), "--key", str(tmp_path / "key.pem"), "--audit-file", str(file)]) == 0
    assert told(file) == [
        ("forget", "items, keys: 2", "done"),
        ("invalidate", "titles, keys: 1", "done"),
        ("drop", "items version 2", "done"),
        ("sign", str(version), "done"),
    ]
    assert all(one["by"]["uid"] == os.getuid() for one in lines(file))
    file.unlink()
    file.mkdir()
    (version / "headrace-signature.json").unlink()
    for words in (
        ["archive", "forget", "items", "a", *archive],
        ["sign", str(version), "--key", str(tmp_path / "key.pem"), "--audit-file", str(file)],
    ):
        assert main(words) != 0
        assert "cannot be written" in capsys.readouterr().err
    assert not (version / "headrace-signature.json").exists()


@pytest.mark.rest
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_server_tells_of_its_start_its_handover_and_its_end(tmp_path: Path, workers: str) -> None:
    example.write(tmp_path / "models")
    file, place = tmp_path / "audit.jsonl", tmp_path / "run"
    place.mkdir(mode=0o700)
    options = ("--audit-file", str(file), "--handover", str(place / "handover"), "--workers", workers)
    with RunningServer(tmp_path / "models", *options) as first:
        with RunningServer(tmp_path / "models", *options) as second:
            assert first.wait_until_ended() == 0
        assert told_of_servers(file, first.process.pid) == [("start", "done"), ("hand-over", "done")]
        assert sorted(told_of_servers(file, second.process.pid)) == [
            ("start", "done"), ("stop", "done"), ("take-over", "done"),
        ]  # fmt: skip
    own = [one for one in lines(file) if one["action"] in OF_THE_SERVER]
    assert {one["on"] for one in own} == {str(tmp_path / "models")}
    assert all(one["by"]["process"] == "server" for one in own)


def test_a_start_that_fails_is_told(tmp_path: Path) -> None:
    example.write(tmp_path / "models")
    file = tmp_path / "audit.jsonl"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "headrace", "serve", str(tmp_path / "models"), "--http-port", port]
        command += ["--grpc-port", "0", "--audit-file", str(file)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1, ended.stderr  # it may be free later
    asked, last = lines(file)
    assert (asked["stage"], asked["action"], last["stage"]) == ("asked", "start", "ended")
    assert last["result"].startswith("failed: PlaceTaken: http_port")


def test_a_log_that_cannot_be_written_keeps_no_server_from_stopping(tmp_path: Path) -> None:
    example.write(tmp_path / "models")
    file = tmp_path / "audit.jsonl"
    with RunningServer(tmp_path / "models", "--audit-file", str(file)) as server:
        file.unlink()
        file.mkdir()
        assert server.stop() == 0
    errors = "".join(server.errors)
    assert "could not write stop to the audit log: " in errors
    assert "refused" not in errors


def test_actions_that_cannot_be_logged_are_refused(tmp_path: Path) -> None:
    example.write(tmp_path / "models")
    file = tmp_path / "audit.jsonl"
    with RunningServer(tmp_path / "models", "--admin", "--audit-file", str(file)) as server:
        file.unlink()
        file.mkdir()
        status, said = server.request("POST", f"/v2/repository/models/{MODEL}/unload", b"")
        assert status == 503
        assert str(tmp_path) not in said.decode()
        assert server.post(f"/v1/models/{MODEL}:predict", {"instances": [1.0]})[0] == 200, "it is there still"


def test_decisions_of_the_command_line_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example.write(tmp_path / "models")
    file, model = tmp_path / "audit.jsonl", tmp_path / "models" / MODEL
    to = ["--audit-file", str(file)]
    newest = max(int(path.name) for path in model.iterdir() if path.name.isdigit())
    assert main(["hold", f"{model}/{newest}", *to]) == 0
    assert main(["hold", f"{model}/{newest}", "--release", *to]) == 0
    assert main(["rollback", f"{model}/{newest}", *to]) == 0
    assert main(["rollback", str(model), "--release", *to]) == 0
    assert [one[0] for one in told(file)] == ["hold", "release-hold", "pin", "unpin"]
    file.unlink()
    file.mkdir()
    assert main(["hold", f"{model}/{newest}", *to]) != 0
    assert "cannot be written" in capsys.readouterr().err
