"""A program that the kernel runs to choose the socket at a port that gets a new connection.

By default the kernel hashes both addresses: with 64 connections and two sockets, one often gets two thirds.
It also picks sockets on which nobody accepts. Linux picks a client's successive source ports a few apart, so
blocks of ports, assigned in turn, give a nearly even distribution.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import sys
from collections.abc import Sequence
from typing import NamedTuple

_SO_ATTACH_REUSEPORT_CBPF = 51
_BLOCK_BITS = 5
"""Blocks of 32 ports: among 16 to 64, the most even for two workers, and nearly so for four."""

# Classic BPF operations.
_LOAD_BYTE, _LOAD_HALF = 0x30, 0x28
_SHIFT_RIGHT, _MODULO = 0x74, 0x94
_IF_EQUAL, _ALWAYS, _RETURN = 0x15, 0x05, 0x06
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


def program(taking: Sequence[int]) -> list[Step]:
    """Return the program that distributes new connections.

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


def steer(listener: socket.socket, steps: Sequence[Step]) -> bool:
    """Attach a program that the kernel runs for each new connection to a port, replacing any earlier one.

    Args:
        listener: One of the sockets on the port.
        steps: Program.

    Returns:
        Whether the kernel accepted it.
    """
    if not sys.platform.startswith("linux"):
        return False
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    try:
        listener.setsockopt(
            socket.SOL_SOCKET,
            _SO_ATTACH_REUSEPORT_CBPF,
            struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code)),
        )
    except OSError:  # a sandbox, or an old kernel
        return False
    return True
