"""Serve with h2corn: HTTP/1.1, HTTP/2 and native gRPC on every port, with its limits configured."""

from __future__ import annotations

import asyncio
import copy
import functools
import logging
import math
import os
import random
import resource
import socket
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from h2corn import Config, RequestPolicy, Server, _lib

from headrace.base import cpus
from headrace.config import ServerConfig
from headrace.frontends.transport.asgi import Application
from headrace.frontends.transport.listening_sockets import IDLE_SECONDS, Listeners
from headrace.frontends.transport.waiting_calls import Pauses

if TYPE_CHECKING:
    from headrace.frontends.transport.certificates import Certificate, ServedCertificate

_log = logging.getLogger(__name__)

# Descriptors reserved for models, logs, listening sockets and the event loop.
_SPARE_DESCRIPTORS = 64
# Share of the drain time for streams of a generation that retires while the server keeps running.
_STREAMS_SHARE = 0.5
# With a maximum connection age, connections are divided among this many generations, which retire in turn.
_PARTS = 4
_AGE_JITTER = 0.1
# A generation that failed to accept is replaced once _FREE_DESCRIPTORS are free, within _FREE_SECONDS. More
# than _MOST_FAILURES within _FAILURES_SECONDS suggest a descriptor leak, which only a new process ends.
_FREE_DESCRIPTORS = 24
_FREE_SECONDS = 5.0
_LOOK_SECONDS = 0.05
_MOST_FAILURES, _FAILURES_SECONDS = 3, 60.0

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


class H2cornTransport:
    """The application on a set of listening sockets.

    Its connections belong to generations. Usually there is one; a new certificate starts another, which
    replaces it. With a maximum connection age, several serve at a time and retire in turn.

    Attributes:
        listeners: Listening sockets.
        accepts_no_more: Set when the transport has stopped accepting connections.
    """

    def __init__(
        self,
        application: Application,
        listeners: Listeners,
        config: ServerConfig,
        certificate: ServedCertificate | None = None,
    ) -> None:
        """Prepare to serve.

        Args:
            application: Application to serve.
            listeners: Listening sockets; the caller keeps ownership of the first set.
            config: Server settings.
            certificate: Certificate for TLS, followed as it changes; None for plaintext.
        """
        self._application = application
        self.listeners = listeners
        self._config = config
        self._certificate = certificate
        self._age_seconds = config.max_connection_age_seconds
        many = _PARTS if self._age_seconds and self.listeners.has_many else 1
        changes = bool(self._age_seconds) or certificate is not None
        self._most_connections = _most_connections(config.limits.max_connections, many, changes=changes)
        self._current: list[_Generation] = []
        self._many = many
        self._going: set[asyncio.Task[None]] = set()
        self._changing = asyncio.Lock()
        self._may_follow = asyncio.Event()
        self._may_follow.set()
        self._draining, self._hurry = asyncio.Event(), asyncio.Event()
        self._retiring: asyncio.Task[None] | None = None
        self._failures: deque[float] = deque(maxlen=_MOST_FAILURES)
        self._beginning_again: set[asyncio.Task[None]] = set()
        self.accepts_no_more = asyncio.Event()
        self.serving: asyncio.Future[None] | None = None

    @property
    def opened(self) -> list[socket.socket]:
        """The listening sockets opened in addition to those given."""
        return self.listeners.opened

    async def start(self) -> None:
        """Start serving; return when connections are accepted."""
        for _ in range(self._many):
            self._current.append(await self._begun())
        self._lead()
        self.serving = asyncio.get_running_loop().create_future()
        if self._certificate is not None:
            self._certificate.uses.append(self._use)
        if self._age_seconds:
            self._retiring = asyncio.create_task(self._retire_in_turn())

    # --- generations ---

    async def _begun(self, at: int | None = None) -> _Generation:
        number = self.listeners.take() if at is None else at
        certificate = None if self._certificate is None else self._certificate.current
        made = _Generation(
            self._application,
            self.listeners.descriptors(number),
            self._config,
            self._most_connections,
            certificate,
            number,
        )
        try:
            await made.start()
        except BaseException:
            if at is None:
                self.listeners.give_back(number)
            raise
        _log.debug("a generation of connections has begun", extra={"sockets": number})
        if made.serving is not None:
            made.serving.add_done_callback(lambda ended: self._ended(made, ended))
        if self._draining.is_set():
            made.drain()
        return made

    def _lead(self) -> None:
        self.listeners.lead_to([one.number for one in self._current])

    def _ended(self, generation: _Generation, ended: asyncio.Future[None]) -> None:
        """Replace a generation that failed to accept, or pass the end of a current one on to ``serving``."""
        error = None if ended.cancelled() else ended.exception()
        if generation not in self._current or self.serving is None or self.serving.done():
            return
        if isinstance(error, OSError) and not self._draining.is_set() and self._may_begin_again():
            _log.error(
                "no connection could be accepted: %s; all are closed until descriptors are free", error
            )
            again = asyncio.create_task(self._begin_again(generation, error, self.serving))
            self._beginning_again.add(again)
            again.add_done_callback(self._beginning_again.discard)
        elif error is None:
            self.serving.set_result(None)
        else:
            self.serving.set_exception(error)

    def _may_begin_again(self) -> bool:
        now, before = time.monotonic(), self._failures
        if len(before) == _MOST_FAILURES and now - before[0] < _FAILURES_SECONDS:
            return False
        before.append(now)
        return True

    async def _begin_again(self, failed: _Generation, why: OSError, serving: asyncio.Future[None]) -> None:
        """Replace a generation that failed to accept; h2corn closes the connections it has then.

        The replacement has the same sockets, so it need not wait for a server that is taking them over.
        """
        until = time.monotonic() + _FREE_SECONDS
        while not self._draining.is_set():
            try:
                _expect_descriptors(_FREE_DESCRIPTORS)
                async with self._changing:
                    if failed not in self._current:  # replaced meanwhile, for its age or a certificate
                        return
                    self._current[self._current.index(failed)] = await self._begun(failed.number)
                self._lead()
            except (OSError, ValueError):
                if time.monotonic() > until:
                    if not serving.done():
                        serving.set_exception(why)
                    return
                await asyncio.sleep(_LOOK_SECONDS)
            else:
                _log.warning("connections are accepted again")
                return

    async def _use(self, _certificate: Certificate) -> None:
        """Replace all generations, so that new connections use the certificate in force."""
        for place in range(len(self._current)):
            await self._replace(place)

    async def _retire_in_turn(self) -> None:
        """Retire one generation after another, so that no connection exceeds the maximum age."""
        place = 0
        while not self._draining.is_set():
            seconds = self._age_seconds / self._many
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds * (1 - _AGE_JITTER * random.random())):
                    await self._draining.wait()
            # Bound the retiring generations: each keeps its sockets until its last stream has ended.
            while len(self._going) > 2 * self._many and not self._draining.is_set():
                await asyncio.wait({*self._going}, return_when=asyncio.FIRST_COMPLETED)
            if self._draining.is_set():
                return
            try:
                await self._replace(place)
            except (OSError, ValueError) as error:
                _log.error("connections stay open beyond their maximum age: %s", error)
            place = (place + 1) % self._many

    async def _replace(self, place: int) -> None:
        """Start a new generation in place of an old one, which retires."""
        await self._may_follow.wait()
        async with self._changing:
            if self._draining.is_set():
                return
            before, self._current[place] = self._current[place], await self._begun()
            self._lead()
            going = asyncio.create_task(self._retire(before))
            self._going.add(going)
            going.add_done_callback(self._gone)

    async def _retire(self, generation: _Generation) -> None:
        generation.drain()
        await self.listeners.until_accepted(generation.number)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.lead_seconds):
                await self._hurry.wait()
        seconds = _STREAMS_SHARE * (self._config.drain_seconds - self._config.lead_seconds)
        await generation.stop(seconds, self._hurry)
        self.listeners.give_back(generation.number)

    def _gone(self, going: asyncio.Task[None]) -> None:
        self._going.discard(going)
        if not going.cancelled() and (error := going.exception()) is not None:
            _log.error("old connections could not be closed properly", exc_info=error)

    async def hold(self) -> None:
        """Block the replacement of generations on other sockets until ``release``."""
        self._may_follow.clear()
        async with self._changing:  # wait for a replacement under way
            pass

    def release(self) -> None:
        """Allow the replacement of generations again."""
        self._may_follow.set()

    # --- the end ---

    def drain(self) -> None:
        """Send ``Connection: close`` with every HTTP/1.1 response from now on."""
        self._draining.set()
        for generation in self._current:
            generation.drain()

    async def stop(self) -> None:
        """Stop accepting; return when accepted requests are answered or the drain time has expired."""
        self._draining.set()
        self._hurry.set()
        if self._retiring is not None:
            await self._retiring
        await asyncio.gather(*self._beginning_again)
        async with self._changing:  # wait for a replacement under way; later ones return at once
            stops = asyncio.gather(*(one.stop() for one in self._current), *self._going)
            await asyncio.gather(*(one.accepts_no_more.wait() for one in self._current))
            self.accepts_no_more.set()
            await stops
        self.listeners.close()


def _most_connections(wanted: int, parts: int, *, changes: bool) -> int:
    """Return the connection limit of each generation: its share of ``wanted``, as far as descriptors allow.

    h2corn closes all connections when an accept finds no free descriptor.

    Args:
        wanted: Largest number of connections in all; 0 for no limit.
        parts: Number of generations that serve at a time.
        changes: Whether generations are replaced, so that old and new ones have connections at once.
    """
    possible = max(1, _connections_within_file_limit() // (2 if changes else 1))
    if wanted > possible:
        _log.warning(
            "limits.max_connections = %d, but the process may open too few files: %d connections are "
            "accepted; raise its limit (ulimit -n)",
            *(wanted, possible),
        )
    return math.ceil(min(wanted or possible, possible) / parts)


def _connections_within_file_limit() -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return max(1, min(soft, 1 << 20) - _SPARE_DESCRIPTORS)


def _expect_descriptors(free: int) -> None:
    """Check that this many descriptors are free.

    Raises:
        OSError: Fewer are free.
    """
    taken: list[int] = []
    try:
        taken.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(free))
    finally:
        for one in taken:
            os.close(one)


class _Generation:
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
        number: int,
    ) -> None:
        self.application = copy.copy(application)
        self.application.pauses = Pauses()
        self.number = number
        self.accepts_no_more = asyncio.Event()
        self._sockets, self._config = sockets, config
        self._most_connections, self._certificate = most_connections, certificate
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


def _window_bytes(max_inflight_bytes: int) -> int:
    """Return the size in bytes of a connection's HTTP/2 window, a small part of the limit on all requests.

    With a small window, a client with many large requests in flight on a connection often waits for updates.
    """
    return min(max(max_inflight_bytes // _WINDOW_PART, _LEAST_WINDOW_BYTES), _MOST_WINDOW_BYTES)


def _threads_for(processors: int) -> int:
    """Return the number of threads that read and write connections, for the processors that may be used."""
    return min(max(processors // _CORES_PER_THREAD, 1), _MOST_THREADS)


@functools.cache
def _runtime_threads() -> int:
    """Return the number of threads, computed once: h2corn cannot change it within a process."""
    return _threads_for(cpus.available())


def _configuration(
    application: Application,
    sockets: Sequence[int],
    config: ServerConfig,
    most_connections: int,
    tls: dict[str, Path],
) -> Config:
    limits = config.limits
    window = _window_bytes(limits.max_inflight_bytes)
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
