"""gRPC by trailers: every call ends in exactly one status, and gives its bytes back."""

from __future__ import annotations

import asyncio
import gzip
import logging
import time

import pytest

from headrace.base.errors import Conflict, Overloaded
from headrace.batching.request import NO_DEADLINE
from headrace.config import Limits
from headrace.frontends.calls import SLICE_BYTES, GrpcCall, GrpcMethod
from headrace.frontends.transport.asgi import Application
from headrace.frontends.transport.grpc_framing import PREFIX_BYTES
from headrace.telemetry.outcomes import Channel
from tests.unit.frontends.transport.wire import (
    GRPC,
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
from tests.waiting import until_in_loop


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.mark.parametrize(
    "events",
    [
        body(message(b"hello")),
        [part(message(b"hello")), *body(b"")],
        body(message(b"hello")[:3], message(b"hello")[3:]),
        body(*[message(b"hello")[index : index + 1] for index in range(10)]),
        [part(b""), *body(message(b"hello"))],
    ],
    ids=["one chunk", "the end apart", "two chunks", "byte by byte", "nothing first"],
)
def test_a_unary_call_is_answered_however_its_body_comes(server: Server, events: list[Event]) -> None:
    response = server.grpc(events)
    assert response.grpc == (0, "")
    assert response.messages == [b"hello"]
    assert [event["type"] for event in response.sent] == [
        "http.response.start", "http.response.body", "http.response.trailers",
    ]  # fmt: skip
    assert server.held_bytes == 0


@pytest.mark.parametrize("sizes", [(), (3,), (5,), (1, 1, 1, 1, 1), (70_000,), (5, 0, 70_000), (16_384,) * 6])
def test_a_large_message_is_answered_in_whatever_pieces_it_comes(sizes: tuple[int, ...]) -> None:
    """Nothing is awaited after the last piece, which says that more shall come."""
    server, text = Server(Limits(max_message_bytes=100_000)), bytes(range(250)) * 400
    rest, pieces = message(text), []
    for size in sizes:
        pieces.append(part(rest[:size]))
        rest = rest[size:]
    ends = (
        body(b"") if sizes and sizes[0] < PREFIX_BYTES else []
    )  # the size is not known from the first piece
    response = server.grpc([*pieces, part(rest), *ends])
    assert response.grpc == (0, "")
    assert response.messages == [text]
    assert server.held_bytes == 0


def test_only_a_large_message_for_a_method_that_takes_views_is_one() -> None:
    server, kinds = Server(Limits()), list[type]()

    async def remember(payload: bytes, _: GrpcCall) -> bytes:
        kinds.append(type(payload))
        return bytes(payload)

    methods = [GrpcMethod(f"/x.Y/{takes}", unary=remember, takes_views=takes) for takes in (True, False)]
    server.application = Application([], methods, server.limits)
    small, large = b"a" * 1000, b"a" * 100_000
    for path in ("/x.Y/True", "/x.Y/False"):
        assert server.grpc(body(message(small)), path=path).messages == [small]
        assert server.grpc(body(message(large)), path=path).messages == [large]
        assert server.grpc(body(message(large)[:9], message(large)[9:]), path=path).messages == [large]
        packed = body(message(large, compressed=True))
        assert server.grpc(packed, path=path, headers={b"grpc-encoding": b"gzip"}).messages == [large]
    assert kinds == [bytes, memoryview, bytes, bytes, bytes, bytes, bytes, bytes]
    assert server.held_bytes == 0


@pytest.mark.parametrize("pieces", [1, 2])
def test_the_prefix_does_not_count_in_the_limit_of_a_message(server: Server, pieces: int) -> None:
    for size, code in ((1000, 0), (1001, 8)):
        sent = message(b"a" * size)
        events = body(sent) if pieces == 1 else body(sent[:700], sent[700:])
        assert server.grpc(events).grpc[0] == code
        assert server.held_bytes == 0


def test_a_large_answer_is_sent_in_slices(server: Server) -> None:
    server.answer = text = bytes(range(256)) * 2048
    response = server.grpc(body(message(b"x")))
    assert response.grpc == (0, "")
    assert response.messages == [text]
    slices = [len(event["body"]) for event in response.sent if "body" in event]
    assert slices == [SLICE_BYTES, SLICE_BYTES, 5]
    assert (server.held_bytes, server.application.answers.held_bytes) == (0, 0)


def test_empty_messages_are_messages(server: Server) -> None:
    assert server.grpc(body(message(b""))).messages == [b""]


@pytest.mark.parametrize("path", ["/x.Echo/Unary", "/x.Echo/Stream"])
def test_a_typed_error_is_its_status_and_message(server: Server, path: str) -> None:
    server.answer = Conflict("it is there already: 100 %")
    assert server.grpc(body(message(b"x")), path=path).grpc == (6, "it is there already: 100 %")
    assert server.held_bytes == 0


def test_a_refusal_says_when_to_come_back(server: Server) -> None:
    server.answer = Overloaded("full", retry_after_seconds=0.5)
    response = server.grpc(body(message(b"x")))
    assert response.grpc[0] == 14
    assert response.trailers[b"grpc-retry-pushback-ms"] == b"500"


@pytest.mark.parametrize("path", ["/x.Echo/Unary", "/x.Echo/Stream"])
def test_a_bug_is_an_internal_error_without_internals_and_is_logged(
    server: Server, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.answer = RuntimeError("secret")
    with caplog.at_level(logging.ERROR):
        response = server.grpc(body(message(b"x")), path=path)
    code, said = response.grpc
    assert code == 13
    assert "secret" not in said
    assert "secret" in caplog.text
    assert server.held_bytes == 0


def test_an_unknown_method_is_unimplemented_and_its_body_not_read(server: Server) -> None:
    code, said = server.grpc([], path="/x.Echo/Other").grpc
    assert code == 12
    assert "/x.Echo/Other" in said


@pytest.mark.parametrize("path", ["/x.Echo/Unary", "/x.Echo/Stream"])
@pytest.mark.parametrize(
    ("events", "headers", "code"),
    [
        (body(message(b"abc")[:-1]), {}, 3),
        (body(b"\x00\x00"), {}, 3),
        (body(message(b"a" * 1001)), {}, 8),
        ([part(message(b"a" * 2000)), part(b"never read")], {}, 8),
        (body(message(b"a" * 1001, compressed=True)), {b"grpc-encoding": b"gzip"}, 8),
        (body(message(b"abc", compressed=True)), {b"grpc-encoding": b"br"}, 12),
        (body(message(b"abc")), {b"grpc-timeout": b"soon"}, 3),
        ([part(message(b"abc")[:3]), LEFT], {}, 1),
        ([LEFT], {}, 1),
    ],
    ids=[
        "cut short", "half a prefix", "too large", "too large at once",
        "a bomb", "unknown encoding", "not a timeout", "the client leaves", "the client leaves at once",
    ],
)  # fmt: skip
def test_what_is_wrong_has_its_code_and_leaves_nothing_held(
    server: Server, events: list[Event], headers: dict[bytes, bytes], code: int, path: str
) -> None:
    assert server.grpc(events, headers=headers, path=path).grpc[0] == code
    assert server.held_bytes == 0


def test_a_unary_call_is_exactly_one_message(server: Server) -> None:
    assert server.grpc(body(b"")).grpc[0] == 3
    assert server.grpc(body(message(b"a") * 2)).grpc[0] == 3
    assert server.grpc(body(message(b"a" * 600)[:-1], b"b" * 500)).grpc[0] == 8
    assert server.held_bytes == 0


def test_a_whole_message_is_answered_without_waiting_for_the_stream_to_end(server: Server) -> None:
    response = server.grpc(body(message(b"a"), b"what a unary client never sends"))
    assert response.grpc == (0, "")
    assert server.held_bytes == 0


@pytest.mark.parametrize("path", ["/x.Echo/Unary", "/x.Echo/Stream"])
def test_compressed_messages_are_opened(server: Server, path: str) -> None:
    events = body(message(b"a" * 900, compressed=True))
    response = server.grpc(events, headers={b"grpc-encoding": b"gzip"}, path=path)
    assert response.grpc == (0, "")
    assert response.messages == [b"a" * 900]
    assert server.held_bytes == 0


def test_the_deadline_is_a_little_before_the_clients_own(server: Server) -> None:
    for timeout, seconds in [(b"1S", 1.0), (b"20m", 0.020)]:
        before = time.monotonic()
        server.grpc(body(message(b"x")), headers={b"grpc-timeout": timeout})
        after = time.monotonic()
        left = seconds - min(0.005, seconds * 0.1)
        assert before + left <= server.grpc_calls[-1].deadline <= after + left
    server.grpc(body(message(b"x")))
    assert server.grpc_calls[-1].deadline == NO_DEADLINE


def test_a_stream_is_answered_message_by_message(server: Server) -> None:
    stream = message(b"one") + message(b"two") + message(b"three")
    response = server.grpc(body(stream[:10], stream[10:17], stream[17:]), path="/x.Echo/Stream")
    assert response.grpc == (0, "")
    assert response.messages == [b"one", b"two", b"three"]


@pytest.mark.parametrize(("sent", "size"), [(0, 1), (1, 1), (1, 5000)])
def test_where_the_server_cannot_send_a_part_the_client_has_left(
    sent: int, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    server, wire = Server(limits=Limits()), Wire(body(message(b"x" * size)))

    async def send(event: Event) -> None:
        if len(wire.sent) == sent:
            raise OSError("the connection is closed")
        await wire.send(event)

    asyncio.run(server.application(server.scope("POST", "/x.Echo/Stream", GRPC), wire.receive, send))
    assert server.application.outcomes.tallies[Channel.GRPC].failed["CANCELLED"] == 1
    assert (server.application.answers.held_bytes, server.held_bytes, len(wire.sent)) == (0, 0, sent)
    assert not caplog.records


def test_a_stream_without_messages_ends_well(server: Server) -> None:
    response = server.grpc(body(b""), path="/x.Echo/Stream")
    assert response.grpc == (0, "")
    assert response.messages == []


def test_what_came_before_a_streams_error_is_answered_in_whatever_chunks(server: Server) -> None:
    stream = message(b"good") + message(b"a" * 1001)
    for events in (body(stream), body(stream[:9], stream[9:])):
        response = server.grpc(events, path="/x.Echo/Stream")
        assert response.messages == [b"good"]
        assert response.grpc[0] == 8


def test_each_message_of_a_stream_is_answered_before_the_next_has_come(server: Server) -> None:
    async def talk() -> None:
        wire = Wire([part(message(b"one"))])
        call = asyncio.create_task(
            server.application(server.scope("POST", "/x.Echo/Stream", GRPC), wire.receive, wire.send)
        )
        async with asyncio.timeout(30):
            await until_in_loop(lambda: len(wire.sent) >= 2)
            assert wire.sent[1]["body"] == message(b"one")
            wire.more.put_nowait(body(message(b"two"))[0])
            await call
        assert wire.sent[2]["body"] == message(b"two")
        assert wire.sent[-1]["headers"] == [(b"grpc-status", b"0")]

    asyncio.run(talk())


@pytest.mark.parametrize("path", ["/x.Echo/Unary", "/x.Echo/Stream"])
def test_a_cancelled_call_gives_its_bytes_back(server: Server, path: str) -> None:
    """A client that leaves within a call arrives as a cancellation of its task."""

    async def leave() -> None:
        server.release = asyncio.Event()
        wire = Wire(body(message(b"x")))
        call = asyncio.create_task(
            server.application(server.scope("POST", path, GRPC), wire.receive, wire.send)
        )
        async with asyncio.timeout(30):
            await until_in_loop(lambda: server.grpc_calls and server.held_bytes)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await until_in_loop(lambda: not server.held_bytes)

    asyncio.run(leave())


@pytest.mark.parametrize("path", ["/x.Echo/Unary", "/echo/x"])
def test_a_call_that_is_cancelled_while_its_body_is_joined_gives_its_bytes_back(path: str) -> None:
    server, text = Server(Limits()), bytes(8 * 1024 * 1024)
    sent = text if path == "/echo/x" else message(text)

    async def leave() -> None:
        wire = Wire(body(sent[: len(text) // 2], sent[len(text) // 2 :]))
        scope = server.scope("POST", path, [] if path == "/echo/x" else GRPC)
        call = asyncio.create_task(server.application(scope, wire.receive, wire.send))
        async with asyncio.timeout(30):
            await until_in_loop(lambda: server.held_bytes == len(sent))
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        assert not server.grpc_calls
        assert not server.http_calls
        assert server.held_bytes == 0

    asyncio.run(leave())


def test_all_calls_together_hold_no_more_than_the_budget() -> None:
    """Compressed messages count as large as they become; what is answered makes room."""
    server = Server(Limits(max_message_bytes=1000, max_inflight_bytes=1500))
    packed, plain = message(b"a" * 900, compressed=True), message(b"b" * 700)

    async def crowd() -> None:
        server.release = asyncio.Event()
        wires = [Wire(body(packed)), Wire(body(plain))]
        headers = [*GRPC, (b"grpc-encoding", b"gzip")]
        calls = []
        for wire in wires:
            scope = server.scope("POST", "/x.Echo/Unary", headers)
            calls.append(asyncio.create_task(server.application(scope, wire.receive, wire.send)))
            await asyncio.sleep(0)
        async with asyncio.timeout(30):
            await calls[1]
            assert dict(wires[1].sent[0]["headers"])[b"grpc-status"] == b"14"
            assert server.held_bytes == 900
            server.release.set()
            await calls[0]
        assert wires[0].sent[-1]["headers"] == [(b"grpc-status", b"0")]
        assert server.held_bytes == 0

    asyncio.run(crowd())
    assert server.grpc(body(plain)).grpc == (0, "")


def test_a_refused_call_has_given_its_bytes_back_before_its_error_is_sent() -> None:
    """Or callers that are all refused while each one's error is on its way would keep each other out."""
    server = Server(SMALL, answer=Overloaded("not now"))
    held: list[int] = []

    async def refused() -> None:
        wire = Wire(body(message(b"a" * 900)))

        async def send(event: Event) -> None:
            held.append(server.held_bytes)
            await wire.send(event)

        await server.application(server.scope("POST", "/x.Echo/Unary", GRPC), wire.receive, send)
        assert Response(wire.sent).grpc == (14, "not now")

    asyncio.run(refused())
    assert held
    assert not any(held)


def test_a_stream_may_go_on_for_longer_than_a_body_may_be() -> None:
    server = Server(SMALL)
    response = server.grpc(body(*[message(b"a" * 900)] * 20), path="/x.Echo/Stream")
    assert response.grpc == (0, "")
    assert len(response.messages) == 20


def test_a_stream_that_stops_within_a_message_ends_and_gives_its_bytes_back() -> None:
    server = Server(Limits(max_message_bytes=1000, max_inflight_bytes=2000, body_timeout_seconds=0.02))

    async def stop_within() -> None:
        wire = Wire([part(message(b"whole") + message(b"a" * 1000)[:900])])
        async with asyncio.timeout(30):
            await server.application(server.scope("POST", "/x.Echo/Stream", GRPC), wire.receive, wire.send)
        trailers = dict(wire.sent[-1]["headers"])
        assert trailers[b"grpc-status"] == b"4"
        assert b"a message did not arrive completely within 0.02 s" in trailers[b"grpc-message"]
        assert not server.held_bytes

    asyncio.run(stop_within())


def test_a_stream_may_be_silent_between_messages_for_longer_than_a_body_may_take() -> None:
    server = Server(Limits(max_message_bytes=1000, max_inflight_bytes=2000, body_timeout_seconds=0.02))

    async def pause() -> None:
        wire = Wire([part(message(b"one"))])
        call = asyncio.create_task(
            server.application(server.scope("POST", "/x.Echo/Stream", GRPC), wire.receive, wire.send)
        )
        async with asyncio.timeout(30):
            await until_in_loop(lambda: len(wire.sent) > 1)
            done, _ = await asyncio.wait([call], timeout=0.1)
            assert not done
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)

    asyncio.run(pause())


def test_half_messages_of_streams_count_in_the_budget() -> None:
    server = Server(SMALL)

    async def crowd() -> None:
        half = part(message(b"a" * 1000)[:900])
        wires = [Wire([half]) for _ in range(3)]
        calls = []
        for wire in wires:
            scope = server.scope("POST", "/x.Echo/Stream", GRPC)
            calls.append(asyncio.create_task(server.application(scope, wire.receive, wire.send)))
        async with asyncio.timeout(30):
            await calls[2]
            assert dict(wires[2].sent[-1]["headers"])[b"grpc-status"] == b"14"
            assert server.held_bytes == 1800
            for call in calls[:2]:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            await until_in_loop(lambda: not server.held_bytes)

    asyncio.run(crowd())


@pytest.mark.parametrize("compressed", [False, True])
def test_a_large_message_has_an_account_that_is_settled_with_it(compressed: bool) -> None:
    server = Server(Limits())
    server.hold = 5000
    sent = message(b"a" * 100_000, compressed=compressed)
    headers = {b"grpc-encoding": b"gzip", b"grpc-timeout": b"5S"}
    assert server.grpc(body(sent), headers=headers).grpc == (0, "")
    (call,) = server.grpc_calls
    assert call.deadline < time.monotonic() + 5
    assert server.most_held == (105_000 if compressed else 105_005)
    assert server.held_bytes == 0


@pytest.mark.parametrize("path", ["/x.Echo/Unary", "/x.Echo/Stream"])
@pytest.mark.parametrize(("encodings", "code"), [((b"identity", b"gzip"), 0), ((b"gzip", b"br"), 12)])
def test_of_two_encodings_the_last_one_counts(encodings: tuple[bytes, ...], code: int, path: str) -> None:
    server = Server(SMALL)
    headers = [*GRPC, *((b"grpc-encoding", encoding) for encoding in encodings)]
    packed = body(message(gzip.compress(b"abc"), compressed=True))
    response = asyncio.run(server.exchange(server.scope("POST", path, headers), packed))
    assert response.grpc[0] == code
    assert server.held_bytes == 0
