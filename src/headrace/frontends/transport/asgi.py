# Longer than 500 lines: one class, whose ways to answer share the limits, the records and the end.
"""Both front ends as one ASGI application: REST, and gRPC by trailers.

The codecs handle only bytes and metadata; this module exchanges those with the ASGI server. Any ASGI server
can run it; gRPC needs one with HTTP/2 and the ``http.response.trailers`` extension (h2corn). Mounted in
another application, it serves REST below its ``root_path``, but no gRPC: those paths are matched whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterable, MutableMapping
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

from headrace.base.errors import Cancelled, HeadraceError, InvalidRequest, NotFound, Unsupported
from headrace.base.status_codes import WRONG_METHOD
from headrace.batching.request import NO_DEADLINE
from headrace.config import Limits
from headrace.frontends.calls import (
    Account,
    Following,
    GrpcCall,
    GrpcMethod,
    HttpCall,
    HttpReply,
    HttpRoute,
    HttpStreamHandler,
    Pieces,
    StreamHandler,
    UnaryHandler,
    joined,
    slices,
)
from headrace.frontends.transport.bodies import Bodies, Event, Receive, whole
from headrace.frontends.transport.grpc_framing import (
    PREFIX_BYTES,
    MessageReader,
    announced_size,
    error_headers,
    frame,
    opened,
    pack_prefix,
    plain_message,
    take_prefix,
)
from headrace.frontends.transport.headers import echo_request_id, is_grpc, read_grpc, read_http
from headrace.frontends.transport.orca_load_reports import ReportedLoad, trailing
from headrace.frontends.transport.responses import (
    COUNTED_ANSWER_BYTES,
    INTERNAL,
    LEFT,
    Answers,
    EventResponse,
    Send,
    error_reply,
    framed,
)
from headrace.frontends.transport.rest_routes import Router
from headrace.frontends.transport.waiting_calls import Pauses
from headrace.frontends.wire.compression import Opening, accepts_gzip, gzipped, opening
from headrace.frontends.wire.protobuf_cost import AT_ONCE_BYTES
from headrace.frontends.wire.time_slicer import TimeSlicer
from headrace.telemetry.outcomes import Channel, Outcome, Outcomes

if TYPE_CHECKING:
    from headrace.access.gate import Gate

_log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]

_GRPC_HEADERS = [(b"content-type", b"application/grpc")]
_GRPC_ENCODINGS = (b"grpc-accept-encoding", b"identity,gzip,deflate")
_GRPC_START = {"type": "http.response.start", "status": 200, "headers": _GRPC_HEADERS, "trailers": True}
_NO_BODY = {"type": "http.response.body", "body": b"", "more_body": False}
_COUNTED_FROM_BYTES = 16_384  # up to here, ``call_bytes`` pays for a parsed body
_CLOSE = ((b"connection", b"close"),)  # on HTTP/2 the server sends GOAWAY and drops this header
_GZIP_FROM_BYTES = 8192
_ANSWERS_SHARE = 2


class Application:
    """The ASGI application over the codecs' routes and methods.

    Attributes:
        bodies: Reader of request bodies, with limits on all of them together.
        answers: Large responses being sent.
        pauses: Pauses of streams before and between their messages.
        outcomes: Records of how calls end.
        load: Load report that every response carries.
        gate: Access check for calls; None admits every call.
    """

    gate: Gate | None = None

    def __init__(
        self,
        routes: Iterable[HttpRoute],
        methods: Iterable[GrpcMethod],
        limits: Limits | None = None,
        outcomes: Outcomes | None = None,
        slicer: TimeSlicer | None = None,
    ) -> None:
        """Serve these routes and methods.

        Args:
            routes: Routes of the REST APIs; the first match handles a request.
            methods: Methods of the gRPC services.
            limits: Limits on request bodies.
            outcomes: Records of how calls end, shared with the engine.
            slicer: Slices the decoding of large bodies and the compression of large responses.
        """
        self._router = Router(routes)
        served = list(methods)
        self._unary_methods = {method.path: method.unary for method in served if method.unary is not None}
        self._stream_methods = {method.path: method.stream for method in served if method.stream is not None}
        self._taking_views = {method.path for method in served if method.takes_views}
        limits = limits or Limits()
        self.bodies = Bodies(limits)
        self.pauses = Pauses()
        self.answers = Answers(limits.max_inflight_bytes // _ANSWERS_SHARE)
        self.outcomes = outcomes or Outcomes()
        tallies = self.outcomes.tallies
        self._of_grpc, self._of_rest = tallies[Channel.GRPC], tallies[Channel.REST]
        self._slicer, self.load = slicer or TimeSlicer(), ReportedLoad()
        self._closing: tuple[tuple[bytes, bytes], ...] = ()
        self._holding: asyncio.Event | None = None

    def drain(self) -> None:
        """Send ``Connection: close`` with every HTTP/1.1 response from now on."""
        self._closing = _CLOSE

    @asynccontextmanager
    async def holding_answers(self, seconds: float) -> AsyncIterator[None]:
        """Hold responses back while the block runs, and for ``seconds`` before and after it.

        Used to announce the end of HTTP/2 connections. A client that waits for a response sends no request
        that could cross the announcement, and its connection cannot end before the response.

        Args:
            seconds: Length of each of the two delays in seconds.
        """
        self._holding = asyncio.Event()
        try:
            await asyncio.sleep(seconds)
            yield
            await asyncio.sleep(seconds)
        finally:
            self._holding.set()
            self._holding = None

    @property
    def stream_paths(self) -> tuple[str, ...]:
        """The paths of streams, which may be idle indefinitely."""
        return tuple(self._stream_methods)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the lifespan protocol, which requires no work."""
        # Servers detect the ASGI version by checking whether this is a coroutine function.
        await self.answer(scope, receive, send)

    def answer(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """Return the coroutine that handles one request, for servers that do not inspect the callable.

        A plain function saves one coroutine per request.
        """
        if scope["type"] == "http":
            path = scope["path"]
            unary = self._unary_methods.get(path)
            if unary is not None:
                return self._unary(unary, scope, receive, send)
            stream = self._stream_methods.get(path)
            if stream is not None:
                return self._stream(stream, scope, receive, send)
            return self._http(scope, receive, send)
        if scope["type"] == "lifespan":
            return _live(receive, send)
        raise NotImplementedError(f"headrace answers http, not {scope['type']}")

    async def _unary(self, handler: UnaryHandler, scope: Scope, receive: Receive, send: Send) -> None:
        bodies, outcomes = self.bodies, self.outcomes
        failed: HeadraceError | None = None
        call = GrpcCall(NO_DEADLINE, None, bodies, scope["headers"])
        if outcomes.observed:
            outcomes.begin(call, "POST", scope["path"], scope.get("client"))
        bodies.taken_bytes += bodies.call_bytes  # `open` and `close`, inlined on the hot path
        try:
            encoding = read_grpc(call)
            calm = bodies.taken_bytes <= bodies.calm_bytes
            event = await (receive() if calm else bodies.first(receive))
            message: Any = plain_message(event.get("body", b""))  # bytes; a view if the method takes views
            if message is None:
                message = await self._read_message(call, scope["path"], event, receive, encoding)
            elif len(message) > bodies.included_bytes:
                bodies.hold(len(message))
                call.account = Account(bodies.hold_of_stream, len(message))
            reply = await handler(message, call)
            size = len(reply)
            if size >= COUNTED_ANSWER_BYTES:
                self.answers.begin(size)
        except HeadraceError as error:
            # Without the traceback: its frames refer to the error, a cycle only the garbage collector frees.
            failed = error.with_traceback(None)
        except Exception:  # noqa: BLE001 - network boundary: a bug fails only its own call
            _log.exception("a gRPC call failed unexpectedly")
            failed = HeadraceError(INTERNAL)
        except BaseException as error:
            outcomes.failed(call, error)
            raise
        finally:
            bodies.taken_bytes -= bodies.call_bytes
            if call.account is not None:
                bodies.release(call.account.held)
        if failed is not None:
            # Sent after the release: bytes of a refused call must not cause the next refusal meanwhile.
            await self._send_grpc_error(send, call, failed)
            return
        if call.outcome is None:
            self._of_grpc.answered += 1  # `answered`, inlined on the hot path
        else:
            call.outcome.weighed(len(message or b""), size)
            outcomes.answered(call)
        if size >= COUNTED_ANSWER_BYTES:
            await self._send_message(reply, call, send)
            return
        if self._holding is not None:
            await self._holding.wait()
        await send(_GRPC_START)
        reply = reply if isinstance(reply, bytes) else joined(reply)
        body = pack_prefix(0, size) + reply  # `frame`, inlined on the hot path
        await send({"type": "http.response.body", "body": body, "more_body": False})
        await send(self.load.grpc_ok_with(call.notes) if call.notes else self.load.grpc_ok)

    async def _send_message(self, reply: bytes | Pieces, call: GrpcCall, send: Send) -> None:
        """Send a large response, which is counted in ``answers``."""
        try:
            if self._holding is not None:
                await self._holding.wait()
            await send(_GRPC_START)
            if await self.answers.send(send, framed(reply)):
                await send(self.load.grpc_ok_with(call.notes) if call.notes else self.load.grpc_ok)
        finally:
            self.answers.end()

    async def _read_message(
        self, call: GrpcCall, path: str, event: Event, receive: Receive, encoding: bytes
    ) -> bytes | memoryview:
        """Read a message that is large, incomplete or compressed; its account records the bytes held."""
        bodies = self.bodies
        chunks = await bodies.read(event, receive, announced_size(event.get("body", b"")), PREFIX_BYTES)
        call.account = account = Account(bodies.hold_of_stream, sum(map(len, chunks)))
        compressed = take_prefix(chunks)
        is_view = len(chunks) == 1 and len(chunks[0]) > AT_ONCE_BYTES and not compressed
        if is_view and path in self._taking_views:
            return chunks[0]
        message = await whole(chunks)
        return await self._opened(opened(message, encoding, bodies.limits, compressed=compressed), account)

    async def _stream(self, handler: StreamHandler, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        failed: HeadraceError | None = None
        unanswered: deque[Account] = deque()
        call = GrpcCall(NO_DEADLINE, None, self.bodies, scope["headers"])
        if self.outcomes.observed:
            self.outcomes.begin(call, "POST", scope["path"], scope.get("client"))
        self.bodies.open()
        try:
            self.bodies.check_room()
        except HeadraceError as error:
            self.bodies.close(0)
            await self._send_grpc_error(send, call, error.with_traceback(None))
            return
        try:
            messages = self._messages(receive, read_grpc(call), unanswered)
            async for reply in handler(messages, call):
                if unanswered and type(reply) is not Following:
                    self.bodies.release(unanswered.popleft().held)
                if not await self._send_part(reply, send, is_first=not started):
                    self.outcomes.failed(call, Cancelled("client stopped reading responses"))
                    return
                started = True
        except HeadraceError as error:
            failed = error.with_traceback(None)
        except Exception:  # noqa: BLE001 - network boundary, as above
            _log.exception("a gRPC stream failed unexpectedly")
            failed = HeadraceError(INTERNAL)
        except BaseException as error:
            self.outcomes.failed(call, error)
            raise
        finally:
            self.bodies.close(sum(account.held for account in unanswered))
        if self._holding is not None:
            await self._holding.wait()
        if failed:
            ending = trailing(*self._error_trailers(call, failed))
        else:
            self.outcomes.answered(call)
            ending = self.load.grpc_ok_with(call.notes)
        if not started:
            await send(_GRPC_START)
        await send(_NO_BODY)
        await send(ending)

    async def _send_part(self, reply: bytes | Pieces, send: Send, *, is_first: bool) -> bool:
        """Send one response of a stream; return False if the client left or keeps others waiting."""
        is_counted = len(reply) >= COUNTED_ANSWER_BYTES
        if is_counted:
            self.answers.begin(len(reply))
        try:
            if is_first:
                await send(_GRPC_START)
            if is_counted:
                return await self.answers.send(send, framed(reply), more=True)
            await send({"type": "http.response.body", "body": frame(joined(reply)), "more_body": True})
            return True
        except OSError:  # as ASGI prescribes; the server may know that the client left before `receive` tells
            return False
        finally:
            if is_counted:
                self.answers.end()

    async def _messages(
        self, receive: Receive, encoding: bytes, unanswered: deque[Account]
    ) -> AsyncIterator[bytes]:
        """Yield a stream's messages; each counts as held, at its decompressed size, until answered.

        Args:
            receive: ASGI's receive callable.
            encoding: Value of ``grpc-encoding``, or empty.
            unanswered: Collects the account of each message yielded, in order.
        """
        bodies, held = self.bodies, 0
        reader = MessageReader(encoding, bodies.limits)
        try:
            async for chunk in bodies.chunks(receive, lambda: reader.begun, self.pauses):
                bodies.hold_of_stream(len(chunk))
                held += len(chunk)
                for opening_message in reader.feed(chunk):
                    unanswered.append(Account(bodies.hold_of_stream))
                    message = await self._opened(opening_message, unanswered[-1])
                    yield message
                bodies.release(held - reader.buffered_bytes)
                held = reader.buffered_bytes
            reader.finish()
        finally:
            bodies.release(held)

    async def _opened(self, steps: Opening, account: Account) -> bytes:
        """Decompress a message, yielding to other requests if it is long; its account grows with it."""
        bodies = self.bodies
        try:
            bodies.grow(account, next(steps))
            bodies.grow(account, next(steps))
            async with self._slicer as slicer:
                while True:
                    bodies.grow(account, next(steps))
                    await slicer.breathe()
        except StopIteration as end:
            opened: bytes = end.value
            bodies.grow(account, len(opened))
            return opened

    async def _send_grpc_error(self, send: Send, call: GrpcCall, error: HeadraceError) -> None:
        """Send an error as a trailers-only response."""
        headers = [*_GRPC_HEADERS, _GRPC_ENCODINGS, *self._error_trailers(call, error)]
        if self._holding is not None:
            await self._holding.wait()
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send(_NO_BODY)

    def _error_trailers(self, call: GrpcCall, error: HeadraceError) -> list[tuple[bytes, bytes]]:
        self.outcomes.failed(call, error)
        return [*error_headers(error), *call.names, *self.load.trailers]

    # --- REST ---

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, root, bodies, held = scope["method"], scope.get("root_path"), self.bodies, 0
        path = scope["path"].removeprefix(root) if root else scope["path"]
        handler, parameters, allowed, _, stream = self._router.match(method, path)
        call = HttpCall(method, path, parameters, scope["headers"], b"", scope["query_string"])
        call.budget = bodies
        if handler is None:
            await (
                self._send_no_route(call, allowed, scope, send)
                if stream is None
                else self._answer_events(stream, call, scope, receive, send)
            )
            return
        if self.outcomes.observed:
            self.outcomes.begin(call, method, path, scope.get("client"))
        bodies.taken_bytes += bodies.call_bytes  # as above
        try:
            if method == "POST":
                length, compressed = read_http(call)
                if length > bodies.included_bytes:
                    bodies.check(length)
                calm = bodies.taken_bytes <= bodies.calm_bytes
                event = await (receive() if calm else bodies.first(receive))
                call.body = body = event.get("body", b"")
                if compressed or length != len(body) or length > bodies.included_bytes:
                    held = await self._read_rest(call, event, receive, length, compressed)
            else:
                self._begin_without_body(call)
            reply = await handler(call)
            reply.headers += call.notes
            self.answers.begin(len(reply.body))
            if call.outcome is None:
                self._of_rest.answered += 1  # as above
            else:
                self._end(call, call.outcome, reply)
        except Exception as error:  # noqa: BLE001 - network boundary: a bug fails only its own request
            reply = self._refusal(call, error)
        except BaseException as error:
            self.outcomes.failed(call, error)
            raise
        finally:
            bodies.taken_bytes -= bodies.call_bytes
            if held or call.account is not None:
                bodies.release(held if call.account is None else held + call.account.held)
        body = reply.body
        if len(body) >= COUNTED_ANSWER_BYTES or method == "HEAD":
            await self._send_reply(reply, scope, send)
            return
        if self._holding is not None:
            await self._holding.wait()
        headers = [*reply.headers, *self.load.headers, *self._closing, (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    def _begin_without_body(self, call: HttpCall) -> None:
        echo_request_id(call)
        self.bodies.check_room()

    def _end(self, call: HttpCall, outcome: Outcome, reply: HttpReply) -> None:
        outcome.weighed(len(call.body), len(reply.body), reply.status)
        self.outcomes.answered(call)

    async def _send_no_route(
        self, call: HttpCall, allowed: tuple[str, ...], scope: Scope, send: Send
    ) -> None:
        unknown = GrpcCall(headers=call.headers) if call.method == "POST" and is_grpc(call.headers) else None
        if self.outcomes.observed:
            self.outcomes.begin(unknown or call, call.method, call.path, scope.get("client"))
        echo_request_id(unknown or call)
        if unknown is None:
            await self._send_reply(self._no_route(call, allowed), scope, send)
            return
        if self._holding is not None:
            await self._holding.wait()
        await self._send_grpc_error(send, unknown, Unsupported(f"method {call.path} is not served here"))

    def _no_route(self, call: HttpCall, allowed: tuple[str, ...]) -> HttpReply:
        path = f"{call.path:.200}"
        if not allowed:
            return self._refusal(call, NotFound(f"no such path: {path}{self._router.hint(path)}"))
        error = InvalidRequest(f"{path} takes {', '.join(allowed)}, not {call.method:.20}")
        self.outcomes.failed(call, error, WRONG_METHOD)
        reply = error_reply(error)
        reply.status = WRONG_METHOD.http
        reply.headers += (*call.names, (b"allow", ", ".join(allowed).encode()))
        return reply

    def _refusal(self, call: HttpCall, error: Exception) -> HttpReply:
        """Record the end of a call in an error, and return the reply that tells it."""
        if not isinstance(error, HeadraceError):
            _log.exception("an HTTP request failed unexpectedly", extra={"path": call.path})
            error = HeadraceError(INTERNAL)
        self.outcomes.failed(call, error)
        reply = error_reply(error)
        reply.headers += call.names
        return reply

    async def _read_rest(
        self, call: HttpCall, event: Event, receive: Receive, length: int, compressed: bool
    ) -> int:
        """Read a body that is large, compressed or perhaps incomplete, and decompress it.

        Args:
            call: Call whose body is set.
            event: First ASGI event.
            receive: ASGI's receive callable, for later events.
            length: Declared length in bytes; -1 for none.
            compressed: Whether the body is compressed.

        Returns:
            Number of bytes held for it outside its account.
        """
        bodies = self.bodies
        chunks = await bodies.read(event, receive, length)
        size = sum(map(len, chunks))
        if not compressed and size <= _COUNTED_FROM_BYTES:
            call.body = await whole(chunks)
            return size
        call.account = Account(bodies.hold_of_stream, size)
        call.body = await whole(chunks)
        if compressed:
            call.body = await self._opened(opening(call.body, bodies.limits), call.account)
        return 0

    async def _send_reply(self, reply: HttpReply, scope: Scope, send: Send) -> None:
        try:
            if self._holding is not None:
                await self._holding.wait()
            body, is_long = reply.body, len(reply.body) >= _GZIP_FROM_BYTES
            length = (b"content-length", b"%d" % len(body))
            headers = [*reply.headers, *self.load.headers, *self._closing, length]
            if is_long and accepts_gzip(scope["headers"]):
                body = await gzipped(body, self._slicer)
                headers[-1] = (b"content-length", b"%d" % len(body))
                headers += [(b"content-encoding", b"gzip"), (b"vary", b"accept-encoding")]
            await send({"type": "http.response.start", "status": reply.status, "headers": headers})
            if scope["method"] == "HEAD":
                await send(_NO_BODY)
            elif len(body) >= COUNTED_ANSWER_BYTES:
                await self.answers.send(send, slices(body))
            else:
                await send({"type": "http.response.body", "body": body, "more_body": False})
        finally:
            self.answers.end()

    # --- REST: answers that are streams of server-sent events ---

    async def _answer_events(
        self,
        handler: HttpStreamHandler,
        call: HttpCall,
        scope: Scope,
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
        response = EventResponse(self.answers, send)
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
            await response.end(None if refusal is None else refusal.body)

    async def _begin_events(self, call: HttpCall, response: EventResponse) -> None:
        """Send the head of a response."""
        if self._holding is not None:
            await self._holding.wait()
        await response.begin((*call.notes, *self.load.headers, *self._closing))

    async def _read_body(self, call: HttpCall, receive: Receive) -> int:
        """Read the headers and the body of a request; return the bytes held for it outside its account."""
        length, compressed = read_http(call)
        if length > self.bodies.included_bytes:
            self.bodies.check(length)
        event = await self.bodies.first(receive)
        call.body = event.get("body", b"")
        if compressed or length != len(call.body) or length > self.bodies.included_bytes:
            return await self._read_rest(call, event, receive, length, compressed)
        return 0


async def _live(receive: Receive, send: Send) -> None:
    """Answer the lifespan protocol, which requires no work."""
    while True:
        event = await receive()
        await send({"type": f"{event['type']}.complete"})
        if event["type"] == "lifespan.shutdown":
            return


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
    raise Cancelled(LEFT)


async def _until_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
