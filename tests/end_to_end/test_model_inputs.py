"""Models whose inputs come from the archive: in process, in a server over all ways in, while a store goes."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import pyarrow as pa
import pytest
from onnx import TensorProto, helper

from headrace.archive.lookup.archive import Archive
from headrace.archive.model_inputs.stream_join import Join, JoinSettings
from headrace.archive.operations.open_archive import open_archive_file
from headrace.base.errors import FailedPrecondition, InvalidRequest
from headrace.base.event_loop import run_in
from headrace.batching.request import Answer
from headrace.config import ServerConfig, parse_model_config
from headrace.frontends.wire import protos
from headrace.serving.engine import Engine, ModelSpec
from headrace.stream.schema import Field, Schema
from headrace.versions.manifest import publish
from tests.conformance import ctr_models
from tests.encoder_models import write_letters
from tests.running_server import RunningServer
from tests.unit.archive.filling_parts import LengthEmbedder
from tests.waiting import until
from tools.services.redis_server import Redis

SPACES = """
[spaces.images]
dimension = 4
dtype = "float16"
history_seconds = 600

[tables.users]
history_seconds = 600
columns = { age = "int64", country = { dtype = "text", default = "?" } }
"""
REMOTE = """
[store]
kind = "redis"
address = "ADDRESS"
timeout_seconds = 0.5
"""
INPUTS = """
[versions]
policy = "all"

[inputs.image]
space = "images"
key = "url"
answer = true

[inputs.age]
space = "users"
column = "age"
key = "user"
key_dtype = "int64"

[inputs.country]
space = "users"
column = "country"
key = "user"
key_dtype = "int64"
"""
OF_CTR = """
[inputs.image]
space = "images"
key = "url"
answer = true

[default]
values = { probability = 0.5 }
"""
KEYS = [f"image {number}" for number in range(200)]


def echo() -> onnx.ModelProto:
    """Gives what it gets: a vector, a text, and the sum of two numbers."""
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Identity", ["image"], ["vector"]),
        helper.make_node("Identity", ["country"], ["land"]),
        helper.make_node("Add", ["bid", "age"], ["sum"]),
    ]
    inputs = [
        value("image", TensorProto.FLOAT, ["rows", 4]),
        value("country", TensorProto.STRING, ["rows"]),
        value("bid", TensorProto.FLOAT, ["rows"]),
        value("age", TensorProto.FLOAT, ["rows"]),
    ]
    outputs = [
        value("vector", TensorProto.FLOAT, ["rows", 4]),
        value("land", TensorProto.STRING, ["rows"]),
        value("sum", TensorProto.FLOAT, ["rows"]),
    ]
    graph = helper.make_graph(nodes, "echo", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def identity() -> onnx.ModelProto:
    """Gives the three numbers that it gets."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Identity", ["counts"], ["same"])],
        "identity",
        [value("counts", TensorProto.FLOAT, ["rows", 3])],
        [value("same", TensorProto.FLOAT, ["rows", 3])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def publish_echo(models: Path, version: int) -> None:
    """A version of the model that was trained on the same version of the images."""
    publish(
        lambda draft: onnx.save(echo(), draft / "model.onnx"),
        models / "echo",
        version,
        metadata={"spaces": {"images": version}},
    )


def write(place: Path, store: str = "") -> Path:
    """Two versions of ``echo``, a click model, and ``archive.toml`` with a few values."""
    models = place / "models"
    for version in (1, 2):
        publish_echo(models, version)
    (models / "echo" / "headrace.toml").write_text(INPUTS)
    (models / "ctr" / "1").mkdir(parents=True)
    ctr_models.write(models / "ctr" / "1", "deepfm")
    (models / "ctr" / "headrace.toml").write_text(OF_CTR)
    (place / "archive.toml").write_text(store + SPACES)
    with open_archive_file(place / "archive.toml") as archive:
        archive.put("images", KEYS, vectors(1))
        archive.add_version("images", LengthEmbedder("newer"))
        archive.put("images", KEYS, vectors(2), version=2)
        archive.put_rows("users", ["7"], {"age": [41], "country": ["de"]})
    return models


def vectors(version: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The vector of ``image N`` is N four times; in version 2 it is -N."""
    numbers = np.arange(len(KEYS), dtype=np.float32) * (1 if version == 1 else -1)
    return np.repeat(numbers, 4).reshape(-1, 4)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("inputs")
    write(made)
    return made


@pytest.fixture(scope="module", params=[False, True], ids=["in process", "isolated"])
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Engine, Archive]]:
    place, config = tmp_path_factory.mktemp("opened"), ServerConfig(isolate=request.param)
    models = write(place)
    with (
        open_archive_file(place / "archive.toml") as archive,
        Engine.in_thread(models, config=config, archive=archive) as engine,
    ):
        assert (engine.manager.all_loaded()[0].isolated is not None) == request.param
        yield engine, archive


def asked(*numbers: int, user: int = 7) -> dict[str, Any]:
    """A request for pictures of these numbers."""
    rows = len(numbers)
    return {
        "bid": np.ones(rows, np.float32),
        "url": [f"image {number}" for number in numbers],
        "user": np.full(rows, user),
    }


# ---- In process ----


def test_each_version_of_a_model_gets_the_vectors_that_it_was_trained_on(
    opened: tuple[Engine, Archive],
) -> None:
    engine, _ = opened
    for version, sign in ((1, 1), (2, -1)):
        answer = engine.predict_blocking(ModelSpec("echo", version), asked(3, 500, 5))
        assert answer["vector"].tolist() == [[3 * sign] * 4, [0] * 4, [5 * sign] * 4]
        assert answer["image.version"].tolist() == [version] * 3
        assert (answer["image.written"] > 0).tolist() == [True, False, True]
        assert answer["sum"].tolist() == [42] * 3
        assert answer["land"].tolist() == [b"de"] * 3
    missing = engine.predict_blocking("echo", asked(3, user=-1))
    assert (missing["sum"].tolist(), missing["land"].tolist()) == ([1], [b"?"])


def test_an_answer_knows_what_was_looked_up_for_its_own_rows(opened: tuple[Engine, Archive]) -> None:
    engine, archive = opened

    async def ask() -> list[Answer]:
        answers = []
        for numbers in ((1, 2), (999,)):
            loaded = engine.loaded("echo", 2)
            checked = loaded.signatures["serving_default"].check(asked(*numbers))
            answers.append(engine.answer(loaded, checked))
        return [await answer for answer in answers]

    both, none = run_in(engine._loop, ask())
    written = archive.lookup("images", KEYS[1:3], version=2).written
    assert both.looked_up["image"].written.tolist() == written.tolist()
    assert both.looked_up["image"].version.tolist() == [2, 2]
    assert none.looked_up["image"].written.tolist() == [0]
    assert set(both.looked_up) == {"image", "age", "country"}


def test_all_rows_get_their_own_vectors_under_concurrent_batching(opened: tuple[Engine, Archive]) -> None:
    engine, _ = opened

    def ask(seed: int) -> list[bool]:
        random, right = np.random.default_rng(seed), []
        for _ in range(40):
            numbers = random.integers(0, len(KEYS), random.integers(1, 6))
            spec = ModelSpec("echo", int(random.integers(1, 3)))
            answer = engine.predict_blocking(spec, asked(*numbers.tolist()))
            sign = 1 if spec.version == 1 else -1
            right.append(np.array_equal(answer["vector"], np.repeat(numbers * sign, 4).reshape(-1, 4)))
        return right

    with ThreadPoolExecutor(8) as threads:
        assert all(all(one) for one in threads.map(ask, range(8)))


def test_a_click_model_answers_as_if_the_request_had_the_vectors(
    tmp_path: Path, opened: tuple[Engine, Archive]
) -> None:
    engine, _ = opened
    inputs = dict(ctr_models.field_inputs(20))
    inputs["image"] = vectors(1)[:20]
    (tmp_path / "ctr" / "1").mkdir(parents=True)
    ctr_models.write(tmp_path / "ctr" / "1", "deepfm")
    with Engine.in_thread(tmp_path) as plain:
        wanted = plain.predict_blocking("ctr", inputs)["probability"]
    del inputs["image"]
    given = engine.predict_blocking("ctr", {**inputs, "url": KEYS[:20]})["probability"]
    np.testing.assert_array_equal(given, wanted)


def test_training_uses_the_values_that_were_served(opened: tuple[Engine, Archive]) -> None:
    """Although a vector has come since, another has changed, and so has what the row itself counted up."""
    engine, archive = opened
    archive.put("images", ["image 900"], np.full((1, 4), 0.1), version=2)
    archive.put_rows("users", ["9"], {"age": [18], "country": ["ch"]})
    answer = engine.predict_blocking("echo", asked(900, 901, user=9))
    served = time.time_ns() // 1000 + 1000
    rows = pa.record_batch(
        {
            "label": [0.0, 1.0],
            "served": [served, served],
            "url": ["image 900", "image 901"],
            "user": [9, 9],
            "image.written": answer["image.written"],
            "image.version": answer["image.version"],
        }
    )
    until(lambda: time.time_ns() // 1000 > served + 1000)
    archive.put("images", ["image 900", "image 901"], np.full((2, 4), 7), version=2)
    archive.put_rows("users", ["9"], {"age": [19], "country": ["de"]})
    sources = parse_model_config(INPUTS).inputs
    schema = Schema(fields=(Field(name="label", role="label"),))
    settings = JoinSettings(sources, "served", {"images": 2})
    joined = Join(archive, settings, rows.schema, schema).batch(rows)
    learnt = joined.column("image").flatten().to_numpy()
    assert learnt.tobytes() == answer["vector"].tobytes()
    assert (learnt[:4] > 0).all()
    assert not learnt[4:].any()
    assert joined.column("age").to_pylist() == (answer["sum"] - 1).tolist() == [18, 18]
    assert joined.column("country").to_pylist() == [land.decode() for land in answer["land"]] == ["ch"] * 2


def test_a_key_that_cannot_be_is_the_error_of_its_own_request(opened: tuple[Engine, Archive]) -> None:
    engine, _ = opened

    async def ask() -> list[object]:
        requests = [asked(1), {**asked(1), "url": ["x" * 9000]}, asked(2)]
        answers = [engine.predict("echo", request) for request in requests]
        return await asyncio.gather(*answers, return_exceptions=True)

    one, wrong, two = run_in(engine._loop, ask())
    assert isinstance(wrong, InvalidRequest)
    assert wrong.message == "url: row 0: expected a key of up to 8192 bytes of UTF-8, got 9000"
    assert isinstance(one, dict)
    assert isinstance(two, dict)
    assert (one["vector"][0, 0], two["vector"][0, 0]) == (-1, -2)


def test_without_an_archive_the_model_does_not_load_and_says_why(place: Path) -> None:
    said = "there is none; start with --archive FILE"
    with Engine.in_thread(place / "models") as engine, pytest.raises(FailedPrecondition, match=said):
        engine.predict_blocking("echo", asked(1))


# ---- In a server ----


def post(server: RunningServer, path: str, body: object) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.http_port}{path}", json.dumps(body).encode(), method="POST"
    )
    with urllib.request.urlopen(request, timeout=40) as answer:
        return json.loads(answer.read())


def call(server: RunningServer, method: str, request: Any, kind: str) -> Any:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        unary = channel.unary_unary(
            method,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=protos.message(kind).FromString,
        )
        return unary(request, timeout=40)


def tensorflow_serving_over_rest(server: RunningServer, version: int) -> list[list[float]]:
    rows = [{"bid": 1.0, "url": f"image {number}", "user": 7} for number in (3, 500, 5)]
    answer = post(server, f"/v1/models/echo/versions/{version}:predict", {"instances": rows})
    assert [row["image.version"] for row in answer["predictions"]] == [version] * 3
    return [row["vector"] for row in answer["predictions"]]


def tensorflow_serving_over_grpc(server: RunningServer, version: int) -> list[list[float]]:
    request = protos.message("tensorflow.serving.PredictRequest")()
    request.model_spec.name, request.model_spec.version.value = "echo", version
    for name, number, values in (
        ("bid", 1, np.ones(3, np.float32).tobytes()),
        ("user", 9, np.full(3, 7).tobytes()),
    ):
        request.inputs[name].dtype, request.inputs[name].tensor_content = number, values
        request.inputs[name].tensor_shape.dim.add(size=3)
    request.inputs["url"].dtype = 7
    request.inputs["url"].tensor_shape.dim.add(size=3)
    request.inputs["url"].string_val.extend([b"image 3", b"image 500", b"image 5"])
    method = "/tensorflow.serving.PredictionService/Predict"
    answer = call(server, method, request, "tensorflow.serving.PredictResponse")
    assert list(answer.outputs["image.version"].int64_val) == [version] * 3
    return np.reshape(answer.outputs["vector"].float_val, (3, 4)).tolist()


def open_inference_over_rest(server: RunningServer, version: int) -> list[list[float]]:
    inputs = [
        {"name": "bid", "datatype": "FP32", "shape": [3], "data": [1, 1, 1]},
        {"name": "url", "datatype": "BYTES", "shape": [3], "data": ["image 3", "image 500", "image 5"]},
        {"name": "user", "datatype": "INT64", "shape": [3], "data": [7, 7, 7]},
    ]
    answer = post(server, f"/v2/models/echo/versions/{version}/infer", {"inputs": inputs})
    outputs = {output["name"]: output["data"] for output in answer["outputs"]}
    assert outputs["image.version"] == [version] * 3
    return np.reshape(outputs["vector"], (3, 4)).tolist()


def open_inference_over_grpc(server: RunningServer, version: int) -> list[list[float]]:
    request = protos.message("inference.ModelInferRequest")(model_name="echo", model_version=str(version))
    for name, datatype in (("bid", "FP32"), ("url", "BYTES"), ("user", "INT64")):
        request.inputs.add(name=name, datatype=datatype, shape=[3])
    texts = b"".join(len(one).to_bytes(4, "little") + one for one in (b"image 3", b"image 500", b"image 5"))
    raw_inputs = [np.ones(3, np.float32).tobytes(), texts, np.full(3, 7).tobytes()]
    request.raw_input_contents.extend(raw_inputs)
    method = "/inference.GRPCInferenceService/ModelInfer"
    answer = call(server, method, request, "inference.ModelInferResponse")
    raw = {out.name: raw for out, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)}
    assert np.frombuffer(raw["image.version"], np.int64).tolist() == [version] * 3
    return np.frombuffer(raw["vector"], np.float32).reshape(3, 4).tolist()


WAYS = (
    tensorflow_serving_over_rest,
    tensorflow_serving_over_grpc,
    open_inference_over_rest,
    open_inference_over_grpc,
)


def test_over_both_protocols_and_both_transports(place: Path) -> None:
    with RunningServer(place / "models", "--archive", str(place / "archive.toml")) as server:
        until(lambda: server.get("/v2/models/echo/versions/1/ready")[0] == 200)
        for way in WAYS:
            for version, sign in ((1, 1), (2, -1)):
                wanted = [[3 * sign] * 4, [0] * 4, [5 * sign] * 4]
                assert way(server, version) == wanted, way.__name__
        _, found = server.get("/v2/models/echo")
        assert [one["name"] for one in json.loads(found)["inputs"]] == ["bid", "url", "user"]
        fields = {
            name: np.char.decode(array.astype(bytes)).tolist() if array.dtype == object else array.tolist()
            for name, array in ctr_models.field_inputs(2).items()
            if name != "image"
        }
        body = {"inputs": {**fields, "url": ["image 1", ""]}}
        answer = post(server, "/v1/models/ctr:predict", body)["outputs"]
        assert set(answer) == {"probability", "image.written", "image.version"}
        assert [written > 0 for written in answer["image.written"]] == [True, False]
        _, metrics = server.get("/metrics")
        keys = 'headrace_archive_input_keys_total{input="image",model="echo"} 24.0'
        assert keys in metrics.decode()
        assert 'headrace_archive_input_found_keys_total{input="image",model="echo"} 16.0' in metrics.decode()


def test_a_server_fills_what_its_models_miss_by_another_of_its_models(tmp_path: Path) -> None:
    """The archive opens when the embedder is loaded, and then the model whose inputs come from it loads."""
    write_letters(tmp_path / "models", 1)
    publish(lambda draft: onnx.save(identity(), draft / "model.onnx"), tmp_path / "models" / "same", 1)
    inputs = '[inputs.counts]\nspace = "letters"\nkey = "text"\n'
    (tmp_path / "models" / "same" / "headrace.toml").write_text(inputs)
    embedder = '[embedders.letters]\nkind = "model"\nmodel = "letters"\noutput = "counts"\n'
    (tmp_path / "archive.toml").write_text(f'fill = true\n[spaces.letters]\nembedder = "letters"\n{embedder}')
    options = ("--archive", str(tmp_path / "archive.toml"), "--allow-code")
    with RunningServer(tmp_path / "models", *options) as server:
        ask = lambda: post(server, "/v1/models/same:predict", {"inputs": {"text": ["abba"]}})  # noqa: E731
        assert ask()["outputs"] == [[0, 0, 0]]
        until(lambda: ask()["outputs"] == [[2, 2, 0]])


def test_answers_go_on_while_the_store_is_frozen_and_gone(
    tmp_path: Path, own_redis: Callable[[], Redis]
) -> None:
    """Keys that are in memory have their values, others what stands for missing ones; and it comes back."""
    store = own_redis()
    models = write(tmp_path, REMOTE.replace("ADDRESS", store.address))

    def sign_of(server: RunningServer, number: int) -> float:
        rows = [{"bid": 1.0, "url": f"image {number}", "user": 7}]
        answer = post(server, "/v1/models/echo/versions/2:predict", {"instances": rows})
        value: float = answer["predictions"][0]["vector"][0]
        return value

    with RunningServer(models, "--archive", str(tmp_path / "archive.toml")) as server:
        until(lambda: sign_of(server, 3) == -3)
        store.freeze()
        for number in range(10, 40):
            assert sign_of(server, number) == 0
        assert sign_of(server, 3) == -3
        store.kill()
        for number in range(40, 60):
            assert sign_of(server, number) == 0
        assert server.get("/v2/health/ready")[0] == 200
        store.restart()
        until(lambda: sign_of(server, 3) == -3)
