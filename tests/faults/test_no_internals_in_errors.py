"""Each kind of error, over REST and gRPC: nobody is told a path, an address, a class or a traceback."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from headrace.base.errors import Unavailable
from headrace.cli.main import main
from headrace.frontends.wire import protos
from headrace.storage.opening import open_store
from headrace.storage.settings import RedisStore
from headrace.versions.manifest import publish
from tests.faults.hostile import (
    Attack,
    grpc_attacks,
    grpc_attacks_of_many_kinds,
    http_attacks,
    http_attacks_of_many_kinds,
    write_models,
)
from tests.faults.still_serves import MODEL, connect, infer_message
from tests.model_directories import affine, write
from tests.running_server import RunningServer

INTERNALS = re.compile(
    r"/(tmp|etc|srv|home|root|usr|proc|work|var|opt|onnxruntime_src)/|site-packages|\b0x[0-9a-f]{6,}"
    r"|Traceback|<class|<function| object at |\.py:\d|\.py[\"']|\bline \d+, in |\.cc:\d"
    r"|\b[A-Z]\w*(Error|Exception|Warning)\b|NoneType|headrace\.[a-z_]+\.[a-zA-Z_]|headrace_model_\d"
    r"|\b(msgspec|numpy|onnxruntime|asyncio|lmdb|google\.protobuf)\b"
)
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
SECRETS = """
class Secret:
    pass


class Model:
    inputs = [("x", "FP32", [])]
    outputs = [("y", "FP32", [])]

    def predict(self, inputs):
        how = int(inputs["x"][0])
        if how == 0:
            raise RuntimeError(f"{Secret()} in {__file__}")
        if how == 1:
            open(__file__ + ".missing")
        if how == 2:
            return {"y": [Secret()]}
        if how == 3:
            return Secret()
        if how == 4:
            return {"y": [1.0] * 7}
        if how == 5:
            raise MemoryError
        return {"y": [self, self.predict]}
"""
WAYS = 7
ONCE = "[versions]\nload_attempts = 1\n"
SETTINGS = "[spaces.items]\ndimension = 3\n"
BROKEN: dict[str, bytes | str] = {
    "import": "import nothing_of_that_name\n",
    "syntax": "def (:\n",
    "opens": "open('/etc/secret/place')\n",
    "address": "class Model:\n    pass\nraise ValueError(f'{Model()} of {__file__}')\n",
    "noclass": "x = 1\n",
    "declares": "class Model:\n    inputs = [('x', open, [])]\n    outputs = []\n    predict = print\n",
    "onnx": b"not a model",
    "cut": affine(1.0, 1.0)[:40],
}


def write_broken(models: Path) -> list[str]:
    """Models that cannot be loaded, each for another reason; their names."""
    for name, content in BROKEN.items():
        write(models, name, 1, content, ONCE)
    write(models, "settings", 1, affine(1.0, 1.0), "[batching]\nmax_queue_rows = 'x'\n")
    write(models, "toml", 1, affine(1.0, 1.0), "[[[\n")
    (models / "ctr/1").mkdir(parents=True)
    (models / "ctr/1/model.ctr").write_bytes(b"x")
    (models / "ctr/headrace.toml").write_text(ONCE)
    changed = publish(lambda path: (path / "model.onnx").write_bytes(affine(1.0, 2.0)), models / "sum", 1)
    (changed / "model.onnx").write_bytes(affine(1.0, 3.0))
    changed = publish(lambda path: (path / "model.onnx").write_bytes(affine(1.0, 2.0)), models / "listed", 1)
    next(iter(changed.glob("*.json"))).write_bytes(b"x")
    for name in ("sum", "listed"):
        (models / name / "headrace.toml").write_text(ONCE)
    (models / "link").mkdir()
    (models / "link/headrace.toml").write_text(ONCE)
    (models / "link/1").symlink_to("/etc")
    (models / "empty").mkdir()
    return [*BROKEN, "settings", "toml", "ctr", "sum", "listed", "link", "empty", "gone"]


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, list[str]]]:
    place = tmp_path_factory.mktemp("internals")
    write(place / "models", MODEL, 1, affine(1.0, 1.0))
    write(place / "models", "fails", 1, SECRETS)
    write(place / "models", "apart", 1, SECRETS, "isolate = true\n")
    write_models(place / "models")
    names = write_broken(place / "models")
    (place / "archive.toml").write_text(SETTINGS)
    (place / "server.toml").write_text(f"[models.gone]\npath = '{place}/nowhere'\n")
    options = ("--allow-code", "--admin", "--config", str(place / "server.toml"))
    with RunningServer(place / "models", *options, "--archive", str(place / "archive.toml")) as server:
        yield server, names


def checked(what: str, said: bytes | str) -> str:
    text = said if isinstance(said, str) else said.decode("utf-8", "replace")
    found = INTERNALS.search(text)
    assert found is None, f"{what}: {found.group()!r} in {text[:600]}"
    return text


def call(server: RunningServer, path: str, message: bytes, key: str = "") -> str:
    """What a gRPC call is told: its error's details and metadata, or its answer's texts."""
    metadata = (("authorization", f"Bearer {key}"),) if key else ()
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        try:
            if path == STREAM:
                answers = channel.stream_stream(path)(iter([message]), timeout=60)
                return b"".join(answers).decode("utf-8", "replace")
            answer: bytes = channel.unary_unary(path)(message, timeout=60, metadata=metadata)
            return answer.decode("utf-8", "replace")
        except grpc.RpcError as error:
            return f"{error.details()} {error.trailing_metadata()}"


@pytest.mark.parametrize("model", ["fails", "apart"])
def test_a_model_that_fails_is_told_as_that(broken: tuple[RunningServer, list[str]], model: str) -> None:
    server, _ = broken
    for way in range(WAYS):
        body = json.dumps({"instances": [way]}).encode()
        status, said = server.request("POST", f"/v1/models/{model}:predict", body)
        assert status == 500, said
        checked(f"{model} {way} over REST", said)
        message = infer_message(model, float(way))
        checked(
            f"{model} {way} over gRPC", call(server, "/inference.GRPCInferenceService/ModelInfer", message)
        )
        assert "model" in checked(f"{model} {way} in a stream", call(server, STREAM, message))
    server.wait_for(lambda: server.count_in_log("RuntimeError") > 0, "what the operator sees")


def test_a_version_that_does_not_load_says_why_and_not_where(
    broken: tuple[RunningServer, list[str]],
) -> None:
    server, names = broken
    ready = protos.message("inference.ModelMetadataRequest")
    status = protos.message("tensorflow.serving.GetModelStatusRequest")
    for name in [*names, "missing"]:
        for path in (f"/v1/models/{name}", f"/v1/models/{name}/metadata", f"/v2/models/{name}"):
            checked(path, server.get(path)[1])
        for path in (f"/v2/models/{name}/ready", f"/v2/models/{name}/config", f"/v2/models/{name}/stats"):
            checked(path, server.get(path)[1])
        checked(name, server.request("POST", f"/v1/models/{name}:predict", b'{"instances": [1.0]}')[1])
        checked(name, server.request("POST", f"/v2/repository/models/{name}/load", b"")[1])
        asked = ready(name=name).SerializeToString()
        checked(name, call(server, "/inference.GRPCInferenceService/ModelMetadata", asked))
        asked = status(model_spec={"name": name}).SerializeToString()
        checked(name, call(server, "/tensorflow.serving.ModelService/GetModelStatus", asked))
        checked(name, call(server, STREAM, infer_message(name, 1.0)))
    checked("the index", server.request("POST", "/v2/repository/index", b"")[1])
    log = "\n".join(server.errors)
    for told in ("nothing_of_that_name", "/etc/secret/place", "ValueError"):
        assert told in log, "the operator sees it"


def test_requests_that_are_none_are_told_what_is_wrong(broken: tuple[RunningServer, list[str]]) -> None:
    server, _ = broken
    for attack in [*http_attacks(), *http_attacks_of_many_kinds()]:
        if attack.every == 1 and attack.expected != (200,):
            said = _answer(server, attack)
            checked(
                attack.name, said.replace(b"/etc/passwd", b"")
            )  # a path that was asked for, and is said back
    for attack in [*grpc_attacks(), *grpc_attacks_of_many_kinds()]:
        if attack.every == 1 and attack.expected not in {("OK",), (200,)}:
            checked(attack.name, call(server, attack.method, attack.content))


def _answer(server: RunningServer, attack: Attack) -> bytes:
    said = b""
    with connect(server.http_port) as connection:
        connection.sendall(attack.content)
        connection.settimeout(30)
        while b"\r\n\r\n" not in said or not said.endswith(b"}"):
            try:
                chunk = connection.recv(65536)
            except ConnectionError:
                break
            if not chunk:
                break
            said += chunk
            head, _, body = said.partition(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head.lower())
            if length is not None and len(body) >= int(length.group(1)):
                break
    return said


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/archive/items:lookup", b"{"),
        ("/v1/archive/items:lookup", b'{"keys": [{}]}'),
        ("/v1/archive/items:lookup", b'{"keys": ["\xff"]}'),
        ("/v1/archive/items:put", b'{"keys": ["a"], "vectors": [[1, "x", null]]}'),
        ("/v1/archive/items:put", b'{"keys": ["a"], "vectors": {}}'),
        ("/v1/archive/nowhere:lookup", b'{"keys": ["a"]}'),
        ("/v1/archive/items:lookup", b'{"keys": ["a"], "version": 9}'),
        ("/v1/archive/items:forget", b'{"keys": 7}'),
    ],
)
def test_an_archive_says_what_is_wrong(
    broken: tuple[RunningServer, list[str]], path: str, body: bytes
) -> None:
    status, said = broken[0].request("POST", path, body)
    assert status in {400, 404}
    checked(path, said)


def test_callers_without_a_key_learn_nothing_of_the_server(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys.toml"
    capsys.readouterr()
    assert main(["key", "new", "one", "--file", str(file), "--models", "other"]) == 0
    key = capsys.readouterr().out.strip()
    asked = protos.message("inference.ModelMetadataRequest")(name=MODEL).SerializeToString()
    with RunningServer(models, "--access-file", str(file)) as server:
        for shown in ("", "x", "hrk_0f6d6a6f0c3b_none", "é", key):
            headers = {"authorization": f"Bearer {shown}"} if shown else {}
            status, said = server.request("POST", f"/v1/models/{MODEL}:predict", b"{}", headers)
            assert status in {401, 403}
            assert MODEL not in checked("REST", said) or shown == key
            if shown.isascii():
                checked("gRPC", call(server, "/inference.GRPCInferenceService/ModelMetadata", asked, shown))


def test_a_store_that_is_away_is_told_without_its_address() -> None:
    store = open_store(RedisStore(address="127.0.0.1:9", timeout_seconds=1.0))
    with pytest.raises(Unavailable) as raised:
        store.create("values")
    store.close()
    assert "127.0.0.1:9" in raised.value.message
    assert raised.value.told == "the store does not answer"
