"""Serving REST with uvicorn (the extra ``uvicorn``); gRPC needs h2corn or grpcio."""

from __future__ import annotations

import asyncio
import socket

from headrace.config import ServerConfig
from headrace.errors import ConfigError
from headrace.frontends.transport.asgi import Application

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
                application,
                log_config=None,
                access_log=False,
                lifespan="off",
                limit_concurrency=config.limits.max_connections or None,
                timeout_graceful_shutdown=max(1, round(config.drain_seconds)),
            )
        )
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start answering; returns when connections are accepted."""
        # uvicorn closes what it serves; the listening socket is its owner's, so it gets a copy.
        self._serving = asyncio.create_task(self._server.serve([self._listener.dup()]))
        await self._server.begun.wait()

    async def stop(self) -> None:
        """Accept nothing more, and return when what was accepted has been answered."""
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving


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
