"""Serving REST with uvicorn (the extra ``uvicorn``); gRPC needs h2corn or grpcio."""

from __future__ import annotations

import asyncio
import socket
import time

from headrace.config import Limits, ServerConfig
from headrace.errors import ConfigError, DeadlineExceeded, TooLarge
from headrace.frontends.transport.asgi import Application, Scope
from headrace.frontends.transport.bodies import Event, Receive
from headrace.frontends.transport.headers import announced_bytes
from headrace.frontends.transport.listening import IDLE_SECONDS
from headrace.frontends.transport.sending import Send

try:
    import uvicorn
except ImportError as error:
    raise ConfigError("http_server = uvicorn needs an extra: pip install 'headrace[uvicorn]'") from error


class UvicornTransport:
    """The application on one listening socket."""

    def __init__(self, application: Application, listener: socket.socket, config: ServerConfig) -> None:
        """Prepare to serve.

        Args:
            application: What answers.
            listener: Bound and listening.
            config: The server's settings.
        """
        self._listener = listener
        self._server = _Embedded(
            uvicorn.Config(
                _Guarded(application, config.limits),
                log_config=None,
                access_log=False,
                proxy_headers=False,  # a caller is the other end of its connection, not what it says it is
                lifespan="off",
                limit_concurrency=config.limits.max_connections or None,
                timeout_keep_alive=IDLE_SECONDS,
                timeout_graceful_shutdown=max(1, round(config.drain_seconds - config.lead_seconds)),
            )
        )
        self.serving: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Start answering; returns when connections are accepted."""
        # uvicorn closes what it serves; the listening socket is its owner's, so it gets a copy.
        self.serving = asyncio.create_task(self._server.serve([self._listener.dup()]))
        await self._server.begun.wait()

    async def stop(self) -> None:
        """Accept nothing more, and return when what was accepted has been answered."""
        self._server.should_exit = True
        if self.serving is not None:
            await self.serving


class _Guarded:
    """The application behind what uvicorn lacks: limits of how long and how large a body may become."""

    def __init__(self, application: Application, limits: Limits) -> None:
        self._application = application
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            receive = _Body(scope, receive, self._limits).receive
        await self._application(scope, receive, send)


class _Body:
    """The receiving end of one request, with the time and the size of its body limited."""

    def __init__(self, scope: Scope, receive: Receive, limits: Limits) -> None:
        self._receive = receive
        self._limits = limits
        self._until = time.monotonic() + limits.body_timeout_seconds
        self._announced = max(
            (announced_bytes(value) for name, value in scope["headers"] if name == b"content-length"),
            default=0,
        )
        self._arrived = False

    async def receive(self) -> Event:
        most = self._limits.max_message_bytes
        if self._announced > most:
            raise TooLarge(f"the body is to have {self._announced} bytes; this server takes at most {most}")
        if self._arrived:
            return await self._receive()
        try:
            async with asyncio.timeout(self._until - time.monotonic()):
                event = await self._receive()
        except TimeoutError:
            seconds = self._limits.body_timeout_seconds
            raise DeadlineExceeded(f"the body had not arrived after {seconds:g} s") from None
        self._arrived = not event.get("more_body", False)
        return event


class _Embedded(uvicorn.Server):
    """A server that leaves signals to its host, and says when it has begun."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.begun = asyncio.Event()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await self._serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.begun.set()
