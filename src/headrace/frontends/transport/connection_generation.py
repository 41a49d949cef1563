"""A group of connections that h2corn serves with one configuration, and that end together."""

from __future__ import annotations

import asyncio
import copy
import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from h2corn import Config, RequestPolicy, Server, _lib

from headrace.base import cpus
from headrace.config import ServerConfig
from headrace.frontends.transport.asgi import Application
from headrace.frontends.transport.listening_sockets import IDLE_SECONDS
from headrace.frontends.transport.waiting_calls import Pauses

if TYPE_CHECKING:
    from headrace.frontends.transport.certificates import Certificate

# Unread bytes are not counted in max_inflight_bytes; the window bounds them.
_LEAST_WINDOW_BYTES, _MOST_WINDOW_BYTES = 1024 * 1024, 4 * 1024 * 1024
_WINDOW_PART = 128
_STREAM_PART, _FRAME_PART = 4, 16
# One I/O thread keeps up with the serving thread on a few cores.
_CORES_PER_THREAD, _MOST_THREADS = 4, 4
_RESPONSE_STALL_SECONDS = 60.0
_FIRST_BYTES_SECONDS = 15.0
"""Longest silence of a new connection in seconds.

The timer also runs while the process is suspended or gets no CPU time, and connections are then closed with
their requests unread: h2corn's default of 5 s is too short.
"""
_HELD_SECONDS = 0.1
_ENDED = (
    "this connection is closing because of its age or a new certificate; all messages read are answered: "
    "open the stream again, on a new connection"
)

# h2corn prints a banner when a generation starts, which names an option that headrace does not have. No
# setting disables it. If a later version removes this function, the banner merely returns.
vars(_lib)["emit_banner"] = lambda *_arguments: None


class Generation:
    """An h2corn server with the connections it accepts.

    Its configuration, the certificate above all, is fixed at its start. So several generations may follow
    one another on the same listening sockets.

    Attributes:
        serving: Future that ends with the last connection, with the error if any; None before ``start``.
        application: Copy of the application that drains, holds responses and pauses for this generation.
        number: Number of its set of listening sockets.
        accepts_no_more: Set when the generation has stopped accepting connections.
    """

    def __init__(
        self,
        application: Application,
        sockets: Sequence[int],
        config: ServerConfig,
        most_connections: int,
        certificate: Certificate | None,
    ) -> None:
        """Prepare to serve.

        Args:
            application: Application to serve.
            sockets: Descriptors of the listening sockets, which the caller keeps owning.
            config: Server settings.
            most_connections: Largest number of open connections.
            certificate: Certificate for TLS; None for plaintext.
        """
        self.application = copy.copy(application)
        self.application.pauses = Pauses()
        self.number = 0
        self.accepts_no_more = asyncio.Event()
        self._sockets = sockets
        self._config = config
        self._most_connections = most_connections
        self._certificate = certificate
        self.serving: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Start serving; return when connections are accepted.

        Raises:
            ValueError: h2corn rejects the certificate.
        """
        with _files(self._certificate) as tls:
            self._server = Server(
                self.application.answer,
                _configuration(self.application, self._sockets, self._config, self._most_connections, tls),
            )
            self.serving = asyncio.create_task(self._server.serve())
            started = asyncio.create_task(self._server.wait_started())
            await asyncio.wait({self.serving, started}, return_when=asyncio.FIRST_COMPLETED)
            if self.serving.done():
                started.cancel()
                await self.serving
            await started

    def drain(self) -> None:
        """Send ``Connection: close`` with every HTTP/1.1 response from now on."""
        self.application.drain()

    async def stop(self, stream_seconds: float = 0.0, hurry: asyncio.Event | None = None) -> None:
        """Stop accepting; return when accepted requests are answered or the drain time has expired.

        Args:
            stream_seconds: Grace period in seconds before streams are ended.
            hurry: Event that ends the grace period early; without it there is no grace period.
        """
        if self.serving is None:
            self.accepts_no_more.set()
            return
        # h2corn sends GOAWAY and closes a connection at once if no response is pending on it. A request
        # that the client has sent meanwhile turns the close into a reset.
        try:
            async with self.application.holding_answers(_HELD_SECONDS):
                self._server.shutdown()
        finally:
            self.accepts_no_more.set()
        if hurry is not None:
            hurried = asyncio.create_task(hurry.wait())
            either = (self.serving, hurried)
            await asyncio.wait(either, timeout=stream_seconds, return_when=asyncio.FIRST_COMPLETED)
            hurried.cancel()
            if not hurry.is_set():
                self.application.pauses.why = _ENDED
        # End streams only after shutdown begins, or clients open new ones on this connection.
        self.application.pauses.end()
        await self.serving


def window_bytes(max_inflight_bytes: int) -> int:
    """Return the size in bytes of a connection's HTTP/2 window.

    With a small window, a client with many large requests in flight on a connection often waits for updates.

    Args:
        max_inflight_bytes: Limit on the bytes of all requests; the window is a small part of it.
    """
    return min(max(max_inflight_bytes // _WINDOW_PART, _LEAST_WINDOW_BYTES), _MOST_WINDOW_BYTES)


def threads_for(processors: int) -> int:
    """Return the number of threads that read and write connections.

    Args:
        processors: Number of processors that this process may use.
    """
    return min(max(processors // _CORES_PER_THREAD, 1), _MOST_THREADS)


@functools.cache
def _runtime_threads() -> int:
    """Return the number of threads, computed once: h2corn cannot change it within a process."""
    return threads_for(cpus.available())


def _configuration(
    application: Application,
    sockets: Sequence[int],
    config: ServerConfig,
    most_connections: int,
    tls: dict[str, Path],
) -> Config:
    limits = config.limits
    window = window_bytes(limits.max_inflight_bytes)
    return Config(
        bind=tuple(f"fd://{one}" for one in sockets),
        grpc=True,
        runtime_threads=_runtime_threads(),
        lifespan="off",
        access_log=False,
        log_format=config.log_format,
        max_concurrent_streams=limits.max_streams_per_connection,
        limit_connections=most_connections,
        h2_initial_stream_window_size=window // _STREAM_PART,
        h2_initial_connection_window_size=window,
        # A message that fits into a frame arrives in one event.
        h2_max_inbound_frame_size=window // _FRAME_PART,
        timeout_handshake=_FIRST_BYTES_SECONDS,
        timeout_keep_alive=IDLE_SECONDS,
        # The smaller of the two applies to idle HTTP/1.1 connections. For request heads it limits the time
        # between bytes, not the total: a client that sends a byte now and then is never cut off.
        timeout_request_header=IDLE_SECONDS,
        timeout_graceful_shutdown=config.answer_seconds,
        certfile=tls.get("chain"),
        keyfile=tls.get("key"),
        ca_certs=tls.get("client_ca"),
        cert_reqs="required" if "client_ca" in tls else "none",
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
            # Body sizes are limited where bodies are read, with an error that names the limit. Native gRPC
            # is exempt from h2corn's time limits unless a policy names its path.
            RequestPolicy(
                path="/*",
                max_request_body_size=0,
                timeout_request_body_idle=limits.body_timeout_seconds,
                h2_timeout_response_stall=_RESPONSE_STALL_SECONDS,
            ),
        ),
    )


def _files(certificate: Certificate | None) -> AbstractContextManager[dict[str, Path]]:
    if certificate is None:
        return nullcontext({})
    from headrace.frontends.transport.certificates import pem_files  # noqa: PLC0415 - needed with TLS only

    return pem_files(certificate)
