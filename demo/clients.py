"""Two clients, each with one protocol: one row per request over REST, thirty-two per request over gRPC.

The request bodies are made beforehand, so that the load spends its time on asking.
"""

from __future__ import annotations

import asyncio
import json
from typing import NamedTuple, Protocol

import grpc
import numpy as np
import numpy.typing as npt

from demo.training import INPUT, OUTPUT, Rows
from headrace.frontends.protos import message

PredictRequest = message("tensorflow.serving.PredictRequest")
PredictResponse = message("tensorflow.serving.PredictResponse")

DT_FLOAT = 1
LONGEST_WAIT_SECONDS = 10.0


class Answer(NamedTuple):
    """What came back for one request.

    Attributes:
        first_row: The first of the rows that were asked about.
        version: Which version of the model answered.
        liked: The probability of each row.
    """

    first_row: int
    version: int
    liked: npt.NDArray[np.float64]


class Client(Protocol):
    """Asks about the next rows, one request after another."""

    async def ask(self) -> Answer:
        """Send the next request and wait for its answer."""

    async def close(self) -> None:
        """Leave."""


def json_bodies(rows: Rows) -> list[bytes]:
    """Make one Open Inference Protocol body per row."""
    tensor = {"name": INPUT, "datatype": "FP32", "shape": [1, rows.shape[1]]}
    outputs = [{"name": OUTPUT}]
    values = np.round(rows.astype(np.float64), 6).tolist()
    return [json.dumps({"inputs": [tensor | {"data": row}], "outputs": outputs}).encode() for row in values]


class RestClient:
    """One connection that speaks the Open Inference Protocol in JSON."""

    def __init__(self, port: int, model: str, bodies: list[bytes], start: int) -> None:
        """Prepare a connection; the first request opens it.

        Args:
            port: Where the server listens.
            model: The model to ask.
            bodies: The requests, one row each.
            start: The first of them to send.
        """
        self.port = port
        self.bodies = bodies
        self.next = start
        self.head = (
            f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        )
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self) -> Answer:
        """Send the next row and wait for its probability."""
        row = self.next % len(self.bodies)
        self.next += 1
        body = self.bodies[row]
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.streams
        writer.write(f"{self.head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        status, text = await asyncio.wait_for(self.read(reader), LONGEST_WAIT_SECONDS)
        if status != 200:
            raise OSError(f"HTTP {status}: {text[:300]!r}")
        answered = json.loads(text)
        (output,) = answered["outputs"]
        liked = np.array(output["data"], np.float64).reshape(output["shape"])[:, 1]
        return Answer(row, int(answered["model_version"]), liked)

    async def read(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        """Read one response whose length is stated."""
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        return int(head.split(None, 2)[1]), await reader.readexactly(length)

    async def close(self) -> None:
        """Close the connection."""
        if self.streams is not None:
            self.streams[1].close()
            await self.streams[1].wait_closed()
            self.streams = None


def predict_requests(rows: Rows, model: str, rows_per_request: int) -> list[bytes]:
    """Make TensorFlow Serving's Predict requests of so many rows each."""
    made = []
    for first in range(0, len(rows) - rows_per_request + 1, rows_per_request):
        request = PredictRequest(output_filter=[OUTPUT])
        request.model_spec.name = model
        tensor = request.inputs[INPUT]
        tensor.dtype = DT_FLOAT
        for size in (rows_per_request, rows.shape[1]):
            tensor.tensor_shape.dim.add(size=size)
        tensor.tensor_content = rows[first : first + rows_per_request].tobytes()
        made.append(request.SerializeToString())
    return made


class GrpcClient:
    """One caller that speaks TensorFlow Serving's Predict, over a channel that all callers share."""

    def __init__(
        self, channel: grpc.aio.Channel, bodies: list[bytes], rows_per_request: int, start: int
    ) -> None:
        """Prepare a caller.

        Args:
            channel: The channel to call over.
            bodies: The requests, serialized.
            rows_per_request: How many rows each has.
            start: The first of them to send.
        """
        self.predict = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        self.bodies = bodies
        self.rows_per_request = rows_per_request
        self.next = start

    async def ask(self) -> Answer:
        """Send the next rows and wait for their probabilities."""
        place = self.next % len(self.bodies)
        self.next += 1
        reply = await self.predict(self.bodies[place], timeout=LONGEST_WAIT_SECONDS)
        answered = PredictResponse.FromString(reply)
        output = answered.outputs[OUTPUT]
        values = (
            np.frombuffer(output.tensor_content, np.float32) if output.tensor_content else output.float_val
        )
        liked = np.array(values, np.float64).reshape(self.rows_per_request, 2)[:, 1]
        return Answer(place * self.rows_per_request, answered.model_spec.version.value, liked)

    async def close(self) -> None:
        """Nothing of its own: whoever made the channel closes it."""
