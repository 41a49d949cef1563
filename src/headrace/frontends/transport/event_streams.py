"""Answers over REST that are streams of server-sent events: a part of ``Application``, which inherits it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, Protocol

from headrace.base.errors import Cancelled, HeadraceError
from headrace.frontends.calls import HttpCall, HttpReply, HttpStreamHandler
from headrace.frontends.chunks import slices
from headrace.frontends.transport.bodies import Bodies, Event, Receive
from headrace.frontends.transport.headers import read_http
from headrace.frontends.transport.replies import INTERNAL, error_reply
from headrace.frontends.transport.reported_load import Pairs, ReportedLoad
from headrace.frontends.transport.responses import COUNTED_ANSWER_BYTES, Answers, Send
from headrace.telemetry.outcomes import Outcomes

_log = logging.getLogger(__name__)

_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # NGINX would hold events back
)


_LEFT = "the client disconnected before its answer was complete"
_STALLED = "client stopped reading responses"

STALL_SECONDS = 60.0
"""Longest time in seconds in which a client reads nothing, as over HTTP/2: its stream has a place of few."""


class _Application(Protocol):
    """The parts of an ``Application`` that streams of events need."""

    bodies: Bodies
    answers: Answers
    outcomes: Outcomes
    load: ReportedLoad
    _closing: Pairs
    _holding: asyncio.Event | None

    async def _read_rest(
        self, call: HttpCall, event: Event, receive: Receive, length: int, compressed: bool
    ) -> int: ...

    def _refusal(self, call: HttpCall, error: Exception) -> HttpReply: ...

    async def _send_reply(self, reply: HttpReply, scope: Event, send: Send) -> None: ...

    async def _read_body(self, call: HttpCall, receive: Receive) -> int: ...

    async def _begin_events(self, call: HttpCall, response: _Response) -> None: ...


class EventStreams:
    """The methods of ``Application`` that answer with events."""

    async def _answer_events(
        self: _Application,
        handler: HttpStreamHandler,
        call: HttpCall,
        scope: Event,
        receive: Receive,
        send: Send,
    ) -> None:
        """Handle one request whose answer is a stream of events.

        An error before the first event is answered like any other. Later it is an event, the last one.
        """
        if self.outcomes.observed:
            self.outcomes.begin(call, call.method, call.path, scope.get("client"))
        self.bodies.open()
        held = 0
        refusal: HttpReply | None = None
        response = _Response(self.answers, send)
        try:
            held = await self._read_body(call, receive)
            async with _while_connected(receive), aclosing(handler(call)) as events:
                async for said in events:
                    if not response.has_begun:
                        await self._begin_events(call, response)
                    await response.event(said)
            if not response.has_begun:
                await self._begin_events(call, response)
            if call.outcome is not None:
                call.outcome.weighed(len(call.body), response.size)
            self.outcomes.answered(call)
        except Cancelled as error:
            self.outcomes.failed(call, error)
            return
        except Exception as error:  # noqa: BLE001 - network boundary: a bug fails only its own request
            refusal = self._refusal(call, error)
        except BaseException as error:
            self.outcomes.failed(call, error)
            raise
        finally:
            self.bodies.close(held if call.account is None else held + call.account.held)
        if refusal is not None and not response.has_begun:
            await self._send_reply(refusal, scope, send)
        else:
            last = b"" if refusal is None else _framed(refusal.body)
            await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _begin_events(self: _Application, call: HttpCall, response: _Response) -> None:
        """Send the head of a response."""
        if self._holding is not None:
            await self._holding.wait()
        await response.begin((*_HEADERS, *call.notes, *self.load.headers, *self._closing))

    async def _read_body(self: _Application, call: HttpCall, receive: Receive) -> int:
        """Read the headers and the body of a request; return the bytes held for it outside its account."""
        length, compressed = read_http(call)
        if length > self.bodies.included_bytes:
            self.bodies.check(length)
        event = await self.bodies.first(receive)
        call.body = event.get("body", b"")
        if compressed or length != len(call.body) or length > self.bodies.included_bytes:
            return await self._read_rest(call, event, receive, length, compressed)
        return 0

    def _refusal(self: _Application, call: HttpCall, error: Exception) -> HttpReply:
        """Record the end of a call in an error, and return the reply that tells it."""
        if not isinstance(error, HeadraceError):
            _log.exception("an HTTP request failed unexpectedly", extra={"path": call.path})
            error = HeadraceError(INTERNAL)
        self.outcomes.failed(call, error)
        reply = error_reply(error)
        reply.headers += call.names
        return reply


class _Response:
    """A response made of events.

    Attributes:
        has_begun: Whether the status has been sent.
        size: Bytes of the events so far.
    """

    def __init__(self, answers: Answers, send: Send) -> None:
        self.has_begun = False
        self.size = 0
        self._answers = answers
        self._send_it = send

    async def begin(self, headers: Pairs) -> None:
        """Send the status and the headers."""
        self.has_begun = True
        await self._send({"type": "http.response.start", "status": 200, "headers": [*headers]})

    async def event(self, said: bytes) -> None:
        """Send an event, and wait until the server has accepted it.

        Raises:
            Cancelled: The client reads nothing, or it was cancelled to make room for the answers to others.
            Overloaded: There is no room for it beside answers that are being read.
        """
        framed = _framed(said)
        self.size += len(framed)
        if len(framed) < COUNTED_ANSWER_BYTES:
            await self._send({"type": "http.response.body", "body": framed, "more_body": True})
            return
        self._answers.begin(len(framed))
        try:
            if not await self._answers.send(self._send, slices(framed), more=True):
                raise Cancelled(_STALLED)
        finally:
            self._answers.end()

    async def _send(self, event: Event) -> None:
        try:
            async with asyncio.timeout(STALL_SECONDS):
                await self._send_it(event)
        except TimeoutError:
            raise Cancelled(_STALLED) from None
        except OSError:  # as ASGI prescribes; the server may know it before ``receive`` tells
            raise Cancelled(_LEFT) from None


def _framed(said: bytes) -> bytes:
    """Return JSON, which has no line ends, as a server-sent event."""
    return b"data: " + said.rstrip() + b"\n\n"


@asynccontextmanager
async def _while_connected(receive: Receive) -> AsyncIterator[None]:
    """Run a block until the client disconnects.

    Raises:
        Cancelled: The client has disconnected.
    """
    task: asyncio.Task[Any] | None = asyncio.current_task()
    watch = asyncio.create_task(_until_disconnected(receive))
    is_over = False

    def leave(_: asyncio.Task[None]) -> None:
        if task is not None and not is_over:
            task.cancel()

    watch.add_done_callback(leave)
    try:
        yield
    except asyncio.CancelledError:
        if task is None or not watch.done() or watch.cancelled() or task.uncancel():
            raise  # cancelled for another reason, alone or as well
    else:
        return
    finally:
        is_over = True
        watch.cancel()
    raise Cancelled(_LEFT)


async def _until_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
