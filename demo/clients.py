"""Two ways to ask: over REST about one film, over gRPC about a page of films with the person said once."""

from __future__ import annotations

import asyncio
import json
from typing import NamedTuple

import grpc
import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message

from demo.features import SCHEMA, Page, Value
from headrace.frontends.wire.protos import message
from headrace.stream.schema import Field

PredictRequest = message("tensorflow.serving.PredictRequest")
PredictResponse = message("tensorflow.serving.PredictResponse")

DT_FLOAT, DT_STRING, DT_INT64 = 1, 7, 9
OUTPUT = "probability"
LONGEST_WAIT_SECONDS = 10.0
INPUTS = [field for field in SCHEMA.fields if field.role != "label"]


class Answer(NamedTuple):
    """What came back for one request.

    Attributes:
        version: Which version of the model answered.
        liked: The probability of each film.
    """

    version: int
    liked: npt.NDArray[np.float64]


def values(field: Field, page: Page) -> list[Value]:
    """Give an input's rows, flat: one row if it belongs to the context, however many films there are."""
    rows = [page.context[field.name]] if field.context else page.candidates[field.name]
    if field.values == 1:
        return rows
    return [value for row in rows if isinstance(row, list) for value in padded(row, field.values)]


def padded(row: list[str], size: int) -> list[str]:
    """Fill up with empty texts, which are no values."""
    return row + [""] * (size - len(row))


def shape(field: Field, page: Page) -> list[int]:
    """Give an input's shape."""
    return [1 if field.context else len(page.liked), *([field.values] if field.values > 1 else [])]


class RestClient:
    """One connection that speaks the Open Inference Protocol in JSON."""

    def __init__(self, port: int, model: str) -> None:
        """Prepare a connection; the first request opens it.

        Args:
            port: Where the server listens.
            model: The model to ask.
        """
        self.port = port
        self.head = (
            f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        )
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, page: Page) -> Answer:
        """Ask about a page's films."""
        inputs = [
            {
                "name": field.name,
                "datatype": "FP32" if field.role == "dense" else "BYTES" if field.text else "INT64",
                "shape": shape(field, page),
                "data": values(field, page),
            }
            for field in INPUTS
        ]
        body = json.dumps({"inputs": inputs}).encode()
        status, text = await asyncio.wait_for(self.exchange(body), LONGEST_WAIT_SECONDS)
        if status != 200:
            raise OSError(f"HTTP {status}: {text[:300]!r}")
        answered = json.loads(text)
        (output,) = answered["outputs"]
        return Answer(int(answered["model_version"]), np.array(output["data"], np.float64))

    async def exchange(self, body: bytes) -> tuple[int, bytes]:
        """Send one request, and read its response, whose length is stated."""
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.streams
        writer.write(f"{self.head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        return int(head.split(None, 2)[1]), await reader.readexactly(length)

    async def close(self) -> None:
        """Close the connection."""
        if self.streams is not None:
            self.streams[1].close()
            await self.streams[1].wait_closed()
            self.streams = None


class GrpcClient:
    """Callers that speak TensorFlow Serving's Predict over one channel."""

    def __init__(self, channel: grpc.aio.Channel, model: str) -> None:
        """Prepare the call.

        Args:
            channel: The channel to call over.
            model: The model to ask.
        """
        self.predict = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        self.model = model

    def request(self, page: Page) -> Message:
        """Put a page into words: one row for the person, one for each film."""
        request = PredictRequest()
        request.model_spec.name = self.model
        for field in INPUTS:
            tensor = request.inputs[field.name]
            for size in shape(field, page):
                tensor.tensor_shape.dim.add(size=size)
            if field.text:
                tensor.dtype = DT_STRING
                tensor.string_val.extend(str(value).encode() for value in values(field, page))
            elif field.role == "dense":
                tensor.dtype = DT_FLOAT
                tensor.tensor_content = np.array(values(field, page), np.float32).tobytes()
            else:
                tensor.dtype = DT_INT64
                tensor.tensor_content = np.array(values(field, page), np.int64).tobytes()
        return request

    async def ask(self, request: Message, label: str = "") -> Answer:
        """Ask the newest version, or the one that a label points at."""
        if label:
            request.model_spec.version_label = label
        reply = await self.predict(request.SerializeToString(), timeout=LONGEST_WAIT_SECONDS)
        answered = PredictResponse.FromString(reply)
        liked = np.array(answered.outputs[OUTPUT].float_val, np.float64)
        return Answer(answered.model_spec.version.value, liked)
