"""Calls that wait for their clients have a part of the room for calls, and never that of others."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest

from headrace.base.errors import Overloaded, Unavailable
from headrace.config import Limits
from headrace.frontends.transport import waiting_calls
from headrace.frontends.transport.bodies import CALL_BYTES, INCLUDED_BYTES, Bodies
from tests.unit.frontends.transport.wire import GRPC, Event, Server, Wire, body, message, part

LIMITS = Limits(max_message_bytes=1000, max_inflight_bytes=5000, body_timeout_seconds=60.0)
UNARY, STREAM, REST = "/x.Echo/Unary", "/x.Echo/Stream", "/echo/x"
SILENT: list[Event] = []
WHOLE = body(message(b"a"))


def is_last(event: Event) -> bool:
    return not event.get("more_body")


@asynccontextmanager
async def asked(
    server: Server, path: str, crowd: Sequence[Sequence[Event]]
) -> AsyncIterator[tuple[list[Wire], list[asyncio.Task[None]]]]:
    """So many calls open at once, for as long as the block lasts."""
    wires = [Wire(events) for events in crowd]
    sizes = [len(events[0]["body"]) if len(events) == 1 and is_last(events[0]) else 0 for events in crowd]
    headers = GRPC if path != REST else []
    scopes = [server.scope("POST", path, [*headers, (b"content-length", b"%d" % size)]) for size in sizes]
    calls = [
        asyncio.create_task(server.application(scope, wire.receive, wire.send))
        for scope, wire in zip(scopes, wires, strict=True)
    ]
    for _ in range(20):
        await asyncio.sleep(0)
    yield wires, calls
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


def outcome(wire: Wire) -> int | None:
    """The status of REST, or gRPC's in the trailers; None if there is no answer yet."""
    if not wire.sent:
        return None
    trailers = dict(wire.sent[-1].get("headers", ())) or dict(wire.sent[0]["headers"])
    found = trailers.get(b"grpc-status")
    return wire.sent[0]["status"] if found is None else int(found)


@pytest.mark.parametrize(("path", "ended", "good"), [(UNARY, 14, 0), (STREAM, 14, 0), (REST, 503, 200)])
def test_of_too_many_silent_calls_those_that_were_silent_longest_are_ended(
    path: str, ended: int, good: int
) -> None:
    server = Server(LIMITS, call_bytes=1000, most_waiting=2)

    async def scenario() -> None:
        async with asked(server, path, [SILENT] * 4) as (wires, _):
            assert [outcome(wire) for wire in wires] == [ended, ended, None, None]
            for other, answered in ((UNARY, 0), (STREAM, 0), (REST, 200)):
                async with asked(server, other, [WHOLE] * 20) as (others, calls):
                    await asyncio.wait_for(asyncio.gather(*calls), 120)
                    assert {outcome(wire) for wire in others} <= {answered}
            wires[3].more.put_nowait(WHOLE[0])
            for _ in range(20):
                await asyncio.sleep(0)
            assert outcome(wires[3]) == good

    asyncio.run(scenario())


@pytest.mark.parametrize("path", [UNARY, STREAM, REST])
def test_what_is_coming_is_never_ended_for_what_is_silent(path: str) -> None:
    server = Server(LIMITS, call_bytes=1000, most_waiting=2)
    first, *rest = body(*[message(b"abc")[at : at + 1] for at in range(8)])

    async def scenario() -> None:
        async with asked(server, path, [[first]]) as (coming, calls):
            for event in rest:
                async with asked(server, UNARY, [SILENT] * 5):
                    assert not calls[0].done()
                    coming[0].more.put_nowait(event)
            await asyncio.wait_for(calls[0], 120)
            assert outcome(coming[0]) == (200 if path == REST else 0)

    asyncio.run(scenario())


def test_of_too_many_that_stopped_on_their_way_those_that_stopped_first_are_ended() -> None:
    """A byte more than nothing must not be another way of taking all the room."""
    server = Server(LIMITS, call_bytes=1000, most_waiting=2)

    async def scenario() -> None:
        async with asked(server, UNARY, [[part(b"\x00")]] * 3) as (wires, _):
            assert [outcome(wire) for wire in wires] == [14, None, None]
        async with asked(server, STREAM, [[part(message(b"a"))]] * 3) as (wires, calls):
            assert [call.done() for call in calls] == [True, False, False]
            assert outcome(wires[0]) == 14

    asyncio.run(scenario())


def test_a_stream_without_a_first_message_is_given_up() -> None:
    limits = msgspec.structs.replace(LIMITS, body_timeout_seconds=0.05)
    response = Server(limits).grpc([], path=STREAM)
    status, said = response.grpc
    assert status == 4
    assert "no message arrived within 0.05 s after the stream was opened" in said


def test_a_call_that_is_cancelled_by_its_server_is_not_answered() -> None:
    server = Server(LIMITS)

    async def scenario() -> None:
        async with asked(server, UNARY, [SILENT]) as (wires, calls):
            calls[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await calls[0]
            assert wires[0].sent == []
            assert server.application.bodies.taken_bytes == 0

    asyncio.run(scenario())


def test_the_numbers_by_default() -> None:
    """46,000 silent streams took 960 MB: each counts with what it took, and a quarter may be silent."""
    assert CALL_BYTES == (20 + 4) * 1024
    bodies = Bodies(Limits())
    assert bodies.call_bytes == CALL_BYTES
    unseen = bodies.calm_bytes // CALL_BYTES
    assert (unseen, bodies.silent.most, bodies.begun.most) == (1365, 5461, 5461)
    for _ in range(512 * 1024 * 1024 // CALL_BYTES):
        bodies.open()
        bodies.check_room()
    bodies.open()
    with pytest.raises(Overloaded, match=r"^21845 requests are open, .* max_inflight_bytes = 536870912"):
        bodies.check_room()


@pytest.mark.parametrize("path", [UNARY, STREAM, REST])
def test_what_is_ended_leaves_nothing_to_the_garbage_collector(path: str) -> None:
    """It comes rarely, and thousands of ended calls would wait for it."""
    server = Server(LIMITS, most_waiting=1)

    async def scenario() -> None:
        async with asked(server, path, [SILENT] * 51) as (wires, calls):
            gc.collect()
            gc.disable()
            try:
                del wires[:], calls[:50]
                async with asked(server, path, [SILENT] * 50) as (others, more):
                    del others[:], more[:49]
                    assert gc.collect() < 50
            finally:
                gc.enable()

    asyncio.run(scenario())


def test_a_server_that_stops_ends_streams_between_their_messages_only() -> None:
    """What has come is answered, what has come in part may arrive, and unary calls are awaited."""
    server = Server(Limits(body_timeout_seconds=60.0))
    half, rest = message(b"abc")[:6], message(b"abc")[6:]

    async def scenario() -> None:
        crowd = [SILENT, [part(message(b"a"))], [part(half)]]
        async with (
            asked(server, STREAM, crowd) as (wires, calls),
            asked(server, UNARY, [SILENT, [part(half)]]) as (unary, _),
        ):
            server.application.pauses.end()
            await asyncio.wait(calls[:2], timeout=30)
            assert [outcome(wire) for wire in wires] == [14, 14, None]
            said = dict(wires[1].sent[-1]["headers"])[b"grpc-message"]
            assert said.startswith(b"the server is stopping")
            assert [event.get("body") for event in wires[1].sent[1:2]] == [message(b"a")]
            assert [outcome(wire) for wire in unary] == [None, None]
            wires[2].more.put_nowait(part(rest))
            await asyncio.wait(calls[2:], timeout=30)
            assert outcome(wires[2]) == 14
            assert wires[2].sent[1]["body"] == message(b"abc")
        async with asked(server, STREAM, [SILENT, [part(message(b"a"))] * 3]) as (wires, calls):
            await asyncio.wait(calls, timeout=30)
            assert [outcome(wire) for wire in wires] == [14, 14]
            assert sum(event.get("body") == message(b"a") for event in wires[1].sent) == 3

    asyncio.run(scenario())


@pytest.mark.parametrize(("first", "unseen"), [([], 10), ([part(b"\x00")], 9)], ids=["silent", "begun"])
def test_while_little_is_taken_nobody_is_ended_for_being_silent(first: list[Event], unseen: int) -> None:
    """Then it costs a call nothing that others might have to be ended."""
    server = Server(
        Limits(max_message_bytes=1000, max_inflight_bytes=160_000), call_bytes=1000, most_waiting=2
    )
    server.application.bodies.calm_bytes = 10_000

    async def scenario() -> None:
        async with asked(server, UNARY, [first] * 14) as (wires, _):
            assert [outcome(wire) for wire in wires] == [*[None] * unseen, *[14] * (12 - unseen), None, None]

    asyncio.run(scenario())


def test_a_small_body_is_within_what_its_call_counts_with() -> None:
    server = Server(Limits(), call_bytes=CALL_BYTES)
    server.application.bodies.included_bytes = INCLUDED_BYTES
    server.release = asyncio.Event()
    small, large = bytes(INCLUDED_BYTES), bytes(INCLUDED_BYTES + 1)

    async def scenario() -> None:
        bodies = server.application.bodies
        for path, frame in ((UNARY, message), (REST, bytes)):
            async with asked(server, path, [body(frame(small))] * 3):
                assert (bodies.taken_bytes, bodies.held_bytes) == (3 * CALL_BYTES, 0)
            async with asked(server, path, [body(frame(large))] * 3):
                assert (bodies.taken_bytes - 3 * CALL_BYTES, bodies.held_bytes) == (3 * len(large),) * 2
            assert (bodies.taken_bytes, bodies.held_bytes) == (0, 0)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("pause_seconds", "pauses_seconds", "is_received"),
    [(60.0, 60.0, True), (0.0, 60.0, False), (60.0, 0.0, False)],
)
def test_when_the_server_stops_messages_that_arrive_within_the_last_pauses_are_received(
    pause_seconds: float, pauses_seconds: float, is_received: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_calls, "_LAST_PAUSE_SECONDS", pause_seconds)
    monkeypatch.setattr(waiting_calls, "_LAST_PAUSES_SECONDS", pauses_seconds)

    async def message() -> bytes:
        for _ in range(5):
            await asyncio.sleep(0)
        return b"message"

    async def scenario() -> bytes | None:
        pauses = waiting_calls.Pauses()
        pauses.end()
        return await pauses.of_stream().coming(message, None)

    if is_received:
        assert asyncio.run(scenario()) == b"message"
    else:
        with pytest.raises(Unavailable, match="stopping"):
            asyncio.run(scenario())


def test_a_pause_that_is_open_when_the_server_stops_ends_after_the_last_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting_calls, "_LAST_PAUSE_SECONDS", 0.0)

    async def scenario() -> None:
        pauses = waiting_calls.Pauses()
        silent = asyncio.create_task(pauses.of_stream().coming(asyncio.Event().wait, None))
        await asyncio.sleep(0)
        pauses.end()
        with pytest.raises(Unavailable, match="stopping"):
            await silent

    asyncio.run(scenario())
