"""REST: bodies in and out, and what is answered when something is wrong."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import random
import time
import zlib
from urllib.parse import unquote

import pytest

from headrace.base.errors import InvalidRequest, Overloaded, Unsupported
from headrace.batching.request import NO_DEADLINE
from headrace.config import Limits
from tests.unit.frontends.transport.wire import (
    LEFT,
    SMALL,
    Event,
    Response,
    Server,
    Wire,
    body,
    message,
    part,
)
from tests.unit.frontends.turns import Turns
from tests.waiting import until_in_loop


@pytest.fixture
def server() -> Server:
    return Server()


def error_of(response: Response) -> str:
    assert response.headers[b"content-type"] == b"application/json"
    assert response.headers[b"content-length"] == str(len(response.body)).encode()
    said = json.loads(response.body)
    assert list(said) == ["error"]
    return said["error"]


@pytest.mark.parametrize(
    "events",
    [body(b"hello"), [part(b"hello"), *body(b"")], body(b"he", b"", b"llo"), [part(b""), *body(b"hello")]],
    ids=["one chunk", "the end apart", "three chunks", "nothing first"],
)
def test_a_body_is_handed_over_whole_however_it_comes(server: Server, events: list[Event]) -> None:
    response = server.http("POST", "/echo/a b", events)
    assert (response.status, response.body) == (200, b"hello")
    assert response.headers == {b"content-type": b"text/x", b"content-length": b"5"}
    (call,) = server.http_calls
    assert (call.method, call.path, call.query) == ("POST", "/echo/a b", b"q=1")
    assert call.parameters == {"name": "a b"}
    assert call.deadline == NO_DEADLINE
    assert server.held_bytes == 0


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_other_methods_do_not_read_a_body(server: Server, method: str) -> None:
    server.answer = b"thing"
    assert server.http(method, "/things/x").body == b"thing"


def test_head_is_get_without_the_body(server: Server) -> None:
    server.answer = b"thing"
    response = server.http("HEAD", "/things/x")
    assert response.status == 200
    assert response.headers[b"content-length"] == b"5"
    assert response.body == b""
    assert server.http_calls[0].path == "/things/x"


def test_an_unknown_path_is_not_found(server: Server) -> None:
    response = server.http("GET", "/nowhere/" + "x" * 5000)
    assert response.status == 404
    assert "/nowhere/" in error_of(response)
    assert len(response.body) < 500


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", "/echo/x", b"POST"), ("POST", "/things/x", b"DELETE, GET"), ("OPTIONS", "/echo/x", b"POST")],
)
def test_another_method_is_not_allowed(server: Server, method: str, path: str, allowed: bytes) -> None:
    response = server.http(method, path, body(b"x"))
    assert response.status == 405
    assert response.headers[b"allow"] == allowed
    assert method in error_of(response)


def test_below_a_root_path_the_routes_are_the_same(server: Server) -> None:
    scope = server.scope("POST", "/mounted/echo/x")
    scope["root_path"] = "/mounted"
    assert asyncio.run(server.exchange(scope, body(b"hi"))).body == b"hi"


# --- compression ---


@pytest.mark.parametrize("encoding", [b"gzip", b"GZIP", b"x-gzip", b"deflate"])
def test_compressed_bodies_are_opened(server: Server, encoding: bytes) -> None:
    packed = (zlib if encoding == b"deflate" else gzip).compress(b"a" * 900)
    assert server.http("POST", "/echo/x", body(packed), {b"content-encoding": encoding}).body == b"a" * 900
    assert server.held_bytes == 0


def test_identity_is_no_compression(server: Server) -> None:
    assert server.http("POST", "/echo/x", body(b"a"), {b"content-encoding": b"identity"}).body == b"a"


@pytest.mark.parametrize(
    ("packed", "encoding", "status"),
    [
        (b"not gzip", b"gzip", 400),
        (gzip.compress(b"abc")[:-1], b"gzip", 400),
        (gzip.compress(b"a" * 1001), b"gzip", 413),
        (gzip.compress(b"\x00" * 5_000_000)[:1000], b"gzip", 413),
        (b"abc", b"br", 501),
        (gzip.compress(gzip.compress(b"abc")), b"gzip, gzip", 501),
    ],
    ids=["not gzip", "cut short", "too large", "a bomb", "unknown", "twice"],
)
def test_compression_that_is_wrong_has_its_code(
    server: Server, packed: bytes, encoding: bytes, status: int
) -> None:
    response = server.http("POST", "/echo/x", body(packed), {b"content-encoding": encoding})
    assert response.status == status
    assert error_of(response)
    assert server.http_calls == []
    assert server.held_bytes == 0


@pytest.mark.parametrize(
    ("accepted", "size", "packed"),
    [
        (b"gzip, deflate", 10_000, True),
        (b"br;q=1.0, gzip;q=0.5", 10_000, True),
        (b"gzip", 100, False),
        (b"br", 10_000, False),
        (b"gzip;q=0", 10_000, False),
        (b"gzip; q=0.000, br", 10_000, False),
        (b"", 10_000, False),
    ],
)
def test_large_answers_are_compressed_for_who_accepts_it(
    server: Server, accepted: bytes, size: int, packed: bool
) -> None:
    server.answer = b"ab" * (size // 2)
    response = server.http("GET", "/things/x", headers={b"accept-encoding": accepted})
    assert (response.headers.get(b"content-encoding") == b"gzip") is packed
    assert response.headers[b"content-length"] == str(len(response.body)).encode()
    assert (gzip.decompress(response.body) if packed else response.body) == server.answer
    assert (b"vary" in response.headers) is packed


# --- limits ---


@pytest.mark.parametrize(
    "events",
    [body(b"a" * 1001), [part(b"a" * 600), part(b"a" * 600), part(b"never")], [part(b"a" * 2000), part(b"")]],
    ids=["at once", "in pieces", "the first chunk"],
)  # fmt: skip
def test_a_body_over_the_limit_is_too_large_as_soon_as_that_is_known(
    server: Server, events: list[Event]
) -> None:
    response = server.http("POST", "/echo/x", events)
    assert response.status == 413
    assert "1000" in error_of(response)
    assert server.held_bytes == 0


def test_a_body_at_the_limit_is_taken(server: Server) -> None:
    assert server.http("POST", "/echo/x", body(b"a" * 500, b"a" * 500)).status == 200


def test_a_body_that_trickles_is_given_up() -> None:
    server = Server(Limits(max_message_bytes=1000, max_inflight_bytes=2000, body_timeout_seconds=0.02))
    response = server.http("POST", "/echo/x", [part(b"a"), part(b"b")])
    assert response.status == 504
    assert "2 bytes" in error_of(response)
    assert server.held_bytes == 0


def test_a_client_that_leaves_within_its_body_costs_nothing(server: Server) -> None:
    for events in ([LEFT], [part(b"a"), LEFT], [part(b"a"), part(b"b"), LEFT]):
        assert server.http("POST", "/echo/x", events).status == 499
        assert server.held_bytes == 0
    assert server.http_calls == []


def test_bodies_on_their_way_count_in_the_budget() -> None:
    """Many slow bodies must not hold more than many at once may."""
    server = Server(SMALL)

    async def crowd() -> None:
        wires = [Wire([part(b"a" * 500), part(b"a" * 400)]) for _ in range(3)]
        calls = []
        for wire in wires:
            scope = server.scope("POST", "/echo/x")
            calls.append(asyncio.create_task(server.application(scope, wire.receive, wire.send)))
        async with asyncio.timeout(30):
            await calls[2]
            assert wires[2].sent[0]["status"] == 503
            assert dict(wires[2].sent[0]["headers"])[b"retry-after"] == b"1"
            assert server.held_bytes == 1800
            wires[0].more.put_nowait(body(b"b")[0])
            await calls[0]
            assert wires[0].sent[0]["status"] == 200
            calls[1].cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        assert server.held_bytes == 0

    asyncio.run(crowd())


def test_a_decompressed_body_counts_as_large_as_it_is() -> None:
    server = Server(SMALL)
    packed = gzip.compress(b"a" * 1000)

    async def crowd() -> None:
        server.release = asyncio.Event()
        wires = [Wire(body(packed)) for _ in range(3)]
        calls = []
        for wire in wires:
            scope = server.scope("POST", "/echo/x", [(b"content-encoding", b"gzip")])
            calls.append(asyncio.create_task(server.application(scope, wire.receive, wire.send)))
        async with asyncio.timeout(30):
            await calls[2]
            assert wires[2].sent[0]["status"] == 503
            assert server.held_bytes == 2000
            server.release.set()
            await asyncio.gather(*calls)
        assert [wire.sent[0]["status"] for wire in wires] == [200, 200, 503]
        assert server.held_bytes == 0

    asyncio.run(crowd())


# --- deadlines and errors ---


def test_a_timeout_header_is_a_deadline_that_runs_from_the_requests_arrival() -> None:
    server = Server(SMALL)

    async def slowly() -> None:
        wire = Wire([part(b"a"), part(b"b")])
        scope = server.scope("POST", "/echo/x", [(b"x-request-timeout-ms", b"60000")])
        before = time.monotonic()
        call = asyncio.create_task(server.application(scope, wire.receive, wire.send))
        await asyncio.sleep(0)
        started = time.monotonic()
        await asyncio.sleep(0.02)  # the body takes its time, and the deadline does not wait for it
        wire.more.put_nowait(body(b"c")[0])
        async with asyncio.timeout(30):
            await call
        assert before + 59.995 <= server.http_calls[0].deadline <= started + 59.995

    asyncio.run(slowly())


@pytest.mark.parametrize("value", [b"soon", b"-1", b"0", b"nan", b""])
def test_what_is_not_a_timeout_is_refused_by_its_name(server: Server, value: bytes) -> None:
    response = server.http("POST", "/echo/x", body(b"x"), {b"x-request-timeout-ms": value})
    assert response.status == 400
    assert {*error_of(response).split()} >= {"x-request-timeout-ms:", repr(value.decode())}


@pytest.mark.parametrize("digits", [30, 400, 5000])
def test_numbers_of_any_length_are_no_internal_error(server: Server, digits: int) -> None:
    timeout = server.http("POST", "/echo/x", body(b"x"), {b"x-request-timeout-ms": b"9" * digits})
    assert timeout.status == 200, "longer than anybody lives is no deadline"
    length = server.http("POST", "/echo/x", body(b"x"), {b"content-length": b"9" * digits})
    assert length.status == 413
    grpc = server.grpc(body(message(b"x")), headers={b"grpc-timeout": b"9" * digits + b"S"})
    assert grpc.grpc[0] == 3


@pytest.mark.parametrize("size", [10_000, 20_000_000])
def test_what_is_said_back_is_never_much_however_much_came(server: Server, size: int) -> None:
    text = "\u20ac" * size
    server.answer = InvalidRequest(f"unknown input {text!r}")
    response = server.http("POST", "/echo/x", body(b"x"))
    assert response.status == 400
    assert len(response.body) < 16_000
    assert len(server.grpc(body(message(b"x"))).trailers[b"grpc-message"]) <= 4096


def test_an_endless_timeout_is_no_deadline(server: Server) -> None:
    server.http("POST", "/echo/x", body(b"x"), {b"x-request-timeout-ms": b"inf"})
    assert server.http_calls[0].deadline == NO_DEADLINE


def test_a_typed_error_has_its_status_and_says_why(server: Server) -> None:
    server.answer = Unsupported('no "such" feature')
    response = server.http("POST", "/echo/x", body(b"x"))
    assert response.status == 501
    assert error_of(response) == 'no "such" feature'
    assert server.held_bytes == 0


def test_a_refusal_says_when_to_come_back_in_whole_seconds(server: Server) -> None:
    server.answer = Overloaded("full", retry_after_seconds=1.2)
    response = server.http("POST", "/echo/x", body(b"x"))
    assert (response.status, response.headers[b"retry-after"]) == (503, b"2")


def test_a_bug_is_an_internal_error_without_internals_and_is_logged(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.answer = RuntimeError("secret")
    with caplog.at_level(logging.ERROR):
        response = server.http("POST", "/echo/x", body(b"x"))
    assert response.status == 500
    assert "secret" not in error_of(response)
    assert "secret" in caplog.text
    assert server.held_bytes == 0


# --- not requests ---


def test_the_lifespan_protocol_is_answered(server: Server) -> None:
    scope: Event = {"type": "lifespan"}
    events = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    response = asyncio.run(server.exchange(scope, events))
    assert [event["type"] for event in response.sent] == [
        "lifespan.startup.complete", "lifespan.shutdown.complete",
    ]  # fmt: skip


def test_a_websocket_is_not_answered(server: Server) -> None:
    with pytest.raises(NotImplementedError, match="websocket"):
        asyncio.run(server.exchange({"type": "websocket"}, []))


# --- what a call says of its costs ---


def test_what_a_codec_holds_is_given_back_with_the_body() -> None:
    server = Server(Limits())
    server.hold = 5000
    assert server.http("POST", "/echo/x", body(b"a" * 100_000)).status == 200
    assert server.most_held == 105_000
    assert server.held_bytes == 0


@pytest.mark.parametrize("path", ["/echo/x", "/x.Echo/Unary", "/x.Echo/Stream"])
def test_calls_without_any_body_count_in_the_budget(path: str) -> None:
    """50 connections of 1,000 streams each that were never finished took 540 MB."""
    server = Server(Limits(max_message_bytes=1000, max_inflight_bytes=3500), call_bytes=1000)
    headers = [(b"content-type", b"application/grpc")] if path.startswith("/x") else []

    async def crowd() -> None:
        wires = [Wire([]) for _ in range(4)]
        calls = []
        for wire in wires:
            scope = server.scope("POST", path, headers)
            calls.append(asyncio.create_task(server.application(scope, wire.receive, wire.send)))
        async with asyncio.timeout(30):
            await calls[3]
            said = str(wires[3].sent)
            assert "max_inflight_bytes = 3500" in unquote(said)
            assert "503" in said or "b'grpc-status', b'14'" in said
            for call in calls[:3]:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            again = Wire(body(message(b"a")))
            await server.application(server.scope("POST", path, headers), again.receive, again.send)
            assert "503" not in str(again.sent)
            assert "b'14'" not in str(again.sent)

    asyncio.run(crowd())


def test_opening_and_packing_large_bodies_lets_others_go_on() -> None:
    server = Server(Limits())
    large = random.Random(1).randbytes(2_000_000)
    others = Turns()

    async def ask() -> Response:
        scope = server.scope(
            "POST", "/echo/x", [(b"content-encoding", b"gzip"), (b"accept-encoding", b"gzip")]
        )
        packed = body(gzip.compress(large))
        async with others:
            return await server.exchange(scope, packed)

    assert gzip.decompress(asyncio.run(ask()).body) == large
    assert others.count > 10
    assert server.held_bytes == 0


def test_a_body_that_opens_counts_while_it_grows() -> None:
    server = Server(Limits(max_message_bytes=4_000_000, max_inflight_bytes=4_000_000))
    server.application.bodies.hold_of_stream(3_900_000)  # of others
    packed = gzip.compress(bytes(1_000_000))
    assert server.http("POST", "/echo/x", body(packed), {b"content-encoding": b"gzip"}).status == 503
    assert server.http_calls == []
    assert server.held_bytes == 3_900_000


# --- stopping ---


def test_while_it_drains_each_answer_ends_its_connection(server: Server) -> None:
    assert b"connection" not in server.http("POST", "/echo/x", body(b"x")).headers
    server.application.drain()
    for path, status in (("/echo/x", 200), ("/nowhere", 404)):
        response = server.http("POST", path, body(b"x"))
        assert (response.status, response.headers[b"connection"]) == (status, b"close")


def test_answers_are_held_back_around_the_word_that_a_connection_ends(server: Server) -> None:
    async def scenario() -> None:
        async def asked(scope: Event, events: list[Event]) -> tuple[asyncio.Task[None], Wire]:
            wire = Wire(events)
            return asyncio.create_task(server.application(scope, wire.receive, wire.send)), wire

        async with server.application.holding_answers(0.02):
            http, http_wire = await asked(server.scope("POST", "/echo/x"), body(b"x"))
            grpc, grpc_wire = await asked(server.scope("POST", "/x.Echo/Unary"), body(message(b"x")))
            lost, lost_wire = await asked(server.scope("POST", "/nowhere"), body(b"x"))
            wrong, wrong_wire = await asked(server.scope("POST", "/x.Echo/Unary"), body(b"no message"))
            stream, stream_wire = await asked(server.scope("POST", "/x.Echo/Stream"), body(message(b"x")))
            await until_in_loop(lambda: server.http_calls and server.grpc_calls and stream_wire.sent)
            assert [len(wire.sent) for wire in (http_wire, grpc_wire, lost_wire, wrong_wire)] == [0] * 4
            assert stream_wire.sent[-1]["type"] != "http.response.trailers"
        await asyncio.wait_for(asyncio.gather(http, grpc, lost, wrong, stream), 120)
        assert Response(http_wire.sent).status == 200
        fine = [Response(wire.sent).grpc == (0, "") for wire in (grpc_wire, stream_wire, wrong_wire)]
        assert (fine, Response(lost_wire.sent).status) == ([True, True, False], 404)
        await asyncio.wait_for((late := await asked(server.scope("POST", "/echo/x"), body(b"x")))[0], 120)
        assert Response(late[1].sent).status == 200

    asyncio.run(scenario())


# --- headers that come several times, or lie ---


@pytest.mark.parametrize(
    ("encodings", "status"),
    [
        ((b"br", b"gzip"), 501),
        ((b"gzip", b"br"), 501),
        ((b"gzip", b"identity"), 200),
        ((b"identity", b"gzip"), 200),
    ],
)
def test_what_two_content_encodings_say_leaves_nothing_held(
    encodings: tuple[bytes, ...], status: int
) -> None:
    server = Server(Limits())
    packed = gzip.compress(b"a" * 50_000)
    headers = [(b"content-length", b"%d" % len(packed))]
    headers += [(b"content-encoding", encoding) for encoding in encodings]
    bodies = server.application.bodies
    response = asyncio.run(server.exchange(server.scope("POST", "/echo/x", headers), body(packed)))
    assert response.status == status
    assert (bodies.held_bytes, bodies.taken_bytes) == (0, 0)


@pytest.mark.parametrize("length", [b"999999999999", b"9" * 30, b"0" * 22 + b"27"])
@pytest.mark.parametrize("encoding", [b"gzip", b"identity"])
def test_a_body_that_is_announced_too_large_is_refused_before_it_comes(
    length: bytes, encoding: bytes
) -> None:
    server = Server(Limits())
    scope = server.scope("POST", "/echo/x", [(b"content-length", length), (b"content-encoding", encoding)])

    async def refused() -> Response:
        async with asyncio.timeout(30):
            return await server.exchange(scope, [])

    assert asyncio.run(refused()).status == 413


def test_small_calls_count_beside_what_one_holds() -> None:
    """Small bodies are within what their calls count with; that is no room for another one's."""
    server = Server(Limits(max_message_bytes=1_000_000, max_inflight_bytes=1_000_000), call_bytes=20_000)
    bodies = server.application.bodies
    for _ in range(45):
        bodies.open()
    with pytest.raises(Overloaded, match="requests of 900000 bytes"):
        bodies.hold_of_stream(200_000)
    bodies.hold_of_stream(100_000)


def test_a_call_that_reads_nothing_needs_room_as_well() -> None:
    server = Server(Limits(max_message_bytes=1000, max_inflight_bytes=3500), call_bytes=1000)
    for _ in range(3):
        server.application.bodies.open()
    assert server.http("GET", "/things/x").status == 503
    assert server.application.bodies.taken_bytes == 3000
