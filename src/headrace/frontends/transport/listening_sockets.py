"""Open listening sockets with errors that name the fix, and close them without dropping connections."""

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

from headrace.base.errors import ConfigError, PlaceTaken

_BACKLOG = 1024

IDLE_SECONDS = 120
"""Idle timeout of kept connections: longer than that of callers (Go 90 s, most balancers 60 s).

The side that sends must also be the one that closes, or a request crosses the close in transit.
"""

# Linux: a classic BPF program that runs on each packet to a listening socket, starting at its TCP header.
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_LOAD_FLAGS = (0x30, 0, 0, 13)
_IF_SYN_ELSE_SKIP_ONE = (0x45, 0, 1, 0x02)
_DROP = (0x06, 0, 0, 0)
_PASS = (0x06, 0, 0, 0xFFFFFFFF)

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


def join(listener: socket.socket) -> socket.socket:
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
    if not sys.platform.startswith("linux"):
        return
    program = ctypes.create_string_buffer(
        b"".join(struct.pack("HBBI", *step) for step in (_LOAD_FLAGS, _IF_SYN_ELSE_SKIP_ONE, _DROP, _PASS))
    )
    try:
        listener.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HxxxxxxP", 4, ctypes.addressof(program))
        )
    except OSError:  # not supported by the kernel
        return


def take_again(listener: socket.socket) -> None:
    """Allow new connections again, after ``take_no_more``."""
    if sys.platform.startswith("linux"):
        with suppress(OSError):  # no filter was attached
            listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def listen_no_more(listener: socket.socket) -> None:
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
    await until_settled(listeners)


async def until_settled(listeners: Sequence[socket.socket]) -> None:
    """Wait until sockets that get no new connections have accepted those they had, up to a time limit.

    Args:
        listeners: Listening sockets.
    """
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
