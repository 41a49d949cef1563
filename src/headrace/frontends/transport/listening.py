"""Listening sockets: opened with an error that says the way out, and closed without cutting anybody off."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import socket
import struct
import sys
import time

from headrace.errors import ConfigError

_BACKLOG = 1024

IDLE_SECONDS = 120
"""How long a kept connection may be idle: longer than callers keep theirs (Go 90 s, most balancers 60 s).

Whoever closes first must be the one who sends, or a request crosses the close on its way.
"""

# Linux: a classic BPF program that is run on each packet to a listening socket, from its TCP header on.
_SO_ATTACH_FILTER = 26
_LOAD_FLAGS = (0x30, 0, 0, 13)
_IF_SYN_ELSE_SKIP_ONE = (0x45, 0, 1, 0x02)
_DROP = (0x06, 0, 0, 0)
_PASS = (0x06, 0, 0, 0xFFFFFFFF)

# Where Linux's tcp_info says how many connections are waiting to be accepted.
_TCP_INFO_BYTES = 104
_WAITING = struct.Struct("24xI")
_LOOK_SECONDS = 0.005


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
        raise ConfigError(f"{setting}: {_why_not(host, port, setting, error)}") from error


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
