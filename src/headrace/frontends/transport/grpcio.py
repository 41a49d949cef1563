"""Serve gRPC with grpcio (the extra ``grpcio``): slower than h2corn, and the reference for clients."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote

from headrace.access.caller import ASKING, Caller
from headrace.access.permissions import ANY
from headrace.base.addresses import bracketed
from headrace.base.errors import (
    DeadlineExceeded,
    HeadraceError,
    InvalidRequest,
    Unsupported,
    needs_extra,
)
from headrace.base.status_codes import codes
from headrace.batching.request import NO_DEADLINE
from headrace.config import ServerConfig
from headrace.frontends.calls import Account, Budget, Following, GrpcCall, GrpcMethod, UnaryHandler, joined
from headrace.frontends.transport.asgi import Application
from headrace.frontends.transport.bodies import Bodies
from headrace.frontends.transport.grpc_framing import short_message
from headrace.frontends.transport.headers import echo_request_id
from headrace.frontends.transport.waiting_calls import Pauses
from headrace.telemetry.outcomes import Outcomes

if TYPE_CHECKING:
    from headrace.access.gate import Gate
    from headrace.frontends.transport.certificates import Certificate, ServedCertificate

try:
    import grpc
    from grpc import aio
except ImportError as error:
    raise needs_extra("grpc_server = grpcio", "grpcio", error) from error

_log = logging.getLogger(__name__)

# The server stops after this long without a new call, or after this many attempts to see that.
_QUIET_SECONDS = 0.1
_QUIET_ATTEMPTS = 10
_STATUS = {code.value[0]: code for code in grpc.StatusCode}
_INTERNAL = HeadraceError("internal error; the server's log says more")


class GrpcioTransport:
    """The gRPC methods on one port."""

    def __init__(
        self,
        application: Application,
        methods: Sequence[GrpcMethod],
        listener: socket.socket,
        config: ServerConfig,
        certificate: ServedCertificate | None = None,
    ) -> None:
        """Prepare to serve.

        Args:
            application: Application for REST, whose byte budget and outcomes gRPC shares.
            methods: Methods to serve.
            listener: Bound and listening socket; only its port is used, as grpcio opens its own sockets.
            config: Server settings.
            certificate: Certificate for TLS, followed as it changes; None for plaintext.
        """
        self._drain_seconds = config.answer_seconds
        self.serving: asyncio.Future[None] | None = None
        self.opened: tuple[socket.socket, ...] = ()
        self._listener = listener
        self._certificate = certificate
        self._methods = _Methods(methods, application)
        limits = config.limits
        self._server = aio.server(
            handlers=[self._methods],
            options=[
                ("grpc.max_receive_message_length", limits.max_message_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", limits.max_streams_per_connection),
                *_age(config),
            ],
        )

    async def start(self) -> None:
        """Start serving; return when connections are accepted."""
        host, port = self._listener.getsockname()[:2]
        self._listener.close()
        address = f"{bracketed(host)}:{port}"
        if self._certificate is None:
            self._server.add_insecure_port(address)
        else:
            self._server.add_secure_port(address, _credentials(self._certificate))
        await self._server.start()
        self.serving = asyncio.ensure_future(self._until_terminated())

    async def _until_terminated(self) -> None:
        await self._server.wait_for_termination()

    def drain(self) -> None:
        """Do nothing: HTTP/2 clients are notified when the server stops."""

    async def stop(self) -> None:
        """Stop accepting; return when accepted requests are answered or the drain time has expired."""
        # Calls that have arrived but not reached a method would be cancelled. So responses are held back for
        # a moment: a client that waits for one sends nothing new, and then learns that the server stops.
        self._methods.answering.clear()
        await self._methods.until_quiet()
        stopping = asyncio.ensure_future(self._server.stop(self._drain_seconds))
        await asyncio.sleep(_QUIET_SECONDS)
        self._methods.answering.set()
        self._methods.pauses.end()
        await stopping


def _age(config: ServerConfig) -> Iterator[tuple[str, int]]:
    """Yield the options for a maximum connection age; grpcio itself varies the age by a tenth."""
    if config.max_connection_age_seconds:
        yield "grpc.max_connection_age_ms", math.ceil(config.max_connection_age_seconds * 1000)
        yield "grpc.max_connection_age_grace_ms", math.ceil(config.drain_seconds * 1000)


def _credentials(certificate: ServedCertificate) -> grpc.ServerCredentials:
    """Return credentials that give new connections the certificate in force when each begins."""
    given = certificate.current

    def when_changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal given
        if certificate.current is given:
            return None
        given = certificate.current
        return _pairs(given)

    required = given.client_ca is not None
    return grpc.dynamic_ssl_server_credentials(_pairs(given), when_changed, required)


def _pairs(certificate: Certificate) -> grpc.ServerCertificateConfiguration:
    pairs = [(certificate.key, certificate.chain)]
    return grpc.ssl_server_certificate_configuration(pairs, certificate.client_ca)


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio has no types
    """Finds the handler of a call by its path; messages stay bytes.

    Attributes:
        answering: Cleared while responses are held back.
        pauses: Pauses of streams before and between their messages.
    """

    def __init__(self, methods: Sequence[GrpcMethod], application: Application) -> None:
        self._methods = {method.path: method for method in methods}
        self._application = application
        self.answering = asyncio.Event()
        self.answering.set()
        self.pauses = Pauses()
        self._calls = 0

    async def until_quiet(self) -> None:
        """Wait until no call has arrived for a moment, or the attempts are used up."""
        for _ in range(_QUIET_ATTEMPTS):
            before = self._calls
            await asyncio.sleep(_QUIET_SECONDS)
            if self._calls == before:
                return

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        self._calls += 1
        method = self._methods.get(details.method)
        application, gate = self._application, self._application.gate
        if method is not None and method.unary is not None:
            # A stream of one message, because only a stream shows that a message has not arrived yet.
            unary: _Answer = _Unary(method.path, method.unary, application, self.answering).answer
            if gate is not None:
                unary = _through_gate(unary, method, gate, application)
            return grpc.stream_unary_rpc_method_handler(unary)
        if method is None:
            unknown = Unsupported(f"method {details.method} is not served here")
            stream = _refusing(unknown, details.method, application)
        else:
            stream = _stream(method, application, self.pauses)
        if gate is not None:
            asked = method or GrpcMethod(details.method, verbs=ANY)
            stream = _stream_through_gate(stream, asked, gate, application)
        return grpc.stream_stream_rpc_method_handler(stream)


_Answer = Callable[[AsyncIterator[bytes], aio.ServicerContext], Awaitable[bytes]]
_Answers = Callable[[AsyncIterator[bytes], aio.ServicerContext], AsyncIterator[bytes]]


def _through_gate(inner: _Answer, method: GrpcMethod, gate: Gate, application: Application) -> _Answer:
    """Return a handler that passes the gate first; the library runs each call in a task of its own."""

    async def answer(messages: AsyncIterator[bytes], context: aio.ServicerContext) -> bytes:
        caller = await _admitted(context, method, gate, application)
        try:
            return await inner(messages, context)
        finally:
            gate.leave(caller)

    return answer


def _stream_through_gate(
    inner: _Answers, method: GrpcMethod, gate: Gate, application: Application
) -> _Answers:
    """Return a handler of streams that passes the gate first."""

    async def answer(messages: AsyncIterator[bytes], context: aio.ServicerContext) -> AsyncIterator[bytes]:
        caller = await _admitted(context, method, gate, application)
        try:
            async for reply in inner(messages, context):
                yield reply
        finally:
            gate.leave(caller)

    return answer


async def _admitted(
    context: aio.ServicerContext, method: GrpcMethod, gate: Gate, application: Application
) -> Caller:
    try:
        caller = gate.admit(_headers(context.invocation_metadata()), method.verbs)
    except HeadraceError as error:
        refused = _call(context, method.path, application.outcomes, is_admitted=False)
        await _abort(context, refused, error, application)
        raise
    ASKING.set(caller)
    return caller


class _Unary:
    """The handler of one call of a unary method."""

    def __init__(
        self, path: str, handler: UnaryHandler, application: Application, answering: asyncio.Event
    ) -> None:
        self._path = path
        self._handler = handler
        self._application = application
        self._answering = answering

    async def answer(self, messages: AsyncIterator[bytes], context: aio.ServicerContext) -> bytes:
        bodies = self._application.bodies
        account = Account(bodies.hold_of_stream)
        outcomes = self._application.outcomes
        call = _call(context, self._path, outcomes, account, bodies)
        bodies.open()
        failed: HeadraceError
        try:
            bodies.check_room()
            message = await self._arrived(messages, bodies)
            account.hold(len(message))
            reply = await self._handler(message, call)
        except HeadraceError as error:
            failed = error
        except Exception:  # noqa: BLE001 - network boundary: a bug fails only its own call
            _log.exception("a gRPC call failed unexpectedly", extra={"path": self._path})
            failed = _INTERNAL
        except BaseException as error:
            outcomes.failed(call, error)
            raise
        else:
            if call.outcome is not None:
                call.outcome.weighed(len(message), len(reply))
            outcomes.answered(call)
            await self._answering.wait()
            if call.notes or self._application.load.metadata:
                context.set_trailing_metadata(_as_metadata(call.notes, self._application))
            return joined(reply)
        finally:
            bodies.close(account.held)
        # Sent after the release: bytes of a refused call must not cause the next refusal meanwhile.
        await _abort(context, call, failed, self._application)
        raise AssertionError("abort always raises")

    @staticmethod
    async def _arrived(messages: AsyncIterator[bytes], bodies: Bodies) -> bytes:
        seconds = bodies.limits.body_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                return await bodies.silent.coming(messages.__anext__)
        except TimeoutError:
            raise DeadlineExceeded(f"the message did not arrive within {seconds:g} s") from None
        except StopAsyncIteration:
            raise InvalidRequest("expected one gRPC message, got none") from None


def _stream(method: GrpcMethod, application: Application, pauses: Pauses) -> _Answers:
    bodies, outcomes, gate = application.bodies, application.outcomes, application.gate

    async def answer(messages: AsyncIterator[bytes], context: aio.ServicerContext) -> AsyncIterator[bytes]:
        unanswered: deque[int] = deque()

        async def counted() -> AsyncIterator[bytes]:
            async for message in _in_time(messages, bodies, pauses):
                bodies.hold_of_stream(len(message))
                unanswered.append(len(message))
                if gate is not None:
                    await gate.in_turn(ASKING.get())
                yield message

        call = _call(context, method.path, outcomes, budget=bodies)
        bodies.open()
        try:
            bodies.check_room()
            async for reply in method.stream(counted(), call):  # type: ignore[misc]  # the caller has checked
                if type(reply) is Following:
                    yield bytes(reply)  # the library takes no subclass
                    continue
                if unanswered:
                    bodies.release(unanswered.popleft())
                yield joined(reply)
        except HeadraceError as error:
            await _abort(context, call, error, application)
        except Exception:  # noqa: BLE001 - network boundary, as above
            _log.exception("a gRPC stream failed unexpectedly", extra={"path": method.path})
            await _abort(context, call, _INTERNAL, application)
        except BaseException as error:
            outcomes.failed(call, error)
            raise
        else:
            outcomes.answered(call)
            if call.notes or application.load.metadata:
                context.set_trailing_metadata(_as_metadata(call.notes, application))
        finally:
            bodies.close(sum(unanswered))

    return answer


async def _in_time(messages: AsyncIterator[bytes], bodies: Bodies, pauses: Pauses) -> AsyncIterator[bytes]:
    """Yield a stream's messages: the first within the timeout of a body, later ones whenever they arrive.

    Once the server stops, only messages that have arrived are yielded, as far as that can be determined.
    """
    seconds = bodies.limits.body_timeout_seconds
    come, of_stream = False, pauses.of_stream()
    while True:
        coming = partial((bodies.begun if come else bodies.silent).coming, messages.__anext__)
        until = None if come else asyncio.get_running_loop().time() + seconds
        try:
            message = await of_stream.coming(coming, until)
        except StopAsyncIteration:
            return
        if message is None:
            raise DeadlineExceeded(f"no message arrived within {seconds:g} s after the stream was opened")
        come = True
        yield message


def _call(
    context: aio.ServicerContext,
    path: str,
    outcomes: Outcomes,
    account: Account | None = None,
    budget: Budget | None = None,
    *,
    is_admitted: bool = True,
) -> GrpcCall:
    left = context.time_remaining()
    deadline = NO_DEADLINE if left is None else time.monotonic() + left * 0.98
    call = GrpcCall(deadline, account, budget, _Metadata(context))
    if outcomes.observed:
        outcomes.begin(call, "POST", path, _caller(context.peer()), is_admitted=is_admitted)
    echo_request_id(call)
    return call


def _caller(peer: str) -> str:
    """Return ``HOST:PORT`` of a peer such as ``ipv4:127.0.0.1:5000`` or ``ipv6:%5B::1%5D:5000``, else ""."""
    family, _, address = unquote(peer).partition(":")
    return address if family in {"ipv4", "ipv6"} else ""


def _refusing(error: HeadraceError, path: str, application: Application) -> _Answers:
    async def answer(messages: AsyncIterator[bytes], context: aio.ServicerContext) -> AsyncIterator[bytes]:
        await _abort(context, _call(context, path, application.outcomes), error, application)
        yield b""  # makes this an async generator; never reached

    return answer


class _Metadata:
    """The headers of a call, read from the library only on demand."""

    def __init__(self, context: aio.ServicerContext) -> None:
        self._context = context

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return _headers(self._context.invocation_metadata())


def _headers(metadata: Iterable[tuple[str, str | bytes]] | None) -> Iterator[tuple[bytes, bytes]]:
    """Yield the library's metadata as headers."""
    for name, value in metadata or ():
        yield name.encode(), value if isinstance(value, bytes) else value.encode()


async def _abort(
    context: aio.ServicerContext, call: GrpcCall, error: HeadraceError, application: Application
) -> None:
    application.outcomes.failed(call, error)
    message = short_message(error).encode("utf-8", "replace").decode()
    await context.abort(_STATUS[codes(error).grpc], message, _as_metadata(call.names, application))


def _as_metadata(
    notes: tuple[tuple[bytes, bytes], ...], application: Application
) -> tuple[tuple[str, str | bytes], ...]:
    return (*((name.decode(), value.decode()) for name, value in notes), *application.load.metadata)
