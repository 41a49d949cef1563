"""Classifiers of images in a real server: every protocol, bad images beside good ones, wrong settings."""

from __future__ import annotations

import asyncio
import base64
import json
import shlex
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from onnx import TensorProto

from headrace.archive.operations.open_archive import open_archive_file
from headrace.base.errors import InvalidRequest, TooLarge
from headrace.base.event_loop import run_in
from headrace.config import ServerConfig, parse_model_config
from headrace.frontends.wire import protos
from headrace.serving.engine import Engine
from tests.image_classifier import SETTINGS, SIDE, brightness
from tests.image_encoder import encoded, photograph, picture
from tests.model_directories import write
from tests.running_server import RunningServer

WHITE, BLACK, JPEG = picture((255,)), picture((0, 0, 0)), picture((255, 255, 255), kind="JPEG", side=50)
LABELS = [b"bright", b"dark", b"bright"]
Answered = tuple[list[bytes], list[float]]


def b64(image: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(image).decode()}


def tensorflow_serving_over_rest(server: RunningServer) -> Answered:
    body = {"instances": [b64(image) for image in (WHITE, BLACK, JPEG)]}
    status, answer = server.post("/v1/models/brightness:predict", body)
    assert status == 200, answer
    rows: Any = answer["predictions"]
    assert [len(row["probabilities"]) for row in rows] == [2, 2, 2]
    return [row["label"].encode() for row in rows], [row["score"] for row in rows]


def tensorflow_serving_over_grpc(server: RunningServer) -> Answered:
    request = protos.message("tensorflow.serving.PredictRequest")()
    request.model_spec.name = "brightness"
    request.inputs["image"].dtype = 7
    request.inputs["image"].tensor_shape.dim.add(size=3)
    request.inputs["image"].string_val.extend([WHITE, BLACK, JPEG])
    method = "/tensorflow.serving.PredictionService/Predict"
    outputs = call(server, method, request, "tensorflow.serving.PredictResponse").outputs
    return list(outputs["label"].string_val), list(outputs["score"].float_val)


def open_inference_over_rest(server: RunningServer) -> Answered:
    data = packed((WHITE, BLACK, JPEG))
    parameters = {"binary_data_size": len(data)}
    image = {"name": "image", "datatype": "BYTES", "shape": [3], "parameters": parameters}
    head = json.dumps({"inputs": [image]}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.http_port}/v2/models/brightness/infer",
        head + data,
        {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"},
    )
    with urllib.request.urlopen(request, timeout=40) as answer:
        outputs = {one["name"]: one["data"] for one in json.loads(answer.read())["outputs"]}
    return [label.encode() for label in outputs["label"]], outputs["score"]


def open_inference_over_grpc(server: RunningServer) -> Answered:
    request = protos.message("inference.ModelInferRequest")(model_name="brightness")
    request.inputs.add(name="image", datatype="BYTES", shape=[3])
    request.raw_input_contents.append(packed((WHITE, BLACK, JPEG)))
    method = "/inference.GRPCInferenceService/ModelInfer"
    answer = call(server, method, request, "inference.ModelInferResponse")
    raw = {one.name: raw for one, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)}
    assert raw["label"] == packed(LABELS)
    return LABELS, np.frombuffer(raw["score"], np.float32).tolist()


def packed(texts: Any) -> bytes:
    return b"".join(len(one).to_bytes(4, "little") + one for one in texts)


def call(server: RunningServer, method: str, request: Any, kind: str) -> Any:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        unary = channel.unary_unary(
            method,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=protos.message(kind).FromString,
        )
        return unary(request, timeout=40)


WAYS: tuple[Callable[[RunningServer], Answered], ...] = (
    tensorflow_serving_over_rest,
    tensorflow_serving_over_grpc,
    open_inference_over_rest,
    open_inference_over_grpc,
)


@pytest.mark.rest
@pytest.mark.parametrize("options", [(), ("--isolate",)], ids=["threads", "processes"])
def test_images_are_answered_with_labels_over_every_protocol(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    write(tmp_path, "brightness", 1, brightness(), SETTINGS)
    with RunningServer(tmp_path, *options) as server:
        for way in WAYS:
            labels, scores = way(server)
            assert labels == LABELS
            np.testing.assert_allclose(scores, [1, 1, 1], atol=0.01)
        described = json.loads(server.get("/v2/models/brightness")[1])
        assert described["inputs"] == [{"name": "image", "datatype": "BYTES", "shape": [-1]}]
        assert [one["name"] for one in described["outputs"]] == ["probabilities", "label", "score"]
        printed = server.output[-1].partition(" -d ")[2]
        tried = json.loads(shlex.split(printed)[0])
        status, answer = server.post("/v1/models/brightness:predict", tried)
        assert (status, answer["predictions"][0]["label"]) == (200, "dark")  # type: ignore[index]
        cut = encoded(photograph(64), "JPEG")[:400]
        status, answer = server.post("/v1/models/brightness:predict", {"instances": [b64(WHITE), b64(cut)]})
        assert status == 400
        assert str(answer["error"]).startswith("image: row 1: a broken image: ")
        status, answer = server.post("/v1/models/brightness:predict", {"instances": ["no image"]})
        assert status == 400
        assert "image: row 0: not an image: expected JPEG, PNG, WEBP, GIF" in str(answer["error"])


def test_a_bad_image_fails_its_own_request_only(tmp_path: Path) -> None:
    batching = "\n[batching]\nmax_wait_seconds = 1.0\nallowed_batch_rows = [8]\nmax_batch_rows = 8\n"
    write(tmp_path, "brightness", 1, brightness(), SETTINGS + batching)
    with Engine.in_thread(tmp_path) as engine:

        async def ask() -> list[Any]:
            contents = [[WHITE], [b"broken"], [BLACK, JPEG], [WHITE, b"cut"]]
            answers = [engine.predict("brightness", {"image": content}) for content in contents]
            return await asyncio.gather(*answers, return_exceptions=True)

        white, broken, two, half = run_in(engine._loop, ask())
    assert white["label"].tolist() == [b"bright"]
    assert two["label"].tolist() == [b"dark", b"bright"]
    assert isinstance(broken, InvalidRequest)
    assert broken.message.startswith("image: row 0: not an image")
    assert isinstance(half, InvalidRequest)
    assert half.message.startswith("image: row 1: not an image")


def test_a_request_with_too_many_pixels_fails_alone(tmp_path: Path) -> None:
    batching = "\n[batching]\nmax_wait_seconds = 1.0\nallowed_batch_rows = [8]\nmax_batch_rows = 8\n"
    limits = "[image]\nmax_pixels = 5000\nmax_call_pixels = 5000"
    write(tmp_path, "brightness", 1, brightness(), SETTINGS.replace("[image]", limits) + batching)
    large = picture((255,), side=60)
    with Engine.in_thread(tmp_path) as engine:

        async def ask() -> list[Any]:
            contents = [[large], [large, picture((0,), side=60)], [large], [BLACK, JPEG]]
            answers = [engine.predict("brightness", {"image": content}) for content in contents]
            return await asyncio.gather(*answers, return_exceptions=True)

        first, second, third, last = run_in(engine._loop, ask())
    assert first["label"].tolist() == third["label"].tolist() == [b"bright"]
    assert last["label"].tolist() == [b"dark", b"bright"]
    assert isinstance(second, TooLarge)
    assert "expected at most max_call_pixels = 5000 in all images, got 7200" in second.message


@pytest.mark.parametrize(
    ("changed", "to", "said"),
    [
        ("size = [8, 8]", "size = [9, 9]", "make numbers [rows, 9, 9], but the model takes pixels FP32"),
        ('"dark", ', "", "signature.labels: expected 2 names, one per class of probabilities, got 1"),
        ("top = 1", "top = 1\nscores = 'logits'", "signature.scores: the model has no output 'logits'"),
        ('labels = ["dark", "bright"]', "labels_file = 'labels.txt'", "labels.txt cannot be read"),
        ("size = ", "sizes = ", "image.sizes: unknown setting; did you mean size?"),
    ],
)
def test_settings_that_do_not_fit_are_told_when_the_model_is_loaded(
    tmp_path: Path, changed: str, to: str, said: str
) -> None:
    write(tmp_path, "brightness", 1, brightness(), SETTINGS.replace(changed, to))
    with Engine.in_thread(tmp_path) as engine:
        manager = engine.manager
        told = [one.reason for one in manager.status("brightness")] + manager.warnings("brightness")
    assert said in str(told)


def test_labels_lie_beside_the_model_and_name_classes_for_classify_too(tmp_path: Path) -> None:
    settings = SETTINGS.replace('labels = ["dark", "bright"]', 'labels_file = "labels.txt"')
    version = write(tmp_path, "brightness", 1, brightness(), settings)
    (version / "labels.txt").write_text("night\nday\n")
    with Engine.in_thread(tmp_path) as engine:
        assert engine.predict_blocking("brightness", {"image": [WHITE, BLACK]})["label"].tolist() == [
            b"day",
            b"night",
        ]


@pytest.mark.rest
@pytest.mark.parametrize("isolate", [False, True], ids=["in process", "isolated"])
def test_images_go_with_inputs_from_the_archive(tmp_path: Path, isolate: bool) -> None:
    looked_up = '[inputs.weight]\nspace = "cameras"\ncolumn = "weight"\nkey = "camera"\n'
    write(tmp_path / "models", "brightness", 1, brightness(weighted=True), SETTINGS + looked_up)
    (tmp_path / "archive.toml").write_text('[tables.cameras]\ncolumns = { weight = "float32" }\n')
    with (
        open_archive_file(tmp_path / "archive.toml") as archive,
        Engine.in_thread(
            tmp_path / "models", config=ServerConfig(isolate=isolate), archive=archive
        ) as engine,
    ):
        archive.put_rows("cameras", ["a"], {"weight": [0.25]})
        answer = engine.predict_blocking("brightness", {"image": [WHITE, WHITE], "camera": ["a", "b"]})
        assert answer["probabilities"].tolist() == [[0.75, 0.25], [1, 0]]
        assert answer["label"].tolist() == [b"dark", b"dark"]
        with pytest.raises(InvalidRequest, match="image: row 1: not an image"):
            engine.predict_blocking("brightness", {"image": [WHITE, b""], "camera": ["a", "b"]})


def test_a_model_without_images_is_not_wrapped(tmp_path: Path) -> None:
    write(tmp_path, "plain", 1, brightness((SIDE,), TensorProto.FLOAT))
    with Engine.in_thread(tmp_path) as engine:
        version = engine.loaded("plain")
        assert version.servable is version.bare
    assert parse_model_config("").signature.top == 0
