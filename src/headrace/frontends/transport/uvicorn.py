"""Serve REST with uvicorn (the extra ``uvicorn``); gRPC needs h2corn or grpcio."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from typing import TYPE_CHECKING

from headrace.base.errors import ConfigError, DeadlineExceeded, TooLarge, needs_extra
from headrace.config import Limits, ServerConfig
from headrace.frontends.transport.asgi import Application, Scope
from headrace.frontends.transport.bodies import Event, Receive
from headrace.frontends.transport.certificates import pem_files
from headrace.frontends.transport.headers import announced_bytes
from headrace.frontends.transport.listening_sockets import IDLE_SECONDS
from headrace.frontends.transport.responses import Send

if TYPE_CHECKING:
    from headrace.frontends.transport.certificates import Certificate, ServedCertificate

try:
    import uvicorn
except ImportError as error:
    raise needs_extra("http_server = uvicorn", "uvicorn", error) from error


class UvicornTransport:
    """The application on one listening socket."""

    def __init__(
        self,
        application: Application,
        listener: socket.socket,
        config: ServerConfig,
        certificate: ServedCertificate | None = None,
    ) -> None:
        """Prepare to serve.

        Args:
            application: Application to serve.
            listener: Bound and listening socket.
            config: Server settings.
            certificate: Certificate for TLS, followed as it changes; None for plaintext.
        """
        if config.max_connection_age_seconds:
            raise ConfigError(
                "max_connection_age_seconds: expected 0 with http_server = uvicorn, which cannot limit "
                "the age of connections; h2corn can"
            )
        self._listener = listener
        tls = None if certificate is None else _Encryption(certificate)
        self._server = _Embedded(
            uvicorn.Config(
                _Guarded(application, config.limits),
                log_config=None,
                access_log=False,
                proxy_headers=False,  # the caller is the peer of the connection, whatever its headers claim
                lifespan="off",
                limit_concurrency=config.limits.max_connections or None,
                timeout_keep_alive=IDLE_SECONDS,
                timeout_graceful_shutdown=max(1, round(config.answer_seconds)),
            ),
            tls,
        )
        self.serving: asyncio.Future[None] | None = None
        self.opened: tuple[socket.socket, ...] = ()

    async def start(self) -> None:
        """Start serving; return when connections are accepted."""
        # uvicorn closes the socket that it serves, so it gets a copy: the listening socket is the caller's.
        self.serving = asyncio.create_task(self._server.serve([self._listener.dup()]))
        await self._server.begun.wait()

    def drain(self) -> None:
        """Do nothing: the application tells clients that their connections end."""

    async def stop(self) -> None:
        """Stop accepting; return when accepted requests are answered or the drain time has expired."""
        self._server.should_exit = True
        if self.serving is not None:
            await self.serving


class _Guarded:
    """The application with the limits on the time and size of bodies that uvicorn lacks."""

    def __init__(self, application: Application, limits: Limits) -> None:
        self._application = application
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            receive = _Body(scope, receive, self._limits).receive
        await self._application(scope, receive, send)


class _Body:
    """The receiving side of one request, with limits on the time and size of its body."""

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
            raise TooLarge(
                f"the announced body has {self._announced} bytes; this server takes at most {most}"
            )
        if self._arrived:
            return await self._receive()
        try:
            async with asyncio.timeout(self._until - time.monotonic()):
                event = await self._receive()
        except TimeoutError:
            seconds = self._limits.body_timeout_seconds
            raise DeadlineExceeded(f"the body did not arrive within {seconds:g} s") from None
        self._arrived = not event.get("more_body", False)
        return event


class _Embedded(uvicorn.Server):
    """A server that leaves signals to its host, and signals its start."""

    def __init__(self, config: uvicorn.Config, tls: _Encryption | None) -> None:
        super().__init__(config)
        self.begun = asyncio.Event()
        if tls is not None:
            config.load()
            config.ssl = tls.first

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await self._serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.begun.set()


class _Encryption:
    """TLS for new connections, each with the certificate in force when it begins.

    Attributes:
        first: Context of each connection until its client's first message has arrived.
    """

    def __init__(self, certificate: ServedCertificate) -> None:
        self._current = self.first = _context(certificate.current)
        self.first.sni_callback = self._choose
        certificate.uses.append(self._use)

    async def _use(self, certificate: Certificate) -> None:
        self._current = await asyncio.to_thread(_context, certificate)

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        if self._current is not self.first:
            connection.context = self._current


def _context(certificate: Certificate) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    with pem_files(certificate) as files:
        context.load_cert_chain(files["chain"], files["key"])
    if certificate.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=certificate.client_ca.decode())
    return context
