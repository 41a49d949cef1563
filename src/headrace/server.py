"""The composition root: builds a server from its parts, starts, drains and stops it; it never decides."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Protocol

from headrace.config import ServerConfig
from headrace.engine import Engine
from headrace.errors import ConfigError
from headrace.frontends import health, metrics_route, reflection
from headrace.frontends.calls import GrpcMethod, HttpRoute
from headrace.frontends.oip import grpc as oip_grpc
from headrace.frontends.oip import rest as oip_rest
from headrace.frontends.service import Service
from headrace.frontends.tfserving import grpc as tfserving_grpc
from headrace.frontends.tfserving import rest as tfserving_rest
from headrace.frontends.transport.asgi import Application

_log = logging.getLogger(__name__)

_BACKLOG = 1024


class Transport(Protocol):
    """Something that serves an application on sockets."""

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
    return Application(http_routes(service), grpc_methods(service), engine.config.limits)


class Server:
    """A running server: an engine, its application, and the transports that serve it.

    Attributes:
        engine: The models.
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

    async def start(self) -> None:
        """Open the ports and begin to load; returns when connections are accepted, models loaded or not.

        Raises:
            ConfigError: A port or an address cannot be had, or what should serve it is not installed.
        """
        config = self._config
        http = _listen(config.host, config.http_port, "http_port")
        grpc = _listen(config.host, config.grpc_port, "grpc_port")
        self._sockets = [http, grpc]
        self.http_address = http.getsockname()[:2]
        self.grpc_address = grpc.getsockname()[:2]
        await self.engine.start(wait=False)
        self._service = Service(self.engine)
        routes, methods = http_routes(self._service), grpc_methods(self._service)
        self._transports = _transports(
            Application(routes, methods, config.limits), methods, (http, grpc), config
        )
        for transport in self._transports:
            await transport.start()

    async def stop(self) -> bool:
        """Say that it is not ready, answer what was accepted, close the ports, unload.

        Returns:
            Whether every model has ended; not if one was still at work when the drain time was over.
        """
        self._service.drain()
        await asyncio.gather(*(transport.stop() for transport in self._transports))
        for one in self._sockets:
            one.close()
        try:
            await asyncio.wait_for(self.engine.close(), self._config.drain_seconds)
        except TimeoutError:
            return False
        return True


def _transports(
    application: Application,
    methods: list[GrpcMethod],
    sockets: tuple[socket.socket, socket.socket],
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

        transports.append(GrpcioTransport(methods, grpc, config))
    else:
        by_h2corn.append(grpc)
    if by_h2corn:
        from headrace.frontends.transport.h2corn import H2cornTransport  # noqa: PLC0415 - not needed by the others

        transports.append(H2cornTransport(application, by_h2corn, config))
    return transports


def _listen(host: str, port: int, setting: str) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(f"{setting}: cannot listen on {host}:{port}: {error.strerror or error}") from error


async def run(
    models: Path | None, config: ServerConfig, announce: Callable[[Server], Coroutine[object, object, None]]
) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends the process at once.

    Args:
        models: The directory of models.
        config: The settings.
        announce: Run once the ports are open.
    """
    server = Server(models, config)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop_or_end, stopping, number)
    await server.start()
    _calm_garbage_collector()
    announced = loop.create_task(announce(server))
    await stopping.wait()
    announced.cancel()
    _log.info("draining", extra={"seconds": config.drain_seconds})
    if await server.stop():
        _log.info("stopped")
        return
    _log.warning("stopped while a model was still at work", extra={"seconds": config.drain_seconds})
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)  # its thread cannot be ended, and would keep the process


def _calm_garbage_collector() -> None:
    """Collect less often, and never what is there for good.

    Python looks for cycles after every 700 new objects, which is every few dozen requests, and serving makes
    none: that was 5 to 8 % of a small request's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def _stop_or_end(stopping: asyncio.Event, number: int) -> None:
    if stopping.is_set():
        os._exit(128 + number)
    stopping.set()
