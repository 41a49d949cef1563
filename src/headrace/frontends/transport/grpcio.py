"""Serving gRPC with grpcio (the extra ``grpcio``): slower than h2corn, and the reference for clients."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import AsyncIterator, Sequence

from headrace.batching.request import NO_DEADLINE
from headrace.config import ServerConfig
from headrace.errors import ConfigError, HeadraceError
from headrace.frontends.calls import GrpcCall, GrpcMethod
from headrace.frontends.status import codes

try:
    import grpc
    from grpc import aio
except ImportError as error:
    raise ConfigError("grpc_server = grpcio needs an extra: pip install 'headrace[grpcio]'") from error

_log = logging.getLogger(__name__)

_STATUS = {code.value[0]: code for code in grpc.StatusCode}
_INTERNAL = HeadraceError("internal error; the server's log says more")


class GrpcioTransport:
    """The gRPC methods on one port."""

    def __init__(self, methods: Sequence[GrpcMethod], listener: socket.socket, config: ServerConfig) -> None:
        """Prepare to serve.

        Args:
            methods: What answers.
            listener: Bound and listening; its port is taken over, because grpcio opens its own sockets.
            config: The server's settings.
        """
        self._drain_seconds = config.drain_seconds
        self._listener = listener
        self._methods = {method.path: method for method in methods}
        most = config.limits.max_message_bytes
        self._server = aio.server(
            handlers=[_Methods(self._methods)],
            options=[("grpc.max_receive_message_length", most), ("grpc.max_send_message_length", -1)],
        )

    async def start(self) -> None:
        """Start answering; returns when connections are accepted."""
        host, port = self._listener.getsockname()[:2]
        self._listener.close()
        self._server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        await self._server.start()

    async def stop(self) -> None:
        """Accept nothing more; return when what was accepted is answered, or the drain time is over."""
        await self._server.stop(self._drain_seconds)


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio has no types
    """Finds the handler of a call by its path; messages stay bytes."""

    def __init__(self, methods: dict[str, GrpcMethod]) -> None:
        self._methods = methods

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        method = self._methods.get(details.method)
        if method is None:
            return None
        if method.unary is not None:
            return grpc.unary_unary_rpc_method_handler(_unary(method))
        return grpc.stream_stream_rpc_method_handler(_stream(method))


def _unary(method: GrpcMethod) -> object:
    async def answer(message: bytes, context: aio.ServicerContext) -> bytes:
        try:
            return await method.unary(message, _call(context))  # type: ignore[misc]  # the caller has checked
        except HeadraceError as error:
            await _abort(context, error)
        except Exception:  # noqa: BLE001 - the boundary to the network: a bug fails its own call only
            _log.exception("a gRPC call failed unexpectedly", extra={"path": method.path})
            await _abort(context, _INTERNAL)
        raise AssertionError("abort always raises")

    return answer


def _stream(method: GrpcMethod) -> object:
    async def answer(messages: AsyncIterator[bytes], context: aio.ServicerContext) -> AsyncIterator[bytes]:
        try:
            async for reply in method.stream(messages, _call(context)):  # type: ignore[misc]  # as above
                yield reply
        except HeadraceError as error:
            await _abort(context, error)
        except Exception:  # noqa: BLE001 - the same boundary
            _log.exception("a gRPC stream failed unexpectedly", extra={"path": method.path})
            await _abort(context, _INTERNAL)

    return answer


def _call(context: aio.ServicerContext) -> GrpcCall:
    left = context.time_remaining()
    return GrpcCall(NO_DEADLINE if left is None else time.monotonic() + left * 0.98)


async def _abort(context: aio.ServicerContext, error: HeadraceError) -> None:
    await context.abort(_STATUS[codes(error).grpc], error.message)
