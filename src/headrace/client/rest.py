"""A small REST client: persistent connections, one deadline per call, and typed errors."""

from __future__ import annotations

import http.client
import math
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast
from urllib.parse import quote, urlsplit

from headrace.base.addresses import bracketed
from headrace.base.errors import (
    ConfigError,
    FailedPrecondition,
    HeadraceError,
    InvalidRequest,
    ModelError,
    NotFound,
    Overloaded,
    TooLarge,
    Unavailable,
    shown,
)
from headrace.base.files import read_text
from headrace.net.allowed_destinations import KEPT_IN_PATHS
from headrace.net.client_tls import client_context
from headrace.net.deadline_connection import Connection, Lookups, connect, system_addresses

_PIECE_BYTES = 2**20
_LARGEST_ERROR_BYTES = 65_536
_LARGEST_TOKEN_BYTES = 65_536
_LONGEST_WAIT_SECONDS = 300.0
_MOST_IDLE = 8
_MOST_LOOKUPS = 16
_OK, _NO_SERVER_ERROR = 200, 500
_CUT_OFF = (ConnectionError, ssl.SSLEOFError)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server.

    Attributes:
        host: Host name.
        port: Port number.
        prefix: Prefix of all paths.
        is_secure: Whether to use TLS.
    """

    host: str
    port: int
    prefix: str
    is_secure: bool

    def __str__(self) -> str:
        """Return the host and the port, as in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Reply(NamedTuple):
    """A response with status 200.

    Attributes:
        headers: Headers by name.
        body: Complete body.
    """

    headers: http.client.HTTPMessage
    body: bytes


Refusal = Callable[[int, http.client.HTTPMessage, bytes], HeadraceError]
"""Makes the error for a response of a status other than 200, of its headers and its body."""


class TimedOut(Unavailable):
    """The server did not answer in time; it may have computed the answer."""


class _BrokenOff(Exception):
    """The server has closed an idle connection."""


def read_address(url: str) -> Address:
    """Parse a server's URL.

    Raises:
        ConfigError: The URL is invalid.
    """
    if "@" in url.split("//", 1)[-1].split("/", 1)[0]:  # do not repeat the URL: it may contain a password
        raise ConfigError(
            "url: expected no user name or password in it; give a token by token_file (--token-file)"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"url: expected http://HOST:PORT, got {url!r}: {error}") from error
    more = parts.query or parts.fragment
    if parts.scheme not in ("http", "https") or not parts.hostname or more or port == 0:
        raise ConfigError(f"url: expected http://HOST:PORT or https://HOST:PORT, got {url!r}")
    if not parts.hostname.isascii():
        raise ConfigError(
            f"url: expected an ASCII host name, got {url!r}; write an international name as xn--…"
        )
    is_secure = parts.scheme == "https"
    prefix = quote(parts.path.rstrip("/"), safe=KEPT_IN_PATHS)
    return Address(parts.hostname, port or (443 if is_secure else 80), prefix, is_secure)


def token_in(file: Path, where: str) -> str:
    """Return the access token in a file.

    Args:
        file: The file.
        where: The setting and its value, for errors.

    Raises:
        ConfigError: The file cannot be read, or the token is not valid in a header.
    """
    try:
        return token_of(read_text(file, _LARGEST_TOKEN_BYTES), where)
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {error.strerror or error}") from error


def token_of(text: str, where: str) -> str:
    """Return an access token without the white space around it.

    Raises:
        ConfigError: It is not valid in a header.
    """
    token = text.strip()
    if not token or any(not "!" <= character <= "~" for character in token):
        raise ConfigError(f"{where}: expected a token of printable ASCII characters without spaces")
    return token


def check_encrypted(token: str, address: Address) -> None:
    """Check that a token may be sent to a server.

    Raises:
        ConfigError: It would be sent unencrypted to another machine.
    """
    if token and not address.is_secure and address.host not in _LOOPBACK:
        raise ConfigError(
            "url: expected https://…, because a token is never sent unencrypted to another machine"
        )


class RestClient:
    """A client of one server. Thread-safe."""

    def __init__(self, address: Address, token: str, ca_file: str, refusal: Refusal | None = None) -> None:
        """Prepare the client; nothing is connected yet.

        Args:
            address: Address of the server.
            token: Access token, or "".
            ca_file: Trusted CA certificates; "" for those of the system.
            refusal: Makes the errors for refused requests; None for those of servers that are not headrace.

        Raises:
            ConfigError: The token would be sent unencrypted to another machine, or the file cannot be read or
                holds no certificates.
        """
        check_encrypted(token, address)
        self._address = address
        self._token = token
        self._tls = client_context(ca_file) if address.is_secure else None
        self._refusal = refusal or _refusal
        self._lookups = Lookups(system_addresses, _MOST_LOOKUPS)
        self._idle: list[socket.socket] = []
        self._is_closed = False
        self._lock = threading.Lock()

    def ask(self, path: str, body: bytes, headers: dict[str, str], seconds: float, most_bytes: int) -> Reply:
        """Send a request: POST with a body, else GET.

        Args:
            path: Path after the server's prefix.
            body: Body; empty for a GET.
            headers: Additional headers.
            seconds: Timeout in seconds.
            most_bytes: Maximum size of the response in bytes.

        Raises:
            Refused: The server cannot be reached, is busy, or did not answer in time.
            HeadraceError: The server answered with an error, or with too large a body.
        """
        deadline = time.monotonic() + seconds
        request = self._request(path, body, headers)
        try:
            with suppress(_BrokenOff):
                if (kept := self._kept()) is not None:
                    return self._once(kept, request, deadline, most_bytes, is_kept=True)
            return self._once(self._connected(deadline), request, deadline, most_bytes, is_kept=False)
        except TimeoutError as error:
            raise TimedOut(f"{self._address} did not answer within {seconds:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            hint = "; is the server running there?" if isinstance(error, ConnectionRefusedError) else ""
            said = f"{type(error).__name__}: {error}{hint}"
            raise Unavailable(f"{self._address} cannot be reached: {said}") from error

    def close(self) -> None:
        """Close the idle connections now, and others once their calls end."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for one in idle:
            one.close()

    def _request(self, path: str, body: bytes, headers: dict[str, str]) -> bytes:
        host = bracketed(self._address.host)
        told = {"Host": f"{host}:{self._address.port}", "User-Agent": "headrace", **headers}
        if self._token:
            told["Authorization"] = f"Bearer {self._token}"
        if body:
            told["Content-Length"] = str(len(body))
        lines = [f"{'POST' if body else 'GET'} {self._address.prefix}{path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in told.items()]
        return "\r\n".join([*lines, "", ""]).encode("ascii") + body

    def _kept(self) -> socket.socket | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                kept = self._idle.pop()
            if not _has_news(kept):
                return kept
            kept.close()

    def _connected(self, deadline: float) -> socket.socket:
        host, port = self._address.host, self._address.port
        addresses = self._lookups.addresses(host, port, deadline)
        connected = connect(host, port, addresses, deadline, self._tls)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected

    def _once(
        self, connected: socket.socket, request: bytes, deadline: float, most_bytes: int, *, is_kept: bool
    ) -> Reply:
        connection, is_whole = Connection(connected, deadline), False
        # HTTPResponse calls only ``makefile`` of a socket.
        response = http.client.HTTPResponse(cast("socket.socket", connection))
        try:
            try:
                _begin(connection, request, response)
            except _CUT_OFF as error:
                if is_kept:  # the server may have closed the idle connection before the request arrived
                    raise _BrokenOff from error
                raise
            if response.status != _OK:
                body = _read(response, _LARGEST_ERROR_BYTES, cut=True)
                raise self._refusal(response.status, response.headers, body)
            reply = Reply(response.headers, _read(response, most_bytes))
            is_whole = not response.will_close
            return reply
        finally:
            response.close()
            with self._lock:
                stays = is_whole and not self._is_closed and len(self._idle) < _MOST_IDLE
                if stays:
                    self._idle.append(connected)
            if not stays:
                connected.close()


def _has_news(idle: socket.socket) -> bool:
    """Return whether an idle connection has been closed, or has data that answers no request."""
    poll = select.poll()
    poll.register(idle, select.POLLIN)
    return bool(poll.poll(0))


def _begin(connection: Connection, request: bytes, response: http.client.HTTPResponse) -> None:
    """Send a request, and read the head of its response.

    A server that refuses a large body answers before it has read it, and closes the connection.
    """
    cut_off: OSError | None = None
    try:
        connection.send(request)
    except _CUT_OFF as error:
        cut_off = error
    try:
        response.begin()
    except _CUT_OFF as error:
        raise cut_off or error from None


def _read(response: http.client.HTTPResponse, most_bytes: int, *, cut: bool = False) -> bytes:
    body = bytearray()
    while piece := response.read1(_PIECE_BYTES):
        body += piece
        if len(body) > most_bytes:
            if cut:
                break
            raise ModelError(f"expected an answer of at most {most_bytes} bytes from the server, got more")
    if response.length and not cut:
        raise http.client.IncompleteRead(bytes(body[:0]), response.length)
    return bytes(body)


def _refusal(status: int, headers: http.client.HTTPMessage, body: bytes) -> HeadraceError:
    """Return the error for a response with a status other than 200."""
    said = f"the server answered {status}: {shown(body.decode(errors='replace'))}"
    if status in (408, 429, 502, 503, 504):
        kind = Overloaded if status == 429 else Unavailable
        return kind(said, retry_after_seconds=wait_seconds(headers))
    if status == 404:
        return NotFound(said)
    if status == 413:
        return TooLarge(said)
    if status in (400, 422):
        return InvalidRequest(said)
    return ModelError(said) if status >= _NO_SERVER_ERROR else FailedPrecondition(said)


def wait_seconds(headers: http.client.HTTPMessage) -> float:
    """Return the time to wait that a refusal names in ``Retry-After``, in seconds; 1 if it names none."""
    try:
        seconds = float(headers.get("Retry-After") or 1)
    except ValueError:  # an HTTP date
        return 1.0
    return 1.0 if math.isnan(seconds) else min(max(seconds, 0.0), _LONGEST_WAIT_SECONDS)
