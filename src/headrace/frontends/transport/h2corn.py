"""Serve with h2corn: HTTP/1.1, HTTP/2 and native gRPC on every port, with its limits configured."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import resource
import socket
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.config import ServerConfig
from headrace.frontends.transport.asgi import Application
from headrace.frontends.transport.connection_generation import Generation
from headrace.frontends.transport.generation_sockets import Listeners

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
        self._current: list[Generation] = []
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

    async def _begun(self, at: int | None = None) -> Generation:
        number = self.listeners.take() if at is None else at
        certificate = None if self._certificate is None else self._certificate.current
        descriptors = self.listeners.descriptors(number)
        made = Generation(self._application, descriptors, self._config, self._most_connections, certificate)
        made.number = number
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

    def _ended(self, generation: Generation, ended: asyncio.Future[None]) -> None:
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

    async def _begin_again(self, failed: Generation, why: OSError, serving: asyncio.Future[None]) -> None:
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

    async def _retire(self, generation: Generation) -> None:
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
