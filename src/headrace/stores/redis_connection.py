"""Connections to Redis whose calls have a deadline, whatever the other side does.

redis-py has a timeout for each read of a socket: a service that sends one byte a second would hold a call for
ever. So the socket asks for each of its reads how much of the call's time is left.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import redis

from headrace.stores.security import password
from headrace.stores.settings import RemoteStore

_call = threading.local()
# For what is done outside a call, as closing is.
_NO_CALL_SECONDS = 5.0


@contextmanager
def ending_in(seconds: float) -> Iterator[None]:
    """Have this thread's calls end when a time is over."""
    _call.deadline = time.monotonic() + seconds
    try:
        yield
    finally:
        del _call.deadline


def left() -> float:
    """How much of this thread's call's time is left.

    Raises:
        TimeoutError: Nothing is.
    """
    seconds: float = getattr(_call, "deadline", time.monotonic() + _NO_CALL_SECONDS) - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("the call's time is over")
    return seconds


class TimedSocket:
    """A socket whose reads and writes end with their call; everything else is the socket's own."""

    def __init__(self, connected: socket.socket) -> None:
        """Take over a socket."""
        self._socket = connected

    def recv_into(self, buffer: bytearray) -> int:
        """Read, within the time that is left, or at once where the socket does not wait."""
        if self._socket.gettimeout() != 0:
            self._socket.settimeout(left())
        return self._socket.recv_into(buffer)

    def sendall(self, content: bytes) -> None:
        """Write, within the time that is left."""
        self._socket.settimeout(left())
        self._socket.sendall(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


class TimedConnection(redis.Connection):  # type: ignore[misc] # its types are half there
    """redis-py's connection with such a socket, and with TLS if a context is given."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, **options: Any) -> None:
        """As redis-py's, and ``tls``."""
        self._tls = tls
        super().__init__(**options)

    def _connect(self) -> socket.socket:
        self.socket_connect_timeout = left()
        connected: socket.socket = super()._connect()
        try:
            if self._tls is not None:
                connected = _handshake(self._tls, connected, self.host)
            connected.settimeout(left())
        except BaseException:
            connected.close()
            raise
        return cast("socket.socket", TimedSocket(connected))


def _handshake(tls: ssl.SSLContext, connected: socket.socket, host: str) -> ssl.SSLSocket:
    connected.setblocking(False)
    secure = tls.wrap_socket(connected, server_hostname=host, do_handshake_on_connect=False)
    try:
        while True:
            try:
                secure.do_handshake()
            except ssl.SSLWantReadError:
                select.select([secure], [], [], left())
            except ssl.SSLWantWriteError:
                select.select([], [secure], [], left())
            else:
                return secure
    except BaseException:
        secure.close()
        raise


class Credentials(redis.CredentialProvider):  # type: ignore[misc] # as above
    """Who asks; the password is read anew for each connection, so that it can be changed."""

    def __init__(self, settings: RemoteStore) -> None:
        """Keep where the password is."""
        self._settings = settings

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """The name, if there is one, and the password."""
        secret = password(self._settings) or ""
        return (self._settings.user, secret) if self._settings.user else (secret,)
