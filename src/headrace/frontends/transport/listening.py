"""Listening sockets: opened with an error that says the way out, and closed without cutting anybody off."""

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

from headrace.errors import ConfigError, PlaceTaken

_BACKLOG = 1024

IDLE_SECONDS = 120
"""How long a kept connection may be idle: longer than callers keep theirs (Go 90 s, most balancers 60 s).

Whoever closes first must be the one who sends, or a request crosses the close on its way.
"""

# Linux: a classic BPF program that is run on each packet to a listening socket, from its TCP header on.
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_LOAD_FLAGS = (0x30, 0, 0, 13)
_IF_SYN_ELSE_SKIP_ONE = (0x45, 0, 1, 0x02)
_DROP = (0x06, 0, 0, 0)
_PASS = (0x06, 0, 0, 0xFFFFFFFF)

# Where Linux's tcp_info says how many connections are waiting to be accepted.
_TCP_INFO_BYTES = 104
_WAITING = struct.Struct("24xI")
_LOOK_SECONDS = 0.005
# Where it says in which state a connection is, and how many bytes the other end has got.
_GOT = struct.Struct("=B119xQ")
_OPEN = (1, 8)
"""Established; and closed by the other end, which may still wait for an answer."""
_UNREAD = struct.Struct("i")
_BY_PORT = (socket.AF_INET, socket.AF_INET6)
_LOOK_AT_CONNECTIONS_SECONDS = 0.02
# How long packets of connections that were begun before may be on their way.
_SETTLE_SECONDS = 0.15
_MOST_SETTLE_SECONDS = 1.0


def listen(host: str, port: int, setting: str) -> socket.socket:
    """Open a listening socket.

    Args:
        host: Where.
        port: The port; 0 for any free one.
        setting: What the port is called, for the error.

    Raises:
        ConfigError: The port or the address cannot be had.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise _refused(host, port, setting, error) from error


def listen_together(
    host: str, port: int, setting: str, many: int, *, listening: bool = True
) -> list[socket.socket]:
    """Open several sockets at one port, among which the system shares out new connections.

    Args:
        host: Where.
        port: The port; 0 for any free one.
        setting: What the port is called, for the error.
        many: How many sockets.
        listening: Whether they listen. Else they only keep the port for sockets that join them.

    Raises:
        ConfigError: The port or the address cannot be had: also where others share that port already.
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
            if len(opened) == 1:  # binds as if it were alone: refused where anybody is at that port
                one.bind((host, port))
                port = one.getsockname()[1]
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            else:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                one.bind((host, port))
        for one in opened if listening else ():
            one.listen(_BACKLOG)
    except OSError as error:
        for one in opened:
            one.close()
        raise _refused(host, port, setting, error) from error
    return opened


def join(listener: socket.socket) -> socket.socket:
    """Open a further socket at the port of one that ``listen_together`` has opened.

    Raises:
        OSError: It cannot be had.
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
            f"port {port} of {host} is taken, perhaps by a headrace that runs already; stop what listens "
            f"there, or choose another with {option} N (0 for any free one)"
        )
    if error.errno == errno.EACCES:
        return f"port {port} of {host} is for privileged users only; choose one above 1023 with {option} N"
    return f"cannot listen on {host}:{port}: {error.strerror or error}; --host and {option} say where"


def take_no_more(listener: socket.socket) -> None:
    """Let no further connection come into being, while those that exist or are under way can be accepted.

    Closing a listening socket resets every connection that waits in it to be accepted, and its caller may
    have sent a request already. So first the kernel is told to drop what would begin a connection (a packet
    with SYN): to its caller that is a packet lost on the way; when it is sent again, the socket is closed.
    Where that cannot be had (not Linux), there is nothing to be done but closing.
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
    except OSError:  # a kernel without it
        return


def take_again(listener: socket.socket) -> None:
    """Let connections come into being again, after ``take_no_more``."""
    if sys.platform.startswith("linux"):
        with suppress(OSError):  # nothing was kept off
            listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def listen_no_more(listener: socket.socket) -> None:
    """Let others listen at its port, although h2corn has it open until its last connection has ended."""
    with suppress(OSError):  # closed already
        listener.shutdown(socket.SHUT_RDWR)


async def until_accepted(listener: socket.socket, seconds: float) -> None:
    """Wait until no connection waits to be accepted, or the time is over."""
    until = time.monotonic() + seconds
    while _waiting(listener) and time.monotonic() < until:  # noqa: ASYNC110 - the kernel sets no event
        await asyncio.sleep(_LOOK_SECONDS)


def _waiting(listener: socket.socket) -> int:
    if not sys.platform.startswith("linux"):
        return 0
    try:
        info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:  # closed already, by the server that has taken its place
        return 0
    waiting: int = _WAITING.unpack_from(info)[0]
    return waiting


async def until_none_waits(listeners: Sequence[socket.socket]) -> None:
    """Let no further connection come into being, and wait until those that exist are accepted, for a while.

    Args:
        listeners: All sockets of a server.
    """
    for one in listeners:
        take_no_more(one)
    await until_settled(listeners)


async def until_settled(listeners: Sequence[socket.socket]) -> None:
    """Wait until the connections are accepted that sockets got before new ones went elsewhere, for a while.

    Args:
        listeners: The sockets.
    """
    await asyncio.sleep(_SETTLE_SECONDS)
    await asyncio.gather(*(until_accepted(one, _MOST_SETTLE_SECONDS) for one in listeners))


async def until_first_answers(listeners: Sequence[socket.socket], seconds: float) -> None:
    """Wait until all who have connected have got something, and what they sent is read, for a while.

    h2corn and uvicorn, once told to stop, close a connection without an answer on which nothing had come,
    or a part of a head: h2corn when the rest comes. But who connects is about to ask; on a crowded machine
    seconds pass between the two. Encrypted connections are not seen so: their handshake was something.

    Args:
        listeners: Where this process has accepted connections, and accepts none any more.
        seconds: How long to wait at the most.
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
    """Whether it is a connection to one of the ports that has got nothing yet, or has sent what is unread."""
    try:
        connection = socket.socket(fileno=descriptor)
    except OSError:  # something else, or closed meanwhile
        return False
    try:
        if connection.family not in _BY_PORT or connection.getsockname()[1] not in ports:
            return False
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _GOT.size)
        if len(info) < _GOT.size:  # a kernel that does not say it
            return False
        state, got = _GOT.unpack(info)
        return state in _OPEN and (not got or _unread_bytes(descriptor) > 0)
    except OSError:
        return False
    finally:
        connection.detach()  # it belongs to what serves it


def _unread_bytes(descriptor: int) -> int:
    answer = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(_UNREAD.size))
    unread: int = _UNREAD.unpack(answer)[0]
    return unread
