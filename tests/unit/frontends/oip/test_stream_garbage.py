"""Streams that have ended leave nothing to the garbage collector, which comes rarely."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.batching.request import NO_DEADLINE, Answer, Call
from headrace.config import Limits
from headrace.frontends.oip.grpc import grpc_methods
from headrace.frontends.transport.asgi import Application
from headrace.model.servable import CheckedInputs
from tests.unit.frontends.oip.doubles import LoadedDouble, ServiceDouble, echo, run
from tests.unit.frontends.oip.test_grpc import number
from tests.unit.frontends.transport.wire import GRPC, LEFT, Event, Server, Wire, body, message, part

STREAMS = 100
SCOPE = Server().scope("POST", "/inference.GRPCInferenceService/ModelStreamInfer", GRPC)
GOOD, UNKNOWN = message(number(1.0)), message(number(1.0, model="nobody"))


class Service(ServiceDouble):
    """Never answers a request for the model ``slow``."""

    async def predict(
        self,
        loaded: LoadedDouble,
        inputs: CheckedInputs,
        deadline: float = NO_DEADLINE,
        call: Call | None = None,
    ) -> Answer:
        if loaded.name == "slow":
            await asyncio.Event().wait()
        return await super().predict(loaded, inputs, deadline, call)


WAYS: dict[str, tuple[list[Event], int]] = {
    "without a message": (body(b""), 0),
    "answered": (body(GOOD, GOOD), 0),
    "a request refused": (body(UNKNOWN, GOOD), 0),
    "no message": (body(message(b"\xff")), 0),
    "silent for too long": ([], 4),
    "stopped within a message": ([part(GOOD[:-1])], 4),
    "one of too many silent ones": ([part(GOOD)], 14),
    "the client leaves": ([part(GOOD), LEFT], 1),
    "cut short": (body(GOOD[:-1]), 3),
    "an encoding that nobody knows": (body(message(b"x", compressed=True)), 12),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_that_ended_leaves_nothing(way: str) -> None:
    events, status = WAYS[way]
    patience_seconds = 0.05 if status == 4 else 60.0
    application = _application(0 if status == 14 else STREAMS, patience_seconds)

    async def one() -> None:
        wire = Wire(events)
        await application(SCOPE, wire.receive, wire.send)
        assert wire.sent[-1]["headers"][0] == (b"grpc-status", b"%d" % status)

    async def scenario() -> None:
        with _no_garbage():
            await asyncio.gather(*(one() for _ in range(STREAMS)))

    run(scenario())


def test_streams_that_end_with_the_server_leave_nothing() -> None:
    application = _application(most_waiting=STREAMS)

    async def one(events: list[Event]) -> None:
        wire = Wire(events)
        await application(SCOPE, wire.receive, wire.send)
        assert wire.sent[-1]["headers"][0] == (b"grpc-status", b"14")

    async def scenario() -> None:
        with _no_garbage():
            streams = asyncio.gather(*(one([part(GOOD)] * (at % 2)) for at in range(STREAMS)))
            for _ in range(10):
                await asyncio.sleep(0)
            application.pauses.end()
            await streams
            del streams

    run(scenario())


@pytest.mark.parametrize(
    "events",
    [[], [part(GOOD)], [part(message(number(1.0, model="slow")))], body(message(number(1.0, model="slow")))],
    ids=["silent", "between messages", "with a request under way", "with its last request under way"],
)
def test_a_stream_that_is_cancelled_leaves_nothing(events: list[Event]) -> None:
    application = _application(most_waiting=STREAMS)

    async def scenario() -> None:
        with _no_garbage():
            wires = [Wire(events) for _ in range(STREAMS)]
            calls = [asyncio.create_task(application(SCOPE, one.receive, one.send)) for one in wires]
            for _ in range(30):
                await asyncio.sleep(0)
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
            assert all(call.cancelled() for call in calls)
            del wires, calls, call

    run(scenario())


def test_a_stream_that_is_cancelled_while_it_ends_leaves_nothing() -> None:
    """So does a client that leaves: its stream is told, and then cancelled."""
    application = _application(most_waiting=STREAMS)

    async def scenario() -> None:
        with _no_garbage():
            wires = [Wire([part(GOOD), LEFT]) for _ in range(STREAMS)]
            calls = [asyncio.create_task(application(SCOPE, one.receive, one.send)) for one in wires]
            turns = 10
            for turn in range(turns):
                for call in calls[turn::turns]:
                    call.cancel()
                await asyncio.sleep(0)
            await asyncio.wait(calls)
            del wires, calls, call

    run(scenario())


def _application(most_waiting: int, patience_seconds: float = 60.0) -> Application:
    methods = grpc_methods(Service(echo("FP32"), echo("FP32", name="slow")))
    application = Application([], methods, Limits(body_timeout_seconds=patience_seconds))
    bodies = application.bodies
    bodies.silent.most = bodies.begun.most = most_waiting
    return application


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Fail if each stream of the block leaves something that only the garbage collector finds."""
    gc.collect()
    gc.disable()
    try:
        yield
        assert gc.collect() < STREAMS
    finally:
        gc.enable()
