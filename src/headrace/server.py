"""The composition root: builds a server from its parts, starts, drains and stops it; it never decides."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol

from headrace.config import ServerConfig
from headrace.engine import Engine
from headrace.frontends import health, metrics_route, reflection
from headrace.frontends.calls import GrpcMethod, HttpRoute
from headrace.frontends.oip import grpc as oip_grpc
from headrace.frontends.oip import rest as oip_rest
from headrace.frontends.service import Service
from headrace.frontends.tfserving import grpc as tfserving_grpc
from headrace.frontends.tfserving import rest as tfserving_rest
from headrace.frontends.transport.asgi import Application
from headrace.frontends.transport.listening import listen, take_no_more, until_accepted
from headrace.supervisor import Supervisor

if TYPE_CHECKING:
    from headrace.archive.archive import Archive
    from headrace.frontends.archive.serving import Serving

_log = logging.getLogger(__name__)

# From the moment on at which no connection can be made any more: what is on its way arrives meanwhile.
_SETTLE_SECONDS = 0.15
_MOST_SETTLE_SECONDS = 1.0
_LEAST_UNLOAD_SECONDS = 1.0
# Less than a slice of the lane: see _hand_over_soon.
_SWITCH_SECONDS = 0.0005


class Transport(Protocol):
    """Something that serves an application on sockets.

    Attributes:
        serving: From ``start`` on, ends when it serves no more, with what ended it.
    """

    serving: asyncio.Future[None] | None

    async def start(self) -> None:
        """Start answering; returns when connections are accepted."""

    async def stop(self) -> None:
        """Accept nothing more, and return when what was accepted has been answered."""


def http_routes(service: Service) -> list[HttpRoute]:
    """The routes of all REST APIs."""
    return [
        *tfserving_rest.http_routes(service),
        *oip_rest.http_routes(service),
        *metrics_route.http_routes(service),
    ]


def grpc_methods(service: Service) -> list[GrpcMethod]:
    """The methods of all gRPC services."""
    return [
        *oip_grpc.grpc_methods(service),
        *tfserving_grpc.grpc_methods(service),
        *health.grpc_methods(service),
        *reflection.grpc_methods(service),
    ]


def application(engine: Engine) -> Application:
    """Both front ends of an engine as one ASGI application, to run anywhere or to mount in another.

    Args:
        engine: Started by the caller, in the loop in which the application answers, before the first request.
    """
    service = Service(engine)
    return Application(
        http_routes(service), grpc_methods(service), engine.config.limits, engine.outcomes, service.lane
    )


class Server:
    """A running server: an engine, its application, and the transports that serve it.

    Attributes:
        engine: The models.
        supervisor: Watches the front ends, once started.
        http_address: Host and port of REST, once started.
        grpc_address: Host and port of gRPC, once started.
    """

    def __init__(self, models: Path | None, config: ServerConfig) -> None:
        """Describe a server.

        Args:
            models: The directory of models.
            config: The settings.
        """
        self._config = config
        self.engine = Engine(models, config=config)
        self._transports: list[Transport] = []
        self._sockets: list[socket.socket] = []
        self._archive: Serving | None = None

    async def start(self) -> None:
        """Open the ports and begin to load; returns when connections are accepted, models loaded or not.

        An archive is open by then.

        Raises:
            ConfigError: A port or an address cannot be had, or what should serve it is not installed; or the
                archive's settings are wrong.
            LoadError: An embedder of the archive cannot be loaded.
            Unavailable: The archive cannot be opened now.
        """
        config = self._config
        http = listen(config.host, config.http_port, "http_port")
        grpc = listen(config.host, config.grpc_port, "grpc_port")
        self._sockets = [http, grpc]
        self.http_address = http.getsockname()[:2]
        self.grpc_address = grpc.getsockname()[:2]
        self.supervisor = Supervisor()
        self.engine.awaits_archive = config.archive is not None
        await self.engine.start(wait=False)
        if config.archive is not None:
            from headrace.frontends.archive.serving import Serving  # noqa: PLC0415 - only where it is served

            self._archive = await Serving.open(config.archive, self.engine)
            self.engine.use_archive(self._archive.archive)
        try:
            await self._begin(config)
        except BaseException:
            if self._archive is not None:
                await self._archive.close()
            raise

    async def _begin(self, config: ServerConfig) -> None:
        self._service = Service(self.engine)
        routes, methods = list[HttpRoute](), list[GrpcMethod]()
        if self._archive is not None:
            routes, methods = self._archive.attach(self._service, is_admin=config.admin)
        routes += http_routes(self._service)
        methods += grpc_methods(self._service)
        self._application = Application(
            routes, methods, config.limits, self.engine.outcomes, self._service.lane
        )
        self._transports = _transports(self._application, methods, self._sockets, config)
        for transport in self._transports:
            await transport.start()
            if transport.serving is not None:
                self.supervisor.needs(f"the front end {type(transport).__name__}", transport.serving)

    @property
    def archive(self) -> Archive | None:
        """The archive that is served, once started."""
        return None if self._archive is None else self._archive.archive

    async def stop(self, *, lead: bool = True) -> bool:
        """Say that it is going, and later go: answer what was accepted, close the ports, unload.

        Nobody is cut off who keeps to what he was told. First each answer says that its connection ends with
        it, while new connections are still taken: a caller that keeps one learns it with its next answer.
        Then none is taken any more, and those that wait are accepted. Only then the transports stop.

        Args:
            lead: Whether to take connections for ``drain_lead_seconds`` more.

        Returns:
            Whether nothing is at work any more; not if a model was when the drain time was over, or hangs.
        """
        until = time.monotonic() + self._config.drain_seconds
        self.supervisor.stop()
        self._service.drain()
        self._application.drain()
        if lead:
            await asyncio.sleep(self._config.lead_seconds)
        for one in self._sockets:
            take_no_more(one)
        await asyncio.sleep(_SETTLE_SECONDS)
        await asyncio.gather(*(until_accepted(one, _MOST_SETTLE_SECONDS) for one in self._sockets))
        stops = (transport.stop() for transport in self._transports)
        for ended in await asyncio.gather(*stops, return_exceptions=True):
            if isinstance(ended, Exception):  # the others, and the models, are stopped all the same
                _log.error("what served requests has failed", exc_info=ended)
        for one in self._sockets:
            one.close()
        try:
            async with asyncio.timeout(max(_LEAST_UNLOAD_SECONDS, until - time.monotonic())):
                if self._archive is not None:  # first: what fills it may ask the models
                    await self._archive.close()
                await self.engine.close()
        except TimeoutError:
            return False
        return not self.engine.manager.hanging


def _transports(
    application: Application,
    methods: list[GrpcMethod],
    sockets: list[socket.socket],
    config: ServerConfig,
) -> list[Transport]:
    http, grpc = sockets
    by_h2corn = []
    transports: list[Transport] = []
    if config.http_server == "uvicorn":
        from headrace.frontends.transport.uvicorn import UvicornTransport  # noqa: PLC0415 - an extra

        transports.append(UvicornTransport(application, http, config))
    else:
        by_h2corn.append(http)
    if config.grpc_server == "grpcio":
        from headrace.frontends.transport.grpcio import GrpcioTransport  # noqa: PLC0415 - an extra

        transports.append(GrpcioTransport(application, methods, grpc, config))
    else:
        by_h2corn.append(grpc)
    if by_h2corn:
        from headrace.frontends.transport.h2corn import H2cornTransport  # noqa: PLC0415 - not needed by the others

        transports.append(H2cornTransport(application, by_h2corn, config))
    return transports


async def run(
    models: Path | None, config: ServerConfig, announce: Callable[[Server], Coroutine[object, object, None]]
) -> int:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends the process at once.

    A server that can take no more requests ends, so that whoever watches processes starts it again.

    SIGINT is somebody at a terminal, who does not want to wait for callers to learn that the server goes.

    Args:
        models: The directory of models.
        config: The settings.
        announce: Run once the ports are open.

    Returns:
        The exit code: 0, or 1 when no more requests could be taken.
    """
    server = Server(models, config)
    stopping: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop_or_end, stopping, number)
    await server.start()
    _calm_garbage_collector()
    _hand_over_soon()
    announced = loop.create_task(announce(server))
    server.supervisor.allows("printing what is served", announced)
    failed = server.supervisor.failed
    await asyncio.wait((stopping, failed), return_when=asyncio.FIRST_COMPLETED)
    announced.cancel()
    code = int(failed.done())
    _log.info("draining", extra={"seconds": config.drain_seconds})
    if await server.stop(lead=stopping.done() and stopping.result() is signal.SIGTERM):
        _log.info("stopped")
        return code
    _log.warning("stopped while a model was still at work", extra={"seconds": config.drain_seconds})
    end_at_once(code)  # its thread cannot be ended, and would keep the process


def end_at_once(code: int) -> NoReturn:
    """End the process without waiting for any thread; what cannot be written out is lost."""
    logging.shutdown()
    with suppress(OSError):  # a full disk
        sys.stdout.flush()
    os._exit(code)


def _calm_garbage_collector() -> None:
    """Collect less often, and never what is there for good.

    Python looks for cycles after every 700 new objects, which is every few dozen requests, and serving makes
    none: that was 5 to 8 % of a small request's time. What is looked at in one go is small: a large body is
    hundreds of thousands of objects, and everybody waits meanwhile (0.2 µs an object).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 1, 500)


def _hand_over_soon() -> None:
    """Let the thread that reads the sockets have Python's lock after half a millisecond, not after five.

    Who waits for the lock insists on it only if nobody has let go of it for that long. The serving thread
    lets go after each turn and has it back before the other one is awake: so beside turns of one to four
    milliseconds, one after another, requests that had come lay there for up to half a second.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)


def _stop_or_end(stopping: asyncio.Future[signal.Signals], number: signal.Signals) -> None:
    if stopping.done():
        os._exit(128 + number)
    stopping.set_result(number)
