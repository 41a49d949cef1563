"""Connections to Redis whose calls have a deadline, whatever the server does.

redis-py's timeout applies to each socket read, not to the whole call. A server that sends one byte a second
would block a call for ever. So each read of this socket is limited to the time left until the call's
deadline.
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

from headrace.storage.stores.credentials import password
from headrace.storage.stores.store_settings import RemoteStore

_call = threading.local()
# Timeout for operations outside a call, such as closing.
_NO_CALL_SECONDS = 5.0


@contextmanager
def ending_in(seconds: float) -> Iterator[None]:
    """Set a deadline for the calls that this thread makes in the context."""
    _call.deadline = time.monotonic() + seconds
    try:
        yield
    finally:
        del _call.deadline


def left() -> float:
    """Return the seconds left until the deadline of this thread's call.

    Raises:
        TimeoutError: The deadline has passed.
    """
    seconds: float = getattr(_call, "deadline", time.monotonic() + _NO_CALL_SECONDS) - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("the call timed out")
    return seconds


class TimedSocket:
    """A socket whose reads and writes are limited to the call's deadline; all else is passed through."""

    def __init__(self, connected: socket.socket) -> None:
        """Take over a connected socket."""
        self._socket = connected

    def recv_into(self, buffer: bytearray) -> int:
        """Read within the time left, or without blocking if the socket is non-blocking."""
        if self._socket.gettimeout() != 0:
            self._socket.settimeout(left())
        return self._socket.recv_into(buffer)

    def sendall(self, content: bytes) -> None:
        """Write within the time left."""
        self._socket.settimeout(left())
        self._socket.sendall(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


class TimedConnection(redis.Connection):  # type: ignore[misc] # its types are incomplete
    """redis-py's connection over a ``TimedSocket``, with TLS if a context is given."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, **options: Any) -> None:
        """Create a connection with redis-py's options and an optional TLS context."""
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
    """The login. The password is read again for each connection, so that it can be changed."""

    def __init__(self, settings: RemoteStore) -> None:
        """Keep the settings that say where the password is."""
        self._settings = settings

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return the user name, if there is one, and the password."""
        secret = password(self._settings) or ""
        return (self._settings.user, secret) if self._settings.user else (secret,)
