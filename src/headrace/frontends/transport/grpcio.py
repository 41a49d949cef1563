"""Serving gRPC with grpcio (the extra ``grpcio``): slower than h2corn, and the reference for clients."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from urllib.parse import unquote

from headrace.batching.request import NO_DEADLINE
from headrace.config import ServerConfig
from headrace.errors import ConfigError, DeadlineExceeded, HeadraceError, InvalidRequest, Unsupported
from headrace.frontends.calls import Account, Budget, GrpcCall, GrpcMethod, UnaryHandler
from headrace.frontends.pieces import joined
from headrace.frontends.transport.asgi import Application
from headrace.frontends.transport.bodies import Bodies
from headrace.frontends.transport.grpc_framing import short_message
from headrace.frontends.transport.waiting import Pauses
from headrace.outcomes import Outcome, Outcomes
from headrace.status import codes

try:
    import grpc
    from grpc import aio
except ImportError as error:
    raise ConfigError("grpc_server = grpcio needs an extra: pip install 'headrace[grpcio]'") from error

_log = logging.getLogger(__name__)

# How long no call may have come before the server stops, and how often that is waited for at the most.
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
    ) -> None:
        """Prepare to serve.

        Args:
            application: What answers REST; its budget of bytes, and where calls end, are for both.
            methods: What answers.
            listener: Bound and listening; its port is taken over, because grpcio opens its own sockets.
            config: The server's settings.
        """
        self._drain_seconds = config.drain_seconds - config.lead_seconds
        self.serving: asyncio.Future[None] | None = None
        self._listener = listener
        self._methods = _Methods(methods, application)
        limits = config.limits
        self._server = aio.server(
            handlers=[self._methods],
            options=[
                ("grpc.max_receive_message_length", limits.max_message_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", limits.max_streams_per_connection),
            ],
        )

    async def start(self) -> None:
        """Start answering; returns when connections are accepted."""
        host, port = self._listener.getsockname()[:2]
        self._listener.close()
        self._server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        await self._server.start()
        self.serving = asyncio.ensure_future(self._until_terminated())

    async def _until_terminated(self) -> None:
        await self._server.wait_for_termination()

    async def stop(self) -> None:
        """Accept nothing more; return when what was accepted is answered, or the drain time is over."""
        # What has arrived but was not handed to a method yet would be cancelled. So answers are held back for
        # a moment: a caller that waits for one sends nothing new, and then hears that the server goes.
        self._methods.answering.clear()
        await self._methods.until_quiet()
        stopping = asyncio.ensure_future(self._server.stop(self._drain_seconds))
        await asyncio.sleep(_QUIET_SECONDS)
        self._methods.answering.set()
        self._methods.pauses.end()
        await stopping


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio has no types
    """Finds the handler of a call by its path; messages stay bytes.

    Attributes:
        answering: Not set while answers are held back.
        pauses: The pauses of streams before and between their messages.
    """

    def __init__(self, methods: Sequence[GrpcMethod], application: Application) -> None:
        self._methods = {method.path: method for method in methods}
        self._application = application
        self.answering = asyncio.Event()
        self.answering.set()
        self.pauses = Pauses()
        self._calls = 0

    async def until_quiet(self) -> None:
        """Wait until no call has come for a moment, or that has taken too long."""
        for _ in range(_QUIET_ATTEMPTS):
            before = self._calls
            await asyncio.sleep(_QUIET_SECONDS)
            if self._calls == before:
                return

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        self._calls += 1
        method = self._methods.get(details.method)
        if method is None:
            return grpc.stream_stream_rpc_method_handler(_unknown(details.method, self._application.outcomes))
        if method.unary is not None:
            # As a stream of one message: only so there is a moment in which it has not arrived yet.
            unary = _Unary(method.path, method.unary, self._application, self.answering)
            return grpc.stream_unary_rpc_method_handler(unary.answer)
        return grpc.stream_stream_rpc_method_handler(_stream(method, self._application, self.pauses))


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
        call = _call(context, outcomes, account, bodies)
        bodies.open()
        failed: HeadraceError
        try:
            bodies.check_room()
            message = await self._arrived(messages, bodies)
            account.hold(len(message))
            reply = await self._handler(message, call)
        except HeadraceError as error:
            failed = error
        except Exception:  # noqa: BLE001 - the boundary to the network: a bug fails its own call only
            _log.exception("a gRPC call failed unexpectedly", extra={"path": self._path})
            failed = _INTERNAL
        except BaseException as error:
            outcomes.failed(call, error)
            raise
        else:
            outcomes.answered(call)
            await self._answering.wait()
            if call.notes:
                context.set_trailing_metadata(
                    tuple((name.decode(), value.decode()) for name, value in call.notes)
                )
            return joined(reply)
        finally:
            bodies.close(account.held)
        # Only now: what a refused call held must not refuse the next one while the error is being sent.
        await _abort(context, call, failed, outcomes)
        raise AssertionError("abort always raises")

    @staticmethod
    async def _arrived(messages: AsyncIterator[bytes], bodies: Bodies) -> bytes:
        seconds = bodies.limits.body_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                return await bodies.silent.coming(messages.__anext__)
        except TimeoutError:
            raise DeadlineExceeded(f"the message had not arrived after {seconds:g} s") from None
        except StopAsyncIteration:
            raise InvalidRequest("expected one gRPC message, got none") from None


def _stream(method: GrpcMethod, application: Application, pauses: Pauses) -> object:
    bodies, outcomes = application.bodies, application.outcomes

    async def answer(messages: AsyncIterator[bytes], context: aio.ServicerContext) -> AsyncIterator[bytes]:
        unanswered: deque[int] = deque()

        async def counted() -> AsyncIterator[bytes]:
            async for message in _in_time(messages, bodies, pauses):
                bodies.hold_of_stream(len(message))
                unanswered.append(len(message))
                yield message

        call = _call(context, outcomes, budget=bodies)
        bodies.open()
        try:
            bodies.check_room()
            async for reply in method.stream(counted(), call):  # type: ignore[misc]  # the caller has checked
                if unanswered:
                    bodies.release(unanswered.popleft())
                yield joined(reply)
        except HeadraceError as error:
            await _abort(context, call, error, outcomes)
        except Exception:  # noqa: BLE001 - the same boundary
            _log.exception("a gRPC stream failed unexpectedly", extra={"path": method.path})
            await _abort(context, call, _INTERNAL, outcomes)
        except BaseException as error:
            outcomes.failed(call, error)
            raise
        else:
            outcomes.answered(call)
        finally:
            bodies.close(sum(unanswered))

    return answer


async def _in_time(messages: AsyncIterator[bytes], bodies: Bodies, pauses: Pauses) -> AsyncIterator[bytes]:
    """A stream's messages: the first one within the time for a body, those after it whenever they come.

    Once the server stops, only those that have arrived, as far as that can be told.
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
            raise DeadlineExceeded(f"no message had come {seconds:g} s after the stream was opened")
        come = True
        yield message


def _call(
    context: aio.ServicerContext,
    outcomes: Outcomes,
    account: Account | None = None,
    budget: Budget | None = None,
) -> GrpcCall:
    left = context.time_remaining()
    deadline = NO_DEADLINE if left is None else time.monotonic() + left * 0.98
    call = GrpcCall(deadline, account, budget, _Metadata(context))
    if outcomes.observed:
        call.outcome = Outcome(call.door, _caller(context.peer()))
    return call


def _caller(peer: str) -> str:
    """The other end as ASGI's servers have it, of ``ipv4:127.0.0.1:5000`` or ``ipv6:%5B::1%5D:5000``."""
    family, _, address = unquote(peer).partition(":")
    return address if family in {"ipv4", "ipv6"} else ""


def _unknown(path: str, outcomes: Outcomes) -> object:
    async def answer(messages: AsyncIterator[bytes], context: aio.ServicerContext) -> AsyncIterator[bytes]:
        error = Unsupported(f"method {path} is not served here")
        await _abort(context, _call(context, outcomes), error, outcomes)
        yield b""  # makes it a stream; never reached

    return answer


class _Metadata:
    """The headers of a call, read from the library only if somebody asks."""

    def __init__(self, context: aio.ServicerContext) -> None:
        self._context = context

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        for name, value in self._context.invocation_metadata() or ():
            yield name.encode(), value if isinstance(value, bytes) else value.encode()


async def _abort(
    context: aio.ServicerContext, call: GrpcCall, error: HeadraceError, outcomes: Outcomes
) -> None:
    outcomes.failed(call, error)
    message = short_message(error).encode("utf-8", "replace").decode()
    await context.abort(_STATUS[codes(error).grpc], message)
