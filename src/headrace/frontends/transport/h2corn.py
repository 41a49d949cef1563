"""Serving with h2corn: HTTP/1.1, HTTP/2 and native gRPC on every port, with its guards set."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Sequence

from h2corn import Config, RequestPolicy, Server

from headrace.config import ServerConfig
from headrace.frontends.transport.asgi import Application
from headrace.frontends.transport.listening import IDLE_SECONDS

_log = logging.getLogger(__name__)

# Small windows bound what a client can make the server hold: with these, 30 unread answers of 8 MB took 67 MB
# of memory instead of 361.
_STREAM_WINDOW_BYTES = 256 * 1024
_CONNECTION_WINDOW_BYTES = 1024 * 1024
_RESPONSE_STALL_SECONDS = 60.0
_HELD_SECONDS = 0.1
# Descriptors that are not connections: models, logs, listening sockets, the event loop's own.
_SPARE_DESCRIPTORS = 64


class H2cornTransport:
    """The application on some listening sockets."""

    def __init__(
        self, application: Application, sockets: Sequence[socket.socket], config: ServerConfig
    ) -> None:
        """Prepare to serve.

        Args:
            application: What answers.
            sockets: Bound and listening; they stay the caller's.
            config: The server's settings.
        """
        self._application = application
        limits = config.limits
        self._server = Server(
            application.answer,
            Config(
                bind=tuple(f"fd://{one.fileno()}" for one in sockets),
                grpc=True,
                runtime_threads=1,
                lifespan="off",
                access_log=False,
                log_format=config.log_format,
                max_concurrent_streams=limits.max_streams_per_connection,
                limit_connections=_most_connections(limits.max_connections),
                h2_initial_stream_window_size=_STREAM_WINDOW_BYTES,
                h2_initial_connection_window_size=_CONNECTION_WINDOW_BYTES,
                timeout_keep_alive=IDLE_SECONDS,
                # The smaller of both holds for a kept HTTP/1.1 connection. For heads this is the longest
                # silence, not the longest time: who sends a byte now and then was never cut off by it.
                timeout_request_header=IDLE_SECONDS,
                timeout_graceful_shutdown=config.drain_seconds - config.lead_seconds,
                request_policies=(
                    *(
                        RequestPolicy(
                            path=path,
                            max_request_body_size=0,
                            timeout_request_body_idle=0,
                            h2_timeout_response_stall=_RESPONSE_STALL_SECONDS,
                        )
                        for path in application.stream_paths
                    ),
                    # Sizes are limited where bodies are read, with an error that says so. Native gRPC is
                    # exempt from h2corn's time limits unless a policy names its path.
                    RequestPolicy(
                        path="/*",
                        max_request_body_size=0,
                        timeout_request_body_idle=limits.body_timeout_seconds,
                        h2_timeout_response_stall=_RESPONSE_STALL_SECONDS,
                    ),
                ),
            ),
        )
        self.serving: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Start answering; returns when connections are accepted."""
        self.serving = asyncio.create_task(self._server.serve())
        started = asyncio.create_task(self._server.wait_started())
        await asyncio.wait({self.serving, started}, return_when=asyncio.FIRST_COMPLETED)
        if self.serving.done():
            started.cancel()
            await self.serving
        await started

    async def stop(self) -> None:
        """Accept nothing more; return when what was accepted is answered, or the drain time is over."""
        if self.serving is None:
            return
        # It closes a connection with its GOAWAY as soon as nothing is being answered on it, and what the
        # client has sent meanwhile makes that a reset.
        async with self._application.holding_answers(_HELD_SECONDS):
            self._server.shutdown()
        # Only now: who is told before that the connection ends opens his next stream here.
        self._application.bodies.pauses.end()
        await self.serving


def _most_connections(wanted: int) -> int:
    """As many connections as are wanted, 0 for any number, and descriptors allow.

    An accept that finds no descriptor would end the server.
    """
    possible = _connections_within_file_limit()
    if wanted > possible:
        _log.warning(
            "limits.max_connections = %d, but the process may have too few files open: %d are accepted; "
            "raise its limit (ulimit -n)",
            *(wanted, possible),
        )
    return min(wanted or possible, possible)


def _connections_within_file_limit() -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return max(1, min(soft, 1 << 20) - _SPARE_DESCRIPTORS)
