"""Connections that end: one deadline for all that is sent and received, and only to addresses that may be."""

from __future__ import annotations

import io
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from headrace.archive.embedders.failing import never, not_now
from headrace.archive.embedders.images.addresses import Network, forbidden
from headrace.archive.embedders.images.urls import Target
from headrace.errors import shown

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Resolve = Callable[[str, int], Sequence[str]]
"""A host's addresses, the best first, of its name and the port; raises OSError where there are none."""

_MOST_ADDRESSES = 8


def system_addresses(host: str, port: int) -> Sequence[str]:
    """What the system's resolver says."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(one[4][0]) for one in found))


class Connection:
    """A socket with a deadline, as ``http.client`` reads from one."""

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        """Take over a socket.

        Args:
            connected: The socket; closed with this.
            deadline: When it must have ended, on the monotonic clock.
        """
        self._socket = connected
        self._deadline = deadline

    def send(self, request: bytes) -> None:
        """Send all of it.

        Raises:
            OSError: The other side does not take it, or not in time.
        """
        self._socket.settimeout(remaining(self._deadline))
        self._socket.sendall(request)

    def makefile(self, mode: str) -> io.BufferedReader:
        """What can be read from it; ``http.client`` asks for this."""
        return io.BufferedReader(_Reading(self._socket, self._deadline))

    def close(self) -> None:
        """Close it."""
        self._socket.close()


class _Reading(io.RawIOBase):
    """Reads whose waits end at one deadline, however slowly bytes drip."""

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self._socket = connected
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        self._socket.settimeout(remaining(self._deadline))
        return self._socket.recv_into(buffer)


def remaining(deadline: float) -> float:
    """The seconds until then.

    Raises:
        TimeoutError: There are none.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("it took too long")
    return left


class Connector:
    """Opens connections; may be used by several threads at once."""

    def __init__(self, resolve: Resolve, allowed: Sequence[Network], ca_file: str, most_lookups: int) -> None:
        """Prepare what all connections share.

        Args:
            resolve: Says a name's addresses.
            allowed: Networks that may be connected to besides public addresses.
            ca_file: The certificates of who may sign a server's; "" for the system's.
            most_lookups: How many names may be looked up at a time, those that hang included.

        Raises:
            OSError: The file cannot be read, or holds no certificates.
        """
        self._resolve = resolve
        self._allowed = allowed
        self._tls = ssl.create_default_context(cafile=ca_file or None)
        self._lookups = threading.BoundedSemaphore(most_lookups)

    def open(self, target: Target, deadline: float) -> Connection:
        """Connect to a host's first address that may be and answers.

        Raises:
            Failing: None may be connected to (final), or none answers in time.
        """
        addresses = self._addresses(target, deadline)
        found = {address: forbidden(address, self._allowed) for address in addresses}
        good = [address for address, reason in found.items() if not reason]
        if not good:
            address, reason = next(iter(found.items()))
            raise never(f"{shown(target.host)} leads to {address}, {reason}, which is not allowed")
        error: OSError = OSError("no address")
        for tried, address in enumerate(good):
            try:
                return self._connected(target, address, deadline, len(good) - tried)
            except ssl.SSLCertVerificationError as failed:
                raise never(f"{shown(target.host)}: {failed.verify_message}") from failed
            except OSError as failed:
                error = failed
        raise not_now(f"cannot connect to {shown(target.host)}: {error}") from error

    def _connected(self, target: Target, address: str, deadline: float, shares: int) -> Connection:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        connected = socket.socket(family, socket.SOCK_STREAM)
        try:
            connected.settimeout(remaining(deadline) / shares)
            connected.connect((address, target.port))
            if target.scheme == "https":
                connected.settimeout(remaining(deadline))
                connected = self._tls.wrap_socket(connected, server_hostname=target.host)
        except BaseException:
            connected.close()
            raise
        return Connection(connected, deadline)

    def _addresses(self, target: Target, deadline: float) -> Sequence[str]:
        """Ask the resolver, which has no time limit of its own, in a thread that need not be waited for."""
        if not self._lookups.acquire(timeout=remaining(deadline)):
            raise not_now("too many names are being looked up")
        answers: SimpleQueue[Sequence[str] | OSError] = SimpleQueue()
        lookup = threading.Thread(target=self._look_up, args=(target, answers), daemon=True)
        try:
            lookup.start()
        except BaseException:
            self._lookups.release()
            raise
        try:
            answer = answers.get(timeout=remaining(deadline))
        except Empty:
            raise not_now(f"no addresses of {shown(target.host)} in time") from None
        if isinstance(answer, OSError):
            raise not_now(f"no addresses of {shown(target.host)}: {answer}") from answer
        if not answer:
            raise not_now(f"no addresses of {shown(target.host)}")
        return list(answer)[:_MOST_ADDRESSES]

    def _look_up(self, target: Target, answers: SimpleQueue[Sequence[str] | OSError]) -> None:
        try:
            answers.put(self._resolve(target.host, target.port))
        except OSError as error:
            answers.put(error)
        except Exception as error:  # noqa: BLE001 - the boundary to any resolver: one waits for its answer
            answers.put(OSError(f"{type(error).__name__}: {error}"))
        finally:
            self._lookups.release()
