"""REST: answers that are streams of events, and how they end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable

import pytest

from headrace.base.errors import HeadraceError, InvalidRequest, ModelError
from headrace.config import Limits
from headrace.frontends.calls import HttpCall, HttpRoute, HttpStreamHandler
from headrace.frontends.transport.asgi import Application
from headrace.frontends.transport.responses import STALL_SECONDS
from headrace.telemetry.outcomes import Channel, Outcome
from tests.unit.frontends.transport.wire import LEFT, Event, Response, Wire, body
from tests.virtual_loop import run_virtually
from tests.waiting import seconds_left, until_in_loop


def application(handler: HttpStreamHandler, limits: Limits | None = None) -> Application:
    return Application([HttpRoute("POST", "/count/{to}", None, stream=handler)], [], limits)


def scope(path: str = "/count/3", *headers: tuple[bytes, bytes]) -> Event:
    return {"type": "http", "method": "POST", "path": path, "headers": [*headers], "query_string": b""}


def ask(app: Application, asked: Event, events: list[Event]) -> Response:
    wire = Wire(events)
    asyncio.run(asyncio.wait_for(app(asked, wire.receive, wire.send), seconds_left()))
    return Response(wire.sent)


async def counting(call: HttpCall) -> AsyncGenerator[bytes, None]:
    for number in range(int(call.parameters["to"])):
        yield json.dumps({"number": number, "body": call.body.decode()}).encode()


def failing(error: Exception, after: int) -> HttpStreamHandler:
    async def handler(call: HttpCall) -> AsyncGenerator[bytes, None]:
        for number in range(after):
            yield b"%d" % number
        raise error

    return handler


def test_each_item_is_an_event(caplog: pytest.LogCaptureFixture) -> None:
    app, seen = application(counting), list[Outcome]()
    app.outcomes.observe(seen.append)
    response = ask(app, scope("/count/2", (b"x-request-id", b"mine")), body(b"he", b"llo"))
    assert response.status == 200
    assert response.headers[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert response.headers[b"cache-control"] == b"no-cache"
    assert response.headers[b"x-accel-buffering"] == b"no"
    assert response.headers[b"x-request-id"] == b"mine"
    assert b"content-length" not in response.headers
    said = b'data: {"number": 0, "body": "hello"}\n\ndata: {"number": 1, "body": "hello"}\n\n'
    assert response.body == said
    assert app.outcomes.tallies[Channel.REST].answered == 1
    assert [(one.code.name, one.request_bytes, one.response_bytes) for one in seen] == [("OK", 5, len(said))]
    assert app.bodies.taken_bytes == 0
    assert not caplog.records


def test_a_stream_without_items_is_empty() -> None:
    response = ask(application(counting), scope("/count/0"), body(b""))
    assert (response.status, response.body) == (200, b"")
    assert response.headers[b"content-type"].startswith(b"text/event-stream")


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (InvalidRequest("expected less", field="to"), 400, "to: expected less"),
        (ValueError("secret"), 500, "internal error; the server's log says more"),
    ],
)
def test_an_error_before_the_first_event_is_an_answer_like_any_other(
    error: Exception, status: int, said: str
) -> None:
    app = application(failing(error, after=0))
    response = ask(app, scope(), body(b""))
    assert response.status == status
    assert response.headers[b"content-type"] == b"application/json"
    assert json.loads(response.body) == {"error": said}
    assert app.outcomes.tallies[Channel.REST].failed[str(status)] == 1
    assert app.bodies.taken_bytes == 0


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ModelError("the model broke", told="the model failed"), "500", "the model failed"),
        (ValueError("secret"), "500", "internal error; the server's log says more"),
    ],
)
def test_a_later_error_is_the_last_event(error: Exception, code: str, said: str) -> None:
    app = application(failing(error, after=2))
    response = ask(app, scope(), body(b""))
    assert response.status == 200
    last = b'data: {"error":' + json.dumps(said).encode() + b"}\n\n"
    assert response.body == b"data: 0\n\ndata: 1\n\n" + last
    assert app.outcomes.tallies[Channel.REST].failed[code] == 1
    assert app.outcomes.tallies[Channel.REST].answered == 0


def test_a_body_over_the_limit_is_refused() -> None:
    response = ask(application(counting, Limits(max_message_bytes=10)), scope(), body(b"too long for it"))
    assert response.status == 413


def test_a_known_path_names_its_methods() -> None:
    response = ask(application(counting), scope() | {"method": "GET"}, body(b""))
    assert (response.status, response.headers[b"allow"]) == (405, b"POST")


class Endless:
    """Yields for ever, and notes what was asked for, and its end."""

    def __init__(self, size: int = 5000) -> None:
        self.size = size
        self.made = 0
        self.is_closed = False

    async def handler(self, call: HttpCall) -> AsyncGenerator[bytes, None]:
        try:
            while True:
                self.made += 1
                yield b"1" * self.size
        finally:
            self.is_closed = True


def test_the_next_item_is_made_when_the_server_has_accepted_the_one_before() -> None:
    endless, wire = Endless(), Wire(body(b""))
    may_send = asyncio.Semaphore(3)  # the start, and two events

    async def send(event: Event) -> None:
        await may_send.acquire()
        await wire.send(event)

    async def scenario() -> None:
        app = application(endless.handler)
        task = asyncio.create_task(app(scope(), wire.receive, send))
        await until_in_loop(lambda: len(wire.sent) == 3)
        for _ in range(20):
            await asyncio.sleep(0)
        assert endless.made == 3
        assert app.answers.held_bytes > 5000
        wire.more.put_nowait(LEFT)
        await task
        assert endless.is_closed
        assert (app.answers.held_bytes, app.bodies.taken_bytes) == (0, 0)
        assert app.outcomes.tallies[Channel.REST].failed["499"] == 1

    asyncio.run(asyncio.wait_for(scenario(), seconds_left()))


@pytest.mark.parametrize("size", [1, 5000])
def test_a_client_that_reads_nothing_for_long_ends_its_stream(size: int) -> None:
    endless, wire = Endless(size), Wire(body(b""))

    async def send(event: Event) -> None:
        if len(wire.sent) == 3:
            await asyncio.Event().wait()
        await asyncio.sleep(STALL_SECONDS - 1)  # slow is not silent
        await wire.send(event)

    async def scenario() -> None:
        app, began = application(endless.handler), asyncio.get_running_loop().time()
        await app(scope(), wire.receive, send)
        assert asyncio.get_running_loop().time() - began == 4 * STALL_SECONDS - 3
        assert (endless.made, endless.is_closed, len(wire.sent)) == (3, True, 3)
        assert (app.answers.held_bytes, app.bodies.taken_bytes) == (0, 0)
        assert app.outcomes.tallies[Channel.REST].failed["499"] == 1

    run_virtually(scenario())


@pytest.mark.parametrize("size", [1, 5000])
def test_where_the_server_cannot_send_the_client_has_left(
    size: int, caplog: pytest.LogCaptureFixture
) -> None:
    endless, wire = Endless(size), Wire(body(b""))

    async def send(event: Event) -> None:
        if len(wire.sent) == 3:
            raise OSError("the connection is closed")
        await wire.send(event)

    app = application(endless.handler)
    asyncio.run(asyncio.wait_for(app(scope(), wire.receive, send), seconds_left()))
    assert (endless.made, endless.is_closed, len(wire.sent)) == (3, True, 3)
    assert app.outcomes.tallies[Channel.REST].failed["499"] == 1
    assert app.answers.held_bytes == 0
    assert not caplog.records


def never() -> asyncio.Future[None]:
    """Return what a server awaits whose client stopped reading."""
    return asyncio.get_running_loop().create_future()


def closed() -> asyncio.Future[None]:
    raise OSError("the connection is closed")


@pytest.mark.parametrize("blocked", [never, closed])
@pytest.mark.parametrize(
    ("handler", "answered", "failed"),
    [(counting, 1, 0), (failing(ModelError("the model broke"), after=3), 0, 1)],
)
def test_a_client_lost_at_the_end_of_a_stream_is_no_error_of_the_server(
    blocked: Callable[[], asyncio.Future[None]],
    handler: HttpStreamHandler,
    answered: int,
    failed: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The call was counted before: as answered, or as failed for its own reason."""
    wire, app = Wire(body(b"")), application(handler)

    async def send(event: Event) -> None:
        if event.get("more_body") is False:
            await blocked()
        await wire.send(event)

    run_virtually(app(scope(), wire.receive, send))
    assert len(wire.sent) == 4
    tally = app.outcomes.tallies[Channel.REST]
    assert (tally.answered, tally.failed["500"], tally.failed["499"]) == (answered, failed, 0)
    assert (app.answers.held_bytes, app.bodies.taken_bytes) == (0, 0)
    assert not caplog.records


def leave(wire: Wire, task: asyncio.Task[None]) -> None:
    wire.more.put_nowait(LEFT)


def cancel(wire: Wire, task: asyncio.Task[None]) -> None:
    task.cancel()


@pytest.mark.parametrize("end", [leave, cancel])
def test_a_client_that_leaves_ends_a_stream_that_waits(
    end: Callable[[Wire, asyncio.Task[None]], None],
) -> None:
    is_closed = asyncio.Event()

    async def waiting(call: HttpCall) -> AsyncGenerator[bytes, None]:
        try:
            yield b"1"
            await asyncio.Event().wait()
        finally:
            is_closed.set()

    async def scenario() -> None:
        wire, app = Wire(body(b"")), application(waiting)
        task = asyncio.create_task(app(scope(), wire.receive, wire.send))
        await until_in_loop(lambda: len(wire.sent) == 2)
        end(wire, task)
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError) == (end is cancel)
        assert is_closed.is_set()
        assert app.outcomes.tallies[Channel.REST].failed["499"] == 1

    asyncio.run(asyncio.wait_for(scenario(), seconds_left()))


def test_an_answer_that_nobody_reads_makes_room_for_others() -> None:
    """A large event counts while it is being sent, like any answer."""
    limits = Limits(max_message_bytes=1000, max_inflight_bytes=4000)

    async def large(call: HttpCall) -> AsyncGenerator[bytes, None]:
        yield b"1" * 100_000
        raise AssertionError("not asked for")

    async def scenario() -> None:
        app, wire = application(large, limits), Wire(body(b""))

        async def send(event: Event) -> None:
            await wire.send(event)
            if event["type"] == "http.response.body":
                await asyncio.Event().wait()

        task = asyncio.create_task(app(scope(), wire.receive, send))
        await until_in_loop(lambda: app.answers.held_bytes > 100_000)
        with pytest.raises(HeadraceError):
            app.answers.begin(100_000)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert app.answers.held_bytes == 0

    asyncio.run(asyncio.wait_for(scenario(), seconds_left()))
