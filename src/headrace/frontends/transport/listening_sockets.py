"""Listening sockets: opened with errors that name the fix, and closed without dropping connections.

Generations of connections have a set of sockets each, so that new connections can be steered away.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import os
import socket
import struct
import sys
import termios
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import NamedTuple

from headrace.base.errors import ConfigError, PlaceTaken

_BACKLOG = 1024

IDLE_SECONDS = 120
"""Idle timeout of kept connections: longer than that of callers (Go 90 s, most balancers 60 s).

The side that sends must also be the one that closes, or a request crosses the close in transit.
"""

# Where Linux's tcp_info holds the number of connections waiting to be accepted.
_TCP_INFO_BYTES = 104
_WAITING = struct.Struct("24xI")
_LOOK_SECONDS = 0.005
# Where it holds a connection's state, and the number of bytes that the peer has acknowledged.
_GOT = struct.Struct("=B119xQ")
_OPEN = (1, 8)
"""ESTABLISHED and CLOSE_WAIT: a peer that has closed its sending side may still wait for a response."""
_UNREAD = struct.Struct("i")
_BY_PORT = (socket.AF_INET, socket.AF_INET6)
_LOOK_AT_CONNECTIONS_SECONDS = 0.02
# How long packets of connections begun earlier may be in transit.
_SETTLE_SECONDS = 0.15
_MOST_SETTLE_SECONDS = 1.0


def listen(host: str, port: int, setting: str) -> socket.socket:
    """Open a listening socket.

    Args:
        host: Address to listen on.
        port: Port; 0 for any free one.
        setting: Name of the port's setting, for the error.

    Raises:
        ConfigError: The port or the address is not available.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise _refused(host, port, setting, error) from error


def listen_together(host: str, port: int, setting: str, many: int) -> list[socket.socket]:
    """Open several sockets on one port, among which the kernel distributes new connections.

    Args:
        host: Address to listen on.
        port: Port; 0 for any free one.
        setting: Name of the port's setting, for the error.
        many: Number of sockets.

    Raises:
        ConfigError: The port or the address is not available, even if its other users share it.
    """
    opened: list[socket.socket] = []
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        for _ in range(many):
            one = socket.socket(family, socket.SOCK_STREAM)
            opened.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if len(opened) == 1:  # bound without SO_REUSEPORT: fails if anything uses the port
                one.bind((host, port))
                port = one.getsockname()[1]
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            else:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                one.bind((host, port))
        for one in opened:
            one.listen(_BACKLOG)
    except OSError as error:
        for one in opened:
            one.close()
        raise _refused(host, port, setting, error) from error
    return opened


def _join(listener: socket.socket) -> socket.socket:
    """Open a further socket on the port of one that ``listen_together`` has opened.

    Raises:
        OSError: It cannot be opened.
    """
    joined = socket.socket(listener.family, socket.SOCK_STREAM)
    try:
        joined.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        joined.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if listener.family == socket.AF_INET6:
            joined.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        joined.bind(listener.getsockname())
        joined.listen(_BACKLOG)
    except BaseException:
        joined.close()
        raise
    return joined


def _refused(host: str, port: int, setting: str, error: OSError) -> ConfigError:
    kind = PlaceTaken if error.errno == errno.EADDRINUSE else ConfigError
    return kind(f"{setting}: {_why_not(host, port, setting, error)}")


def _why_not(host: str, port: int, setting: str, error: OSError) -> str:
    option = f"--{setting.replace('_', '-')}"
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {host} is taken, perhaps by another headrace server; stop that server, "
            f"or choose another port with {option} N (0 for any free one)"
        )
    if error.errno == errno.EACCES:
        return f"port {port} of {host} is for privileged users only; choose one above 1023 with {option} N"
    return (
        f"cannot listen on {host}:{port}: {error.strerror or error}; choose others with --host and {option}"
    )


def take_no_more(listener: socket.socket) -> None:
    """Prevent new connections, while those that exist or are pending can still be accepted.

    Closing a listening socket resets every connection in its backlog, and its client may have sent a request
    already. So the kernel is first told to drop packets that begin a connection (SYN). The client sees a lost
    packet; when it retransmits, the socket is closed. Without kernel support (not Linux) nothing happens.
    """
    _attach(listener, _SO_ATTACH_FILTER, _NO_NEW_CONNECTIONS)


def take_again(listener: socket.socket) -> None:
    """Allow new connections again, after ``take_no_more``."""
    if sys.platform.startswith("linux"):
        with suppress(OSError):  # no filter was attached
            listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def _listen_no_more(listener: socket.socket) -> None:
    """Free the port for others, although h2corn keeps the socket open until its last connection has ended."""
    with suppress(OSError):  # closed already
        listener.shutdown(socket.SHUT_RDWR)


async def until_accepted(listener: socket.socket, seconds: float) -> None:
    """Wait until no connection waits to be accepted, or the timeout has expired."""
    until = time.monotonic() + seconds
    while _waiting(listener) and time.monotonic() < until:  # noqa: ASYNC110 - the kernel sets no event
        await asyncio.sleep(_LOOK_SECONDS)


def _waiting(listener: socket.socket) -> int:
    if not sys.platform.startswith("linux"):
        return 0
    try:
        info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:  # closed already, by the server that took over
        return 0
    waiting: int = _WAITING.unpack_from(info)[0]
    return waiting


def close_waiting(listeners: Sequence[socket.socket]) -> int:
    """Close the connections that wait in sockets on which nobody accepts, and return their number.

    Args:
        listeners: Listening sockets.
    """
    closed = 0
    for one in listeners:
        while _waiting(one):
            try:
                connection, _ = one.accept()
            except OSError:  # out of descriptors: the others wait on
                break
            connection.close()
            closed += 1
    return closed


async def until_none_waits(listeners: Sequence[socket.socket]) -> None:
    """Prevent new connections, and wait until those that exist are accepted, up to a time limit.

    Args:
        listeners: All listening sockets of a server.
    """
    for one in listeners:
        take_no_more(one)
    await _until_settled(listeners)


async def _until_settled(listeners: Sequence[socket.socket]) -> None:
    """Wait until sockets that get no new connections have accepted those they had, up to a time limit."""
    await asyncio.sleep(_SETTLE_SECONDS)
    await asyncio.gather(*(until_accepted(one, _MOST_SETTLE_SECONDS) for one in listeners))


async def until_first_answers(listeners: Sequence[socket.socket], seconds: float) -> None:
    """Wait until every client has received something, and what it sent has been read, up to a timeout.

    Once told to stop, h2corn and uvicorn close a connection without a response if nothing, or only part of a
    head, has arrived on it; h2corn does so when the rest arrives. But a client that connects is about to
    send, and on a crowded machine seconds pass between the two. Encrypted connections are not detected: their
    handshake counts as something received.

    Args:
        listeners: Sockets on which this process has accepted connections, and accepts no more.
        seconds: Longest wait in seconds.
    """
    if not seconds or not sys.platform.startswith("linux"):
        return
    until = time.monotonic() + seconds
    ports = {one.getsockname()[1] for one in listeners if one.fileno() >= 0 and one.family in _BY_PORT}
    waiting = [int(name) for name in os.listdir("/proc/self/fd")]
    waiting = [one for one in waiting if _is_owed(one, ports)]
    while waiting and time.monotonic() < until:
        await asyncio.sleep(_LOOK_AT_CONNECTIONS_SECONDS)
        waiting = [one for one in waiting if _is_owed(one, ports)]


def _is_owed(descriptor: int, ports: Collection[int]) -> bool:
    """Return whether a connection to one of the ports has received nothing, or has sent unread data."""
    try:
        connection = socket.socket(fileno=descriptor)
    except OSError:  # not a socket, or closed meanwhile
        return False
    try:
        if connection.family not in _BY_PORT or connection.getsockname()[1] not in ports:
            return False
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _GOT.size)
        if len(info) < _GOT.size:  # a kernel without this field
            return False
        state, got = _GOT.unpack(info)
        return state in _OPEN and (not got or _unread_bytes(descriptor) > 0)
    except OSError:
        return False
    finally:
        connection.detach()  # the server owns the descriptor


def _unread_bytes(descriptor: int) -> int:
    answer = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(_UNREAD.size))
    unread: int = _UNREAD.unpack(answer)[0]
    return unread


# --- programs of classic BPF, which the kernel of Linux runs ---

_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_SO_ATTACH_REUSEPORT_CBPF = 51
_BLOCK_BITS = 5
"""Blocks of 32 ports: among 16 to 64, the most even for two workers, and nearly so for four."""

# Operations.
_LOAD_BYTE, _LOAD_HALF = 0x30, 0x28
_SHIFT_RIGHT, _MODULO = 0x74, 0x94
_IF_EQUAL, _IF_ANY_BIT, _ALWAYS, _RETURN = 0x15, 0x45, 0x05, 0x06
_NETWORK_HEADER = 0xFFF00000
_SOURCE_PORT_V4, _SOURCE_PORT_V6 = _NETWORK_HEADER + 20, _NETWORK_HEADER + 40


class Step(NamedTuple):
    """One instruction of a classic BPF program.

    Attributes:
        code: Operation.
        if_so: Number of steps to skip if the condition holds.
        if_not: Number of steps to skip if it does not.
        value: Operand.
    """

    code: int
    if_so: int
    if_not: int
    value: int


_NO_NEW_CONNECTIONS = (
    Step(_LOAD_BYTE, 0, 0, 13),  # the flags in the TCP header, at which a filter of packets starts
    Step(_IF_ANY_BIT, 0, 1, 0x02),  # SYN
    Step(_RETURN, 0, 0, 0),  # drop
    Step(_RETURN, 0, 0, 0xFFFFFFFF),  # pass
)


def program(taking: Sequence[int]) -> list[Step]:
    """Return the program that chooses the socket that gets a new connection.

    By default the kernel hashes both addresses: with 64 connections and two sockets, one often gets two
    thirds. It also picks sockets on which nobody accepts. Linux picks a client's successive source ports a
    few apart, so blocks of ports, assigned in turn, give a nearly even distribution.

    Args:
        taking: Sockets that take connections, by the order in which they began to listen; at least one.

    Returns:
        Steps that end by returning the number of a socket.
    """
    steps = [
        Step(_LOAD_BYTE, 0, 0, _NETWORK_HEADER),
        Step(_SHIFT_RIGHT, 0, 0, 4),
        Step(_IF_EQUAL, 0, 2, 6),  # the version of IP
        Step(_LOAD_HALF, 0, 0, _SOURCE_PORT_V6),
        Step(_ALWAYS, 0, 0, 1),
        Step(_LOAD_HALF, 0, 0, _SOURCE_PORT_V4),
        Step(_SHIFT_RIGHT, 0, 0, _BLOCK_BITS),
        Step(_MODULO, 0, 0, len(taking)),
    ]
    for place, number in enumerate(taking[:-1]):
        steps += [Step(_IF_EQUAL, 0, 1, place), Step(_RETURN, 0, 0, number)]
    return [*steps, Step(_RETURN, 0, 0, taking[-1])]


def _attach(listener: socket.socket, option: int, steps: Sequence[Step]) -> bool:
    """Have the kernel run a program, and return whether it accepted that; it does not outside Linux."""
    if not sys.platform.startswith("linux"):
        return False
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    try:
        listener.setsockopt(
            socket.SOL_SOCKET, option, struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code))
        )
    except OSError:  # a sandbox, or an old kernel
        return False
    return True


def steer(listener: socket.socket, steps: Sequence[Step]) -> bool:
    """Attach a program that the kernel runs for each new connection to a port, replacing any earlier one.

    Args:
        listener: One of the sockets on the port.
        steps: Program.

    Returns:
        Whether the kernel accepted it.
    """
    return _attach(listener, _SO_ATTACH_REUSEPORT_CBPF, steps)


# --- sets of sockets ---


class Listeners:
    """Sets of listening sockets, one socket per port in each, numbered from 0 as in the kernel.

    The kernel steers new connections to some of the sets. Sockets stay open when nobody accepts on them any
    more, and the next generation reuses them. So their numbers in the kernel never change, even when another
    server takes all of them over.

    Where this is unavailable (not Linux; sockets that others have opened, or steer), there is one set, and a
    new generation accepts on it beside the old one.

    Attributes:
        sets: All sets.
        has_many: Whether sets can be added, and connections steered to some of them.
        leading: Numbers of the sets that get new connections.
    """

    def __init__(
        self,
        sets: Sequence[Sequence[socket.socket]],
        *,
        may_join: bool,
        free: Sequence[int] | None = None,
        leading: Sequence[int] | None = None,
    ) -> None:
        """Start with some sets.

        Args:
            sets: Bound and listening sockets, one per port in each set. The caller owns the first set.
            may_join: Whether further sockets may be opened on the same ports.
            free: Numbers of the sets on which nobody accepts; all of them if omitted.
            leading: Numbers of the sets to which another server steers connections until ``resume``; None if
                no other server does.
        """
        self.sets = [list(one) for one in sets]
        self._free = [*range(len(self.sets))] if free is None else list(free)
        self._paused = leading is not None
        self.leading = [0] if leading is None else list(leading)
        self.has_many = may_join and (self._paused or self._steer())

    @property
    def opened(self) -> list[socket.socket]:
        """The sockets of all sets but the first."""
        return [one for several in self.sets[1:] for one in several]

    @property
    def free(self) -> list[int]:
        """Numbers of the sets on which nobody accepts."""
        return list(self._free)

    @property
    def used(self) -> list[int]:
        """Numbers of the sets on which somebody may accept."""
        return [number for number in range(len(self.sets)) if number not in self._free]

    def take(self) -> int:
        """Reserve a set to accept on, and return its number; it gets no connections yet.

        Raises:
            OSError: No further socket can be opened.
        """
        if self._free:
            return self._free.pop(0)
        if not self.has_many:
            return 0
        joined: list[socket.socket] = []
        try:
            joined.extend(_join(one) for one in self.sets[0])
        except OSError:
            for one in joined:
                one.close()
            self.has_many = False  # numbers in the kernel could differ between the ports from now on
            raise
        self.sets.append(joined)
        return len(self.sets) - 1

    def descriptors(self, number: int) -> list[int]:
        """Return the descriptors of a set."""
        return [one.fileno() for one in self.sets[number]]

    def lead_to(self, numbers: Sequence[int]) -> None:
        """Steer new connections to these sets only; a set that is named twice gets twice the share."""
        before, self.leading = self.leading, sorted(numbers)
        if self.leading != before and not self._paused and (self.has_many or len(self.sets) > 1):
            self._steer()

    def _steer(self) -> bool:
        steps = program(self.leading)
        took = [steer(one, steps) for one in self.sets[0] if one.fileno() >= 0]
        return all(took)

    def pause(self) -> None:
        """Leave the steering to another server until ``resume``."""
        self._paused = True

    def resume(self) -> None:
        """Steer connections again, to the sets requested last."""
        self._paused = False
        if self.has_many or len(self.sets) > 1:
            self._steer()

    async def until_accepted(self, *numbers: int) -> None:
        """Wait until sets have accepted the connections they got before new ones were steered elsewhere."""
        if self.has_many:
            await _until_settled([one for number in numbers for one in self.sets[number]])

    def give_back(self, *numbers: int) -> None:
        """Return sets for reuse."""
        if self.has_many:
            self._free.extend(numbers)

    def listen_no_more(self) -> None:
        """Free the ports for another server, while connections accepted from them continue."""
        for several in self.sets:
            for one in several:
                _listen_no_more(one)

    def close(self) -> None:
        """Close the sockets of all sets but the first."""
        for one in self.opened:
            one.close()


class Ports(NamedTuple):
    """Listening sockets that a server has not opened itself.

    Attributes:
        listeners: Sockets for REST and gRPC.
        is_lent: Whether another process keeps listening on the same sockets; no filter may remain on them.
        admin: Sockets for administration.
    """

    listeners: Listeners
    is_lent: bool
    admin: tuple[socket.socket, ...] = ()
