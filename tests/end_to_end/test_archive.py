"""An archive in a real server: stubs of grpcio, generated from the proto, JSON bodies, its filler."""

from __future__ import annotations

import importlib
import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import numpy as np
import pytest

from headrace import example
from tests.running_server import RunningServer
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = """
fill = true

[spaces.titles]
embedder = "minilm"

[spaces.items]
dimension = 3

[spaces.limited]
embedder = "minilm"
max_new_keys_per_second = 0.001
max_new_keys_burst = 3

[spaces.stories]
embedder = "minilm"
content = "table:films.story"

[tables.films.columns]
story = { dtype = "text", bytes = 200 }
year = { dtype = "int32", default = -1 }
"""


@pytest.fixture(scope="session")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ModuleType, ModuleType]]:
    """What any client makes of the proto: its messages, and its stub."""
    made = tmp_path_factory.mktemp("stubs")
    options = [f"-I{ROOT / 'proto'}", f"--python_out={made}", f"--grpc_python_out={made}", "archive.proto"]
    # In a process of its own: it ends a process that has other libraries' protobuf in it.
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options], check=True)
    sys.path.insert(0, str(made))
    try:
        yield importlib.import_module("archive_pb2"), importlib.import_module("archive_pb2_grpc")
    finally:
        sys.path.remove(str(made))


@pytest.fixture(scope="module", params=["h2corn", "grpcio"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """Models and an archive on the same ports."""
    place = tmp_path_factory.mktemp("archive")
    (place / "archive.toml").write_text(SETTINGS)
    example.write(place / "models")
    options = ("--archive", str(place / "archive.toml"), "--grpc-server", request.param, "--admin")
    with RunningServer(place / "models", *options) as running:
        yield running


def post(server: RunningServer, path: str, body: object, *, seconds: float = 30) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.http_port}{path}", json.dumps(body).encode(), method="POST"
    )
    with urllib.request.urlopen(request, timeout=seconds) as answer:
        return json.loads(answer.read())


@pytest.mark.rest
def test_a_new_key_is_missing_then_filled_and_found_by_both_protocols(
    server: RunningServer, stubs: tuple[ModuleType, ModuleType]
) -> None:
    messages, services = stubs
    title = f"The Matrix {server.grpc_port}"
    asked = {"keys": [title]}
    answer = post(server, "/v1/archive/titles:lookup", asked)
    assert answer["found"] == [False]
    assert answer["vectors"] == [[0.0] * 384]
    until(lambda: post(server, "/v1/archive/titles:lookup", asked)["found"] == [True])
    vector = np.array(post(server, "/v1/archive/titles:lookup", asked)["vectors"][0], np.float32)
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-3)
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = services.ArchiveStub(channel)
        found = stub.Lookup(messages.LookupRequest(space="titles", keys=[title]), timeout=30)
        assert np.array_equal(np.frombuffer(found.vectors, found.dtype), vector)
        assert found.found == b"\1"


def test_a_table_is_filled_and_found_by_both_protocols_and_its_texts_are_embedded(
    server: RunningServer, stubs: tuple[ModuleType, ModuleType]
) -> None:
    messages, services = stubs
    columns = {"story": ["a boxer fights", "a lion is king"], "year": [1976, None]}
    assert post(server, "/v1/archive/films:put", {"keys": ["1", "2"], "columns": columns}) == {}
    row = np.dtype([("story", "S30"), ("year", "<i4")])
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = services.ArchiveStub(channel)
        put = messages.PutRequest(space="films", keys=["3"], dtype="row")
        put.vectors = np.array([(b"an heir is kidnapped", 1957)], row).tobytes()
        put.columns.add(name="story", dtype="text", size_bytes=30)
        put.columns.add(name="year", dtype="int32", size_bytes=4)
        stub.Put(put, timeout=30)
        found = stub.Lookup(messages.LookupRequest(space="films", keys=["1", "2", "3", "4"]), timeout=30)
    numbers = {"int32": "<i4"}
    lies = [(one.name, numbers.get(one.dtype, f"S{one.size_bytes}")) for one in found.columns]
    rows = np.frombuffer(found.vectors, lies)
    assert rows["year"].tolist() == [1976, -1, 1957, -1]
    answer = post(server, "/v1/archive/films:lookup", {"keys": ["3", "4"]})
    assert answer["columns"] == {"story": ["an heir is kidnapped", ""], "year": [1957, -1]}
    assert answer["found"] == [True, False]
    by_id, by_text = (
        ("/v1/archive/stories:lookup", ["3"]),
        ("/v1/archive/titles:lookup", [rows["story"][2].decode()]),
    )
    until(
        lambda: all(post(server, path, {"keys": keys})["found"] == [True] for path, keys in (by_id, by_text))
    )
    one, other = (post(server, path, {"keys": keys})["vectors"][0] for path, keys in (by_id, by_text))
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_the_stub_puts_describes_streams_and_forgets(
    server: RunningServer, stubs: tuple[ModuleType, ModuleType]
) -> None:
    messages, services = stubs
    vectors = np.arange(9, dtype=np.float32).reshape(3, 3)
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = services.ArchiveStub(channel)
        stub.Put(
            messages.PutRequest(space="items", keys=["a", "b", "c"], vectors=vectors.tobytes()), timeout=30
        )
        asked = [messages.LookupRequest(space="items", keys=[key]) for key in ("c", "a", "new")]
        asked.insert(1, messages.LookupRequest(space="nope"))
        answers = list(stub.LookupStream(iter(asked), timeout=30))
        assert [one.WhichOneof("result") for one in answers] == ["response", "error", "response", "response"]
        assert np.frombuffer(answers[0].response.vectors, np.float32).tolist() == [6, 7, 8]
        stub.Forget(messages.ForgetRequest(space="items", keys=["a"]), timeout=30)
        found = stub.Lookup(messages.LookupRequest(space="items", keys=["a", "b"]), timeout=30).found
        assert found == b"\0\1"
        described = stub.Describe(messages.DescribeRequest(), timeout=30)
        names = ["titles", "items", "limited", "stories", "films"]
        assert [one.name for one in described.spaces] == names
        with pytest.raises(grpc.RpcError) as refused:
            stub.Lookup(messages.LookupRequest(space="items", keys=["a", ""]), timeout=30)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert refused.value.details().startswith("keys[1]: ")


def test_models_answer_beside_it_and_the_metrics_tell_of_both(server: RunningServer) -> None:
    assert post(server, "/v1/models/half_plus_two:predict", {"instances": [1.0]}) == {"predictions": [2.5]}
    post(server, "/v1/archive/items:lookup", {"keys": ["x", "y"]})
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/metrics", timeout=30) as answer:
        told = answer.read().decode()
    keys = re.search(r'^headrace_archive_keys_total\{space="items"\} (.*)$', told, re.MULTILINE)
    assert keys is not None
    assert float(keys[1]) >= 2
    assert re.search(r"^headrace_archive_queued_keys \d", told, re.MULTILINE)


def test_a_callers_new_keys_are_counted_over_both_protocols_together_and_no_other_callers(
    server: RunningServer, stubs: tuple[ModuleType, ModuleType]
) -> None:
    messages, services = stubs

    def counted(name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/metrics", timeout=30) as answer:
            told = answer.read().decode()
        found = re.search(
            rf'^headrace_archive_{name}_keys_total{{space="limited"}} (.*)$', told, re.MULTILINE
        )
        return float(found[1]) if found is not None else 0.0

    def ask(caller: str, keys: list[str]) -> list[bool]:
        headers = {"headrace-caller": caller}
        address = f"http://127.0.0.1:{server.http_port}/v1/archive/limited:lookup"
        request = urllib.request.Request(address, json.dumps({"keys": keys}).encode(), headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: list[bool] = json.loads(answer.read())["found"]
            return found

    assert not any(ask("ads", ["Heat", "Alien"]))
    assert (counted("new"), counted("over_quota")) == (2, 0)
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        request = messages.LookupRequest(space="limited", keys=["Jaws", "Rocky", "Tron"])
        metadata = (("headrace-caller", "ads"),)
        assert not any(services.ArchiveStub(channel).Lookup(request, timeout=30, metadata=metadata).found)
    assert (counted("new"), counted("over_quota")) == (3, 2)
    assert not any(ask("search", ["Big", "Up"]))
    assert (counted("new"), counted("over_quota")) == (5, 2)
    until(lambda: ask("ads", ["Heat", "Alien", "Jaws"]) == [True] * 3)
    assert ask("ads", ["Rocky", "Tron"]) == [False, False]


def test_unknown_spaces_and_refusals_have_http_codes(server: RunningServer) -> None:
    for path, body, code in (
        ("/v1/archive/nope:lookup", {"keys": ["a"]}, 404),
        ("/v1/archive/items:lookup", {"keys": ["k"] * 10_001}, 413),
        ("/v1/archive/items:lookup", {"keys": [1]}, 400),
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(server, path, body)
        assert refused.value.code == code
        refused.value.close()


@pytest.mark.rest
def test_the_archive_alone_serves_stops_and_keeps_what_was_put(tmp_path: Path) -> None:
    (tmp_path / "archive.toml").write_text("[spaces.items]\ndimension = 2\n")
    for round_number in range(2):
        command = [sys.executable, "-m", "headrace", "archive", "serve", "--json"]
        command += ["--archive", str(tmp_path / "archive.toml"), "--http-port", "0", "--grpc-port", "0"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None
            said = json.loads(process.stdout.readline())
            assert said["spaces"] == [{"space": "items", "default": 1}]
            address = f"http://127.0.0.1:{said['http']['port']}/v1/archive/items"
            if round_number == 0:
                put = json.dumps({"keys": ["a"], "vectors": [[1, 2]]}).encode()
                with urllib.request.urlopen(f"{address}:put", put, timeout=30) as answer:
                    assert answer.status == 200
            with urllib.request.urlopen(f"{address}:lookup", b'{"keys": ["a"]}', timeout=30) as answer:
                assert json.loads(answer.read())["vectors"] == [[1.0, 2.0]]
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 0


@pytest.mark.rest
def test_an_archive_that_is_wrong_keeps_the_server_from_starting(tmp_path: Path) -> None:
    (tmp_path / "archive.toml").write_text('[spaces.titles]\nembedder = "nobody"\n')
    example.write(tmp_path / "models")
    command = [sys.executable, "-m", "headrace", "serve", str(tmp_path / "models")]
    command += ["--archive", str(tmp_path / "archive.toml"), "--http-port", "0", "--grpc-port", "0"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "embedder" in ran.stderr.splitlines()[-1]


ENCODER = """
import numpy as np


class Model:
    inputs = [("text", "BYTES", [])]
    outputs = [("vector", "FP32", [2])]

    def predict(self, inputs):
        texts = inputs["text"]
        return {"vector": np.array([[len(text), text.count(b"a")] for text in texts], np.float32)}
"""


@pytest.mark.rest
def test_a_model_of_the_same_server_makes_the_vectors(tmp_path: Path) -> None:
    (tmp_path / "archive.toml").write_text(
        'fill = true\n[spaces.words]\nembedder = "counts"\n'
        '[embedders.counts]\nkind = "model"\nmodel = "counts"\n'
    )
    (tmp_path / "models/counts/1").mkdir(parents=True)
    (tmp_path / "models/counts/1/model.py").write_text(ENCODER)
    options = ("--allow-code", "--archive", str(tmp_path / "archive.toml"))
    with RunningServer(tmp_path / "models", *options) as running:
        asked = {"keys": ["banana", "kiwi"]}
        until(lambda: all(post(running, "/v1/archive/words:lookup", asked)["found"]))
        assert post(running, "/v1/archive/words:lookup", asked)["vectors"] == [[6.0, 3.0], [4.0, 0.0]]
