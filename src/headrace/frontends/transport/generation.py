"""Some of the connections that h2corn serves: they begin with one configuration, and end together."""

from __future__ import annotations

import asyncio
import copy
import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from h2corn import Config, RequestPolicy, Server, _lib

from headrace import cpus
from headrace.config import ServerConfig
from headrace.frontends.transport.asgi import Application
from headrace.frontends.transport.listening import IDLE_SECONDS
from headrace.frontends.transport.waiting import Pauses

if TYPE_CHECKING:
    from headrace.frontends.transport.certificates import Certificate

# Unread bytes do not count in max_inflight_bytes; the window bounds them.
_LEAST_WINDOW_BYTES, _MOST_WINDOW_BYTES = 1024 * 1024, 4 * 1024 * 1024
_WINDOW_PART = 128
_STREAM_PART, _FRAME_PART = 4, 16
# One thread keeps up with the serving thread on a few cores.
_CORES_PER_THREAD, _MOST_THREADS = 4, 4
_RESPONSE_STALL_SECONDS = 60.0
_FIRST_BYTES_SECONDS = 15.0
"""How long a connection may say nothing. This runs on while the process stands still or gets no processor,
and then those who have just connected are closed with their requests unread: h2corn's 5 s are too few."""
_HELD_SECONDS = 0.1
_ENDED = (
    "this connection has to end, for its age or for a new certificate; what was read is answered: open the "
    "stream again, on a new connection"
)

# h2corn prints a banner whenever a generation begins, which names an option that headrace does not have. No
# setting turns it off. Should the function be gone one day, there is a banner again, and nothing worse.
vars(_lib)["emit_banner"] = lambda *_arguments: None


class Generation:
    """An h2corn server of its own, with the connections that it accepts.

    What it was told at its start (the certificate above all) cannot be changed. So there may be several on
    the same listening sockets, one after another.

    Attributes:
        serving: From ``start`` on, ends when all its connections have ended, with what ended it.
        application: What answers on its connections; it drains, holds and pauses apart from the others.
        number: Of the set of listening sockets that it has.
        accepts_no_more: Set when it has stopped to accept connections.
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
            application: What answers.
            sockets: Descriptors of listening sockets, which stay the caller's.
            config: The server's settings.
            most_connections: How many may be open at a time.
            certificate: What connections are encrypted with; None for not at all.
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
        """Start answering; returns when connections are accepted.

        Raises:
            ValueError: h2corn cannot use the certificate.
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
        """From now on say in each answer over HTTP/1.1 that its connection ends with it."""
        self.application.drain()

    async def stop(self, stream_seconds: float = 0.0, hurry: asyncio.Event | None = None) -> None:
        """Accept nothing more; return when what was accepted is answered, or the drain time is over.

        Args:
            stream_seconds: How long streams may go on to be read.
            hurry: Set when they may not any more.
        """
        if self.serving is None:
            self.accepts_no_more.set()
            return
        # It closes a connection with its GOAWAY as soon as nothing is being answered on it, and what the
        # client has sent meanwhile makes that a reset.
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
        # Only now: a client that is told before the connection ends opens its next stream on it.
        self.application.pauses.end()
        await self.serving


def window_bytes(max_inflight_bytes: int) -> int:
    """How much a connection may send before the server reads it: its HTTP/2 window.

    With a small one, a client that has many large requests under way on a connection waits for the next
    update again and again.

    Args:
        max_inflight_bytes: What all requests may hold together; the window is a small part of that.
    """
    return min(max(max_inflight_bytes // _WINDOW_PART, _LEAST_WINDOW_BYTES), _MOST_WINDOW_BYTES)


def threads_for(processors: int) -> int:
    """How many threads read and write connections.

    Args:
        processors: How many processors this process may use.
    """
    return min(max(processors // _CORES_PER_THREAD, 1), _MOST_THREADS)


@functools.cache
def _runtime_threads() -> int:
    """The number of threads; asked once, as h2corn cannot change it within a process."""
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
        # The smaller of both holds for a kept HTTP/1.1 connection. For heads this is the longest
        # silence, not the longest time: who sends a byte now and then was never cut off by it.
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
            # Sizes are limited where bodies are read, with an error that says so. Native gRPC is
            # exempt from h2corn's time limits unless a policy names its path.
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
    from headrace.frontends.transport.certificates import pem_files  # noqa: PLC0415 - only where it is used

    return pem_files(certificate)
