"""Connections with one deadline for all data sent and received, and only to allowed addresses."""

from __future__ import annotations

import io
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from headrace.base.errors import shown
from headrace.net.allowed_destinations import Network, Target, forbidden
from headrace.net.client_tls import client_context
from headrace.net.content_failures import never, not_now

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Resolve = Callable[[str, int], Sequence[str]]
"""Resolves a host name and port to addresses, the best first; raises OSError if there are none."""

_MOST_ADDRESSES = 8


def system_addresses(host: str, port: int) -> Sequence[str]:
    """Resolve a host name with the system's resolver."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(one[4][0]) for one in found))


class Connection:
    """A socket with a deadline, as ``http.client`` reads from one."""

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        """Take over a socket.

        Args:
            connected: The socket; ``close`` closes it.
            deadline: Deadline on the monotonic clock.
        """
        self._socket = connected
        self._deadline = deadline

    def send(self, request: bytes) -> None:
        """Send all of a request.

        Raises:
            OSError: The other side does not accept the data, or not in time.
        """
        self._socket.settimeout(remaining(self._deadline))
        self._socket.sendall(request)

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return a reader of the socket, as ``http.client`` requires."""
        return io.BufferedReader(_Reading(self._socket, self._deadline))

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class _Reading(io.RawIOBase):
    """A raw reader with one deadline for all reads, even if bytes arrive one at a time."""

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self._socket = connected
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        self._socket.settimeout(remaining(self._deadline))
        return self._socket.recv_into(buffer)


def remaining(deadline: float) -> float:
    """Return the seconds until a deadline.

    Raises:
        TimeoutError: The deadline has passed.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


class Lookups:
    """Lookups of host names, each in a thread, as the resolver has no timeout of its own. Thread-safe."""

    def __init__(self, resolve: Resolve, most: int) -> None:
        """Keep the settings.

        Args:
            resolve: Function that resolves host names.
            most: Maximum number of concurrent lookups, including hanging ones.
        """
        self._resolve = resolve
        self._free = threading.BoundedSemaphore(most)

    def addresses(self, host: str, port: int, deadline: float) -> Sequence[str]:
        """Return the addresses of a host, at least one, the best first.

        Raises:
            OSError: The host cannot be resolved, or not in time.
        """
        if not self._free.acquire(timeout=remaining(deadline)):
            raise OSError("too many host names are being resolved")
        answers: SimpleQueue[Sequence[str] | OSError] = SimpleQueue()
        lookup = threading.Thread(target=self._look_up, args=(host, port, answers), daemon=True)
        try:
            lookup.start()
        except BaseException:
            self._free.release()
            raise
        try:
            answer = answers.get(timeout=remaining(deadline))
        except Empty:
            raise TimeoutError("timed out") from None
        if isinstance(answer, OSError):
            raise answer
        if not answer:
            raise OSError("no addresses")
        return list(answer)[:_MOST_ADDRESSES]

    def _look_up(self, host: str, port: int, answers: SimpleQueue[Sequence[str] | OSError]) -> None:
        try:
            answers.put(self._resolve(host, port))
        except OSError as error:
            answers.put(error)
        except Exception as error:  # noqa: BLE001 - a resolver may raise anything; a thread waits for it
            answers.put(OSError(f"{type(error).__name__}: {error}"))
        finally:
            self._free.release()


def connect(
    host: str, port: int, addresses: Sequence[str], deadline: float, tls: ssl.SSLContext | None
) -> socket.socket:
    """Connect to the first address that answers; each may take its share of the remaining time.

    Args:
        host: Host name that the certificate must be for.
        port: Port number.
        addresses: Addresses of the host, at least one.
        deadline: Deadline on the monotonic clock.
        tls: Context of the TLS handshake; None for a connection without TLS.

    Raises:
        ssl.SSLCertVerificationError: The certificate is invalid; the other addresses are not tried.
        OSError: No address answers in time; the error of the last one.
    """
    error = OSError("no address")
    for tried, address in enumerate(addresses):
        try:
            return _connected(host, (address, port), deadline, len(addresses) - tried, tls)
        except ssl.SSLCertVerificationError:
            raise
        except OSError as failed:
            error = failed
    raise error


def _connected(
    host: str, address: tuple[str, int], deadline: float, shares: int, tls: ssl.SSLContext | None
) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    connected = socket.socket(family, socket.SOCK_STREAM)
    try:
        connected.settimeout(remaining(deadline) / shares)
        connected.connect(address)
        if tls is not None:
            connected.settimeout(remaining(deadline))
            connected = tls.wrap_socket(connected, server_hostname=host)
    except BaseException:
        connected.close()
        raise
    return connected


class Connector:
    """Opens connections to allowed addresses. Thread-safe."""

    def __init__(self, resolve: Resolve, allowed: Sequence[Network], ca_file: str, most_lookups: int) -> None:
        """Prepare the state shared by all connections.

        Args:
            resolve: Function that resolves host names.
            allowed: Networks that are allowed in addition to public addresses.
            ca_file: Trusted CA certificates; "" for those of the system.
            most_lookups: Maximum number of concurrent name lookups, including hanging ones.

        Raises:
            ConfigError: The file cannot be read, or holds no certificates.
        """
        self._lookups = Lookups(resolve, most_lookups)
        self._allowed = allowed
        self._tls = client_context(ca_file)

    def open(self, target: Target, deadline: float) -> Connection:
        """Connect to the first of a host's allowed addresses that answers.

        Raises:
            Failing: No address is allowed, or the certificate is invalid (final); no address answers in time.
        """
        host, port = target.host, target.port
        try:
            addresses = self._lookups.addresses(host, port, deadline)
        except OSError as failed:
            raise not_now(f"cannot resolve {shown(host)}: {failed}") from failed
        found = {address: forbidden(address, self._allowed) for address in addresses}
        good = [address for address, reason in found.items() if not reason]
        if not good:
            address, reason = next(iter(found.items()))
            raise never(f"{shown(host)} resolves to {address}, {reason}, which is not allowed")
        tls = self._tls if target.scheme == "https" else None
        try:
            return Connection(connect(host, port, good, deadline, tls), deadline)
        except ssl.SSLCertVerificationError as failed:
            raise never(f"{shown(host)}: {failed.verify_message}") from failed
        except OSError as failed:
            raise not_now(f"cannot connect to {shown(host)}: {failed}") from failed
