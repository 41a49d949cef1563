"""Large gRPC messages are answered bit for bit the same, in whatever pieces they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from headrace.base.tensors import Array, Tensors
from headrace.frontends.wire import protos
from headrace.model.servable import DEFAULT_SIGNATURE, Signature, TensorSpec
from headrace.server.server import application
from headrace.serving.engine import Engine
from tests.unit.frontends.transport.wire import GRPC, Event, Response, Wire, body, message, part

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
PREDICT = "/tensorflow.serving.PredictionService/Predict"
PICTURE = (160, 160, 3)
FLOATS = 20_000
ROWS = 2
CUTS: dict[str, Sequence[int]] = {
    "whole": [],
    "frames of 16 KiB": [16_384] * 13,
    "frames of 64 KiB": [65_536] * 3,
    "within the prefix": [2],
    "behind the prefix": [5],
    "byte by byte at first": [1] * 8,
    "large and small": [70_000, 1, 0, 99_999],
}


class Pictures:
    """Says of each row its picture's sum, its floats' sum, and its number: other bytes, other answers."""

    platform = "test"

    def __init__(self) -> None:
        """Make one."""
        uint8, float32, int64 = np.dtype(np.uint8), np.dtype(np.float32), np.dtype(np.int64)
        inputs = (
            TensorSpec("number", int64, (1,)),
            TensorSpec("picture", uint8, PICTURE),
            TensorSpec("floats", float32, (FLOATS,)),
        )
        outputs = tuple(
            TensorSpec(name, np.dtype(np.float64), (1,)) for name in ("pictures", "floats", "numbers")
        )
        self.signatures = {DEFAULT_SIGNATURE: Signature(DEFAULT_SIGNATURE, inputs, outputs)}
        self.aligned = True

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> dict[str, Array]:
        """Answer a batch."""
        self.aligned &= all(array.flags.aligned and array.flags.c_contiguous for array in inputs.values())
        rows = len(inputs["number"])
        weights = np.arange(1, inputs["picture"][0].size + 1, dtype=np.float64)
        pictures = inputs["picture"].reshape(rows, -1) @ weights
        floats = inputs["floats"].astype(np.float64) @ np.arange(1, FLOATS + 1, dtype=np.float64)
        sums = {
            "pictures": pictures,
            "floats": floats,
            "numbers": inputs["number"].reshape(-1).astype(np.float64),
        }
        return {name: values.reshape(rows, 1) for name, values in sums.items()}

    def close(self) -> None:
        """Nothing to do."""


def values(seed: int) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {
        "floats": random.normal(size=(ROWS, FLOATS)).astype(np.float32),
        "picture": random.integers(0, 256, (ROWS, *PICTURE)).astype(np.uint8),
        "number": random.integers(0, 1 << 40, (ROWS, 1)),
    }


def infer(seed: int, name: str = "") -> bytes:
    request = protos.message("inference.ModelInferRequest")(model_name="m", id=name)
    datatypes = {"floats": "FP32", "picture": "UINT8", "number": "INT64"}
    for key, array in values(seed).items():
        request.inputs.add(name=key, datatype=datatypes[key], shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    written: bytes = request.SerializeToString()
    return written


def predict(seed: int, _: str = "") -> bytes:
    request = protos.message("tensorflow.serving.PredictRequest")(model_spec={"name": "m"})
    datatypes = {"floats": 1, "picture": 4, "number": 9}
    for key, array in values(seed).items():
        tensor = request.inputs[key]
        tensor.dtype = datatypes[key]
        for size in array.shape:
            tensor.tensor_shape.dim.add(size=size)
        tensor.tensor_content = array.tobytes()
    written: bytes = request.SerializeToString(deterministic=True)
    return written


def pieces(sent: bytes, sizes: Sequence[int]) -> Iterator[bytes]:
    for size in sizes:
        yield sent[:size]
        sent = sent[size:]
    yield sent


async def ask(answer: Callable[..., object], path: str, sent: bytes, sizes: Sequence[int]) -> Response:
    wire = Wire([*map(part, pieces(sent, sizes)), *body(b"")])
    scope: Event = {
        "type": "http", "method": "POST", "path": path, "headers": GRPC, "query_string": b"", "root_path": "",
    }  # fmt: skip
    async with asyncio.timeout(30):
        await answer(scope, wire.receive, wire.send)  # type: ignore[misc]  # a coroutine
    return Response(wire.sent)


@pytest.mark.exact
@pytest.mark.parametrize("name", ["", "x" * 5000], ids=["without an id", "with a long id"])
@pytest.mark.parametrize(("path", "made"), [(INFER, infer), (PREDICT, predict), (STREAM, infer)])
def test_answers_are_the_same_however_a_message_is_cut(
    path: str, made: Callable[[int, str], bytes], name: str
) -> None:
    """The first message is parsed, those after it are recognised; a stream has two messages."""

    async def scenario() -> None:
        model = Pictures()
        async with Engine.from_objects({"m": model}) as engine:
            app = application(engine)
            for seed in (0, 1):
                sent = message(made(seed, name)) * (2 if path == STREAM else 1)
                answers = {}
                for cut, sizes in CUTS.items():
                    response = await ask(app.answer, path, sent, sizes)
                    assert response.grpc == (0, "")
                    answers[cut] = response.messages
                assert len(answers["whole"]) == (2 if path == STREAM else 1)
                assert all(answer == answers["whole"] for answer in answers.values()), answers.keys()
                assert expected(seed) in b"".join(answers["whole"])
            assert app.bodies.held_bytes == 0
        assert model.aligned

    asyncio.run(scenario())


def expected(seed: int) -> bytes:
    """The sums of pictures, as they are written in each answer."""
    model = Pictures()
    return model.predict(values(seed))["pictures"].tobytes()


@pytest.mark.exact
def test_requests_in_one_batch_keep_their_own_values() -> None:
    async def scenario() -> None:
        async with Engine.from_objects({"m": Pictures()}) as engine:
            app = application(engine)
            for _ in range(2):
                cuts = list(CUTS.values())
                asked = [ask(app.answer, INFER, message(infer(seed)), cuts[seed % 7]) for seed in range(14)]
                for seed, response in enumerate(await asyncio.gather(*asked)):
                    assert response.grpc == (0, "")
                    assert expected(seed) in response.messages[0]

    asyncio.run(scenario())
