"""The composition root: assembles a server, starts, drains and stops it."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from headrace.base.task_watch import TaskWatch
from headrace.config import ServerConfig
from headrace.frontends import administration, health, metrics_route, reflection
from headrace.frontends.calls import GrpcMethod, HttpRoute
from headrace.frontends.oip import grpc as oip_grpc
from headrace.frontends.oip import rest as oip_rest
from headrace.frontends.service import Service
from headrace.frontends.tfserving import grpc as tfserving_grpc
from headrace.frontends.tfserving import rest as tfserving_rest
from headrace.frontends.transport.asgi import Application
from headrace.frontends.transport.listening_sockets import (
    Listeners,
    Ports,
    listen,
    listen_together,
    take_again,
    until_first_answers,
    until_none_waits,
)
from headrace.serving.engine import Engine

if TYPE_CHECKING:
    from headrace.archive.lookup.archive import Archive
    from headrace.archive.operations.open_archive import Share
    from headrace.frontends.access_control import Access
    from headrace.frontends.archive.served_archive import Serving
    from headrace.frontends.metrics.disk_space import DiskSpace
    from headrace.frontends.transport.admin_listeners import AdminPorts
    from headrace.frontends.transport.certificates import ServedCertificate
    from headrace.frontends.transport.h2corn import H2cornTransport
    from headrace.lifecycle.version_states import VersionStatus
    from headrace.server.call_observers import Observing
    from headrace.telemetry.audit_log import AuditLog

_log = logging.getLogger(__name__)

_LEAST_UNLOAD_SECONDS = 1.0


class Transport(Protocol):
    """A front end that serves an application on sockets.

    Attributes:
        serving: From ``start`` on, a future that completes when serving ends, with the error if any.
        opened: The listening sockets that the transport opened besides those given to it.
    """

    serving: asyncio.Future[None] | None

    @property
    def opened(self) -> Sequence[socket.socket]:
        """The listening sockets that the transport opened itself."""

    async def start(self) -> None:
        """Start serving; returns when connections are accepted."""

    def drain(self) -> None:
        """From now on, announce in each HTTP/1.1 response that its connection will close, and close it."""

    async def stop(self) -> None:
        """Accept no more connections, and return when accepted requests have been answered."""


def http_routes(service: Service) -> list[HttpRoute]:
    """Return the routes of all REST APIs."""
    return [
        *tfserving_rest.http_routes(service),
        *oip_rest.http_routes(service),
        *metrics_route.http_routes(service),
    ]


def grpc_methods(service: Service) -> list[GrpcMethod]:
    """Return the methods of all gRPC services."""
    return [
        *oip_grpc.grpc_methods(service),
        *tfserving_grpc.grpc_methods(service),
        *health.grpc_methods(service),
        *reflection.grpc_methods(service),
    ]


def application(engine: Engine) -> Application:
    """Return an engine's front ends, REST and gRPC, as one ASGI application to run or to mount in another.

    Args:
        engine: Started by the caller, in the loop of the application, before the first request.
    """
    service = Service(engine)
    return Application(
        http_routes(service), grpc_methods(service), engine.config.limits, engine.outcomes, service.slicer
    )


class Server:
    """A running server: an engine, its application, and the transports that serve it.

    Attributes:
        engine: The models.
        counted_at: The shared counters of callers: descriptor of the shared memory (-1 for none), index of
            this process, and number of processes.
        supervisor: The TaskWatch of the front ends and of the tasks that follow files, once started.
        http_address: Host and port of REST, once started.
        grpc_address: Host and port of gRPC, once started.
        administers: Whether the server serves the administration ports.
        admin: The administration ports, once started.
        ports: Listening sockets opened elsewhere; None if the server opens its own.
        by_h2corn: The h2corn transport of REST, gRPC or both, once started; None if others serve both.
    """

    def __init__(
        self,
        models: Path | None,
        config: ServerConfig,
        engine: Engine | None = None,
        sockets: Sequence[socket.socket] = (),
        service: Callable[[Engine], Service] = Service,
        share: Share | None = None,
    ) -> None:
        """Create a server without starting it.

        Args:
            models: The directory of models.
            config: The settings.
            engine: The engine; a new one if None.
            sockets: Listening sockets for REST and gRPC; opened according to the settings if empty.
            service: Creates the Service that codecs call.
            share: The part of an archive that this process handles; None for the whole.
        """
        self._models, self._config = models, config
        self.engine = engine or Engine(models, config=config)
        self._transports: list[Transport] = []
        self._applications: list[Application] = []
        self._sockets = list(sockets)
        self._may_join = self._is_followed = False
        self.administers = config.has_admin_ports
        self.admin: AdminPorts | None = None
        self.ports: Ports | None = None
        self.by_h2corn: H2cornTransport | None = None
        self._administering: list[H2cornTransport] = []
        self._make_service = service
        self._archive_share = share
        self._archive: Serving | None = None
        self._certificate: ServedCertificate | None = None
        self._access: Access | None = None
        self._audit: AuditLog | None = None
        self.counted_at = -1, 0, 1
        self._following: list[asyncio.Task[None]] = []
        self._observing: Observing | None = None
        self._disk_space: DiskSpace | None = None

    async def start(self) -> None:
        """Open the ports and start loading; returns when connections are accepted, models loaded or not.

        An archive is open by then.

        Raises:
            ConfigError: A port or an address is not available, its server is not installed, or the archive's
                settings are wrong.
            LoadError: An embedder of the archive cannot be loaded.
            Unavailable: The archive cannot be opened now.
        """
        await self.prepare()
        await self.serve()

    async def prepare(self) -> None:
        """Open the ports and the archive, and start loading; ``serve`` then accepts connections.

        Raises:
            HeadraceError: As ``start``.
        """
        config = self._config
        if config.audit.file is not None:
            from headrace.telemetry.audit_log import AuditLog  # noqa: PLC0415 - only if enabled

            self._audit = AuditLog(config.audit.file)
        self._certificate = _certificate(config)
        if self._certificate is not None and self._audit is not None:
            self._certificate.tells = self._audit.note
        if config.access.is_on:
            from headrace.frontends.access_control import Access  # noqa: PLC0415 - only with keys

            tells = None if self._audit is None else self._audit.note
            self._access = Access(config.access, self.counted_at, tells)
        if self.ports is not None:
            self._sockets = self.ports.listeners.sets[0]
        if not self._sockets:
            moves = config.ends_connections or config.handover is not None
            self._may_join = moves and sys.platform.startswith("linux")
            opened = _listen_to_be_joined if self._may_join else listen
            self._sockets = [
                opened(config.host, config.http_port, "http_port"),
                opened(config.host, config.grpc_port, "grpc_port"),
            ]
        if self.administers:
            from headrace.frontends.transport.admin_listeners import AdminPorts  # noqa: PLC0415 - only with admin ports

            self.admin = AdminPorts(config, () if self.ports is None else self.ports.admin)
        http, grpc = self._sockets
        self.http_address = http.getsockname()[:2]
        self.grpc_address = grpc.getsockname()[:2]
        self.supervisor = TaskWatch()
        self.engine.awaits_archive = config.archive is not None
        await self.engine.start(wait=False)
        if config.archive is not None:
            from headrace.frontends.archive.served_archive import Serving  # noqa: PLC0415 - only with an archive

            self._archive = await Serving.open(config.archive, self.engine, self._archive_share)
            self.engine.use_archive(self._archive.archive)

    async def serve(self) -> None:
        """Accept connections, once prepared; returns when they are accepted.

        Raises:
            ConfigError: A port's server is not installed, or cannot use the port.
        """
        try:
            await self._begin(self._config)
        except BaseException:
            if self._archive is not None:
                await self._archive.close()
            if self._observing is not None:
                await self._observing.close(time.monotonic())
            raise

    async def _begin(self, config: ServerConfig) -> None:
        self._service = self._make_service(self.engine)
        if self._access is not None:
            from headrace.frontends.access_control import guard  # noqa: PLC0415 - as above

            guard(self._service, self._access.gate)
            self._service.also_measures(self._access)
        routes, methods = list[HttpRoute](), list[GrpcMethod]()
        if self._archive is not None:
            is_admin = config.admin or config.has_admin_ports
            routes, methods = self._archive.attach(self._service, is_admin=is_admin)
        routes += http_routes(self._service)
        methods += grpc_methods(self._service)
        self._observe(routes, methods)
        self._measure_disks()
        if self._audit is not None:
            routes, methods = administration.audited(routes, methods, self._audit, self.engine.outcomes)
        if self._access is not None:
            self._following.append(asyncio.create_task(self._access.follow()))
            self.supervisor.needs("following the key file", self._following[-1])
        if self._certificate is not None:
            self._follow(self._certificate)
        if config.has_admin_ports:
            self._transports = self._administration(routes, methods)
            metrics = not config.admin_metrics
            routes, methods = administration.public(routes, methods, metrics=metrics)
        origins = config.cors.origins
        self._applications.append(self._answering(routes, methods, origins))
        if config.load_reports:
            self._service.report_load(self._applications[-1].load.report)
        self._transports += self._made_transports(self._applications[-1], methods)
        for transport in self._transports:
            await transport.start()
            if transport.serving is not None:
                self.supervisor.needs(f"the front end {type(transport).__name__}", transport.serving)

    def _answering(
        self, routes: list[HttpRoute], methods: list[GrpcMethod], origins: Sequence[str] = ()
    ) -> Application:
        parts = routes, methods, self._config.limits, self.engine.outcomes, self._service.slicer
        if origins:
            from headrace.frontends.transport.cors import shared  # noqa: PLC0415 - only for web pages

            return shared(origins, None if self._access is None else self._access.gate, parts)
        if self._access is None:
            return Application(*parts)
        from headrace.frontends.transport.guarded_app import GuardedApplication  # noqa: PLC0415 - only behind a gate

        return GuardedApplication(*parts, gate=self._access.gate)

    def _administration(self, routes: list[HttpRoute], methods: list[GrpcMethod]) -> list[Transport]:
        if self.admin is None:
            return []
        self._applications.append(self._answering(*administration.administrative(routes, methods)))
        self._administering = self.admin.transports(self._applications[-1], self._certificate)
        return [*self._administering]

    def _made_transports(self, application: Application, methods: list[GrpcMethod]) -> list[Transport]:
        config, certificate = self._config, self._certificate
        http, grpc = self._sockets
        by_h2corn = []
        transports: list[Transport] = []
        if config.http_server == "uvicorn":
            from headrace.frontends.transport.uvicorn import UvicornTransport  # noqa: PLC0415 - an extra

            transports.append(UvicornTransport(application, http, config, certificate))
        else:
            by_h2corn.append(http)
        if config.grpc_server == "grpcio":
            from headrace.frontends.transport.grpcio import GrpcioTransport  # noqa: PLC0415 - an extra

            transports.append(GrpcioTransport(application, methods, grpc, config, certificate))
        else:
            by_h2corn.append(grpc)
        if by_h2corn:
            from headrace.frontends.transport.h2corn import H2cornTransport  # noqa: PLC0415 - not needed by other servers

            self.by_h2corn = H2cornTransport(application, self._listeners(by_h2corn), config, certificate)
            transports.append(self.by_h2corn)
        return transports

    def _listeners(self, sockets: list[socket.socket]) -> Listeners:
        return Listeners([sockets], may_join=self._may_join) if self.ports is None else self.ports.listeners

    def _observe(self, routes: list[HttpRoute], methods: list[GrpcMethod]) -> None:
        if self._config.tracing.is_on or self._config.access_log.path is not None:
            from headrace.server.call_observers import Observing  # noqa: PLC0415 - only if enabled

            self._observing = Observing(self._config, self._service, routes, methods)

    def _measure_disks(self) -> None:
        from headrace.frontends.metrics.disk_space import DiskSpace, watched  # noqa: PLC0415 - not in process

        archive = None if self._archive is None else self._archive.archive.config
        parts = {} if archive is None else {"store": archive.store, "queue": archive.queue}
        self._disk_space = DiskSpace(watched(self._models, self._config, parts))
        self._service.also_measures(self._disk_space)

    def _follow(self, certificate: ServedCertificate) -> None:
        from headrace.frontends.transport.certificates import TlsMetrics  # noqa: PLC0415 - as above

        self._service.also_measures(TlsMetrics(certificate))
        self._following.append(asyncio.create_task(certificate.follow()))
        self.supervisor.allows("checking for new certificates", self._following[-1])

    def look_again(self) -> None:
        """Check for new certificates, and reopen the access log."""
        if self._certificate is not None:
            self._certificate.look()
        if self._observing is not None:
            self._observing.reopen()

    @property
    def archive(self) -> Archive | None:
        """The served archive, once started; None without one."""
        return None if self._archive is None else self._archive.archive

    @property
    def statuses(self) -> dict[str, list[VersionStatus]] | None:
        """The states of all models' versions; None until each model has been tried."""
        manager = self.engine.manager
        tried = self.engine.is_settled
        return {model: manager.status(model) for model in manager.models()} if tried else None

    async def stop(self, *, lead: bool = True) -> bool:
        """Announce the shutdown, then shut down: answer accepted requests, close the ports, unload.

        Clients that honour the announcement lose no request. First, each response announces that its
        connection will close, while new connections are still accepted, so that callers with open connections
        learn of it. Then only connections that already wait are accepted, and get a moment to send a request.
        Only then do the transports stop.

        Args:
            lead: Whether to accept connections for ``drain_lead_seconds`` more.

        Returns:
            Whether all work has ended. False if a model still worked when the drain time expired, or hangs.
        """
        until = time.monotonic() + self._config.drain_seconds
        self.drain()
        if lead:
            await asyncio.sleep(self._config.lead_seconds)
        await until_none_waits([*self._calling_sockets, *self._admin_sockets])
        await self.until_first_answers(self._config.first_answer_seconds if lead else 0.0)
        is_lent = self.ports is not None and self.ports.is_lent
        return await self.finish(until, self._calling_sockets if is_lent else (), frees_ports=not is_lent)

    async def leave(self) -> bool:
        """Shut down as ``stop`` does, while a successor accepts new connections on the same sockets.

        Returns:
            As ``stop``.
        """
        until = time.monotonic() + self._config.drain_seconds
        self.drain(is_followed=True)
        await asyncio.sleep(self._config.lead_seconds)
        shared = [one for one in self._admin_sockets if one.family != socket.AF_UNIX]
        listeners = None if self.by_h2corn is None else self.by_h2corn.listeners
        if listeners is not None and listeners.has_many:
            await listeners.until_accepted(*listeners.used)
        else:
            shared += self._calling_sockets
        await until_none_waits(shared)
        await self.until_first_answers(self._config.first_answer_seconds)
        return await self.finish(until, shared)

    async def until_first_answers(self, seconds: float) -> None:
        """Wait until each open connection has received data, or the time in seconds has passed."""
        await until_first_answers([*self._calling_sockets, *self._admin_sockets], seconds)

    @property
    def _calling_sockets(self) -> list[socket.socket]:
        return [*self._sockets, *(one for transport in self._transports for one in transport.opened)]

    @property
    def _admin_sockets(self) -> list[socket.socket]:
        return [] if self.admin is None else self.admin.sockets

    async def _until_none_accepts(self, stops: asyncio.Future[list[BaseException | None]]) -> None:
        """Wait until all h2corn transports have stopped accepting connections, or have ended."""
        accepting = [*self._administering, *([] if self.by_h2corn is None else [self.by_h2corn])]
        waits = asyncio.gather(*(one.accepts_no_more.wait() for one in accepting))
        both: tuple[asyncio.Future[Any], ...] = (stops, waits)
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        waits.cancel()

    def drain(self, *, is_followed: bool = False) -> None:
        """Announce in each response that its connection will close; new connections are still accepted.

        Args:
            is_followed: Whether a successor accepts new connections; the server then still reports ready.
        """
        self.supervisor.stop()
        self._is_followed = is_followed
        if not is_followed:
            self._service.drain()
        for application in self._applications:
            application.drain()
        for transport in self._transports:
            transport.drain()
        for following in self._following:
            following.cancel()

    async def finish(
        self, until: float, shared: Sequence[socket.socket] = (), *, frees_ports: bool = False
    ) -> bool:
        """Answer accepted requests, and unload; accept no new connections.

        Args:
            until: Deadline of the drain on the monotonic clock.
            shared: Sockets on which another process accepts connections once this server no longer does.
            frees_ports: Whether to free the ports at once, because no other process shares the sockets.

        Returns:
            As ``stop``.
        """
        self._service.go()
        stops = asyncio.gather(*(one.stop() for one in self._transports), return_exceptions=True)
        await self._until_none_accepts(stops)
        for one in shared:
            take_again(one)
        if frees_ports and self.by_h2corn is not None:
            self.by_h2corn.listeners.listen_no_more()
        for ended in await stops:
            if isinstance(ended, Exception):  # the other transports and the models are stopped anyway
                _log.error("a front end has failed", exc_info=ended)
        for one in self._sockets:
            one.close()
        if self.admin is not None:
            self.admin.close(leaves_path=self._is_followed)
        if self._disk_space is not None:
            self._disk_space.close()
        if self._observing is not None:
            await self._observing.close(until)
        try:
            async with asyncio.timeout(max(_LEAST_UNLOAD_SECONDS, until - time.monotonic())):
                if self._archive is not None:  # first: its Fillers may ask the models
                    await self._archive.close()
                await self.engine.close()
        except TimeoutError:
            return False
        return not self.engine.manager.hanging


def _certificate(config: ServerConfig) -> ServedCertificate | None:
    if not config.tls.wanted:
        return None
    from headrace.frontends.transport.certificates import ServedCertificate  # noqa: PLC0415 - only with TLS

    return ServedCertificate(config.tls)


def _listen_to_be_joined(host: str, port: int, setting: str) -> socket.socket:
    return listen_together(host, port, setting, 1)[0]
