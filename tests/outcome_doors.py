"""Every door that a call can come in by, over one engine, asked in the same words: to test how calls end."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import grpc
from grpc import aio

from headrace.base.errors import HeadraceError
from headrace.batching.request import Settlement
from headrace.config import BatchingPolicy, CachePolicy, ModelConfig, ServerConfig
from headrace.frontends.service import Service
from headrace.frontends.transport.grpcio import GrpcioTransport
from headrace.frontends.wire import protos
from headrace.server.server import application, grpc_methods
from headrace.serving.engine import Engine
from headrace.telemetry.outcomes import Channel, Outcome, said
from tests.models import Doubling
from tests.unit.frontends.transport.wire import GRPC, Event, Wire, body, message
from tests.waiting import until_in_loop

_INFER = "/inference.GRPCInferenceService/ModelInfer"
_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
_PREDICT = "/tensorflow.serving.PredictionService/Predict"
CLIENT = ("10.1.2.3", 4567)


class Ask(NamedTuple):
    """A question that every door can be asked.

    Attributes:
        model: ``m`` doubles; ``slow`` does once its gate is open, one call at a time, with one row waiting.
        value: Of both numbers of its row; the model fails on negative ones.
        rows: How many rows.
        is_broken: Whether it is no question at all: bytes that are no message, a row of the wrong length.
        seconds: What the answer is worth waiting for.
    """

    model: str = "m"
    value: float = 1.0
    rows: int = 1
    is_broken: bool = False
    seconds: float | None = None

    @property
    def x(self) -> list[list[float]]:
        """The inputs."""
        return [[self.value] * (3 if self.is_broken else 2)] * self.rows


@dataclass
class World:
    """An engine with its doors.

    Attributes:
        engine: The engine.
        gate: Opens the slow model.
        given: What an observer was given.
        port: Of grpcio's server.
        metadata: Of calls of grpcio's server.
    """

    engine: Engine
    gate: threading.Event
    given: list[Outcome] = field(default_factory=list)
    port: int = 0
    metadata: Sequence[tuple[str, str]] = ()

    def __post_init__(self) -> None:
        """Open the doors."""
        self.application = application(self.engine)

    def codes(self) -> Counter[tuple[Channel, str]]:
        """How the calls ended, as the observer was told."""
        return Counter((one.channel, said(one.channel, one.code)) for one in self.given)

    def tally(self) -> Counter[tuple[Channel, str]]:
        """How they ended, as the metrics have it."""
        found = Counter[tuple[Channel, str]]()
        for channel, tally in self.engine.outcomes.tallies.items():
            found[channel, "200" if channel is Channel.REST else "OK"] = tally.answered
            found.update({(channel, code): count for code, count in tally.failed.items()})
        return +found

    async def ask(self, how: str, ask: Ask) -> None:
        """Ask by one of ``DOORS``; what comes of it is the outcomes' to say."""
        if DOORS[how] is Channel.IN_PROCESS:
            with suppress(HeadraceError, KeyError):
                by = {"callback": self._by_callback, "thread": self._by_thread}
                await by.get(how, self._in_process)(ask)
        elif how == "grpcio":
            await self._by_grpcio(ask)
        elif how.startswith("REST"):
            path = f"/v1/models/{ask.model}:predict" if how == "REST" else f"/v2/models/{ask.model}/infer"
            timeout = [] if ask.seconds is None else [(b"x-request-timeout-ms", b"%d" % (ask.seconds * 1000))]
            await self.send(path, body(_json(how, ask)), timeout)
        else:
            path = {"gRPC": _INFER, "gRPC, TensorFlow": _PREDICT, "gRPC stream": _STREAM}[how]
            payload = _predict(ask) if path == _PREDICT else _infer(ask)
            timeout = [] if ask.seconds is None else [(b"grpc-timeout", b"%dm" % (ask.seconds * 1000))]
            await self.send(path, body(message(payload)), [*GRPC, *timeout])

    async def send(
        self, path: str, events: list[Event], headers: list[tuple[bytes, bytes]], method: str = "POST"
    ) -> Wire:
        """One request over ASGI."""
        scope: Event = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": headers,
            "query_string": b"",
            "client": CLIENT,
        }
        wire = Wire(events)
        await self.application(scope, wire.receive, wire.send)
        return wire

    async def _in_process(self, ask: Ask) -> None:
        await self.engine.predict(ask.model, {"x": ask.x}, timeout_seconds=ask.seconds)

    async def _by_thread(self, ask: Ask) -> None:
        predict = partial(self.engine.predict_blocking, timeout_seconds=ask.seconds)
        await asyncio.to_thread(predict, ask.model, {"x": ask.x})

    async def _by_callback(self, ask: Ask) -> None:
        loaded = self.engine.loaded(ask.model)
        checked = loaded.signatures["serving_default"].check({"x": ask.x})
        settled: asyncio.Future[Settlement] = asyncio.get_running_loop().create_future()
        deadline = asyncio.get_running_loop().time() + (ask.seconds or 1e6)
        request = self.engine.submit(loaded, checked, settled.set_result, deadline=deadline)
        try:
            await settled
        finally:
            request.abandon()

    async def _by_grpcio(self, ask: Ask) -> None:
        async with aio.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            await channel.channel_ready()  # of a call whose time is over before that the server never hears
            with suppress(grpc.RpcError):
                method = channel.unary_unary(_INFER)
                await method(_infer(ask), timeout=ask.seconds, metadata=self.metadata)

    async def until_taken(self, requests: int) -> None:
        """Wait until the slow model holds so many requests, the first of them on its thread."""
        slow = self.engine.loaded("slow")
        await until_in_loop(
            lambda: slow.outstanding == requests and slow.batcher.queued_rows == max(0, requests - 1)
        )


ASGI_DOORS: Mapping[str, Channel] = {
    "REST": Channel.REST,
    "REST, V2": Channel.REST,
    "gRPC": Channel.GRPC,
    "gRPC, TensorFlow": Channel.GRPC,
    "gRPC stream": Channel.GRPC,
}
DOORS: Mapping[str, Channel] = {
    **ASGI_DOORS,
    "grpcio": Channel.GRPC,
    "in process": Channel.IN_PROCESS,
    "callback": Channel.IN_PROCESS,
    "thread": Channel.IN_PROCESS,
}


@asynccontextmanager
async def world(
    *, by_grpcio: bool = False, is_observed: bool = True, cache: CachePolicy | None = None
) -> AsyncIterator[World]:
    """Two models, and all doors to them."""
    gate = threading.Event()
    models = {"m": Doubling(), "slow": Doubling(gate.wait)}
    policy = BatchingPolicy(max_batch_rows=1, max_queue_rows=1, instances=1, inline_seconds=0.0)
    gate.set()  # for the warm-up
    engine = Engine.from_objects(models, batching=policy)
    if cache is not None:
        engine._object_config = ModelConfig(batching=policy, cache=cache)
    async with engine:
        gate.clear()
        made = World(engine, gate)
        if is_observed:
            engine.outcomes.observe(made.given.append)
        try:
            if not by_grpcio:
                yield made
                return
            listener = socket.create_server(("127.0.0.1", 0))
            made.port = listener.getsockname()[1]
            config = ServerConfig(drain_seconds=0.2, drain_lead_seconds=0.0)
            transport = GrpcioTransport(made.application, grpc_methods(Service(engine)), listener, config)
            await transport.start()
            try:
                yield made
            finally:
                gate.set()
                await transport.stop()
        finally:
            gate.set()


def _json(how: str, ask: Ask) -> bytes:
    if ask.is_broken:
        return b'{"instances": [['
    if how == "REST":
        return json.dumps({"instances": ask.x}).encode()
    tensor = {"name": "x", "datatype": "FP32", "shape": [ask.rows, 2], "data": ask.x}
    return json.dumps({"inputs": [tensor]}).encode()


def _infer(ask: Ask) -> bytes:
    if ask.is_broken:
        return b"\xff"
    request = protos.message("inference.ModelInferRequest")(model_name=ask.model)
    tensor = request.inputs.add(name="x", datatype="FP32", shape=[ask.rows, 2])
    tensor.contents.fp32_contents.extend([ask.value] * 2 * ask.rows)
    written: bytes = request.SerializeToString()
    return written


def _predict(ask: Ask) -> bytes:
    if ask.is_broken:
        return b"\xff"
    request = protos.message("tensorflow.serving.PredictRequest")()
    request.model_spec.name = ask.model
    tensor = request.inputs["x"]
    tensor.dtype = 1
    for size in (ask.rows, 2):
        tensor.tensor_shape.dim.add(size=size)
    tensor.float_val.extend([ask.value] * 2 * ask.rows)
    written: bytes = request.SerializeToString()
    return written
