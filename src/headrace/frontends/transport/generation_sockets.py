"""The listening sockets of generations: each has its own set, so that new connections can be steered away."""

from __future__ import annotations

import ctypes
import socket
import struct
import sys
from collections.abc import Sequence
from typing import NamedTuple

from headrace.frontends.transport.listening_sockets import join, listen_no_more, until_settled

# A program that the kernel runs to choose the socket at a port that gets a new connection.
#
# By default the kernel hashes both addresses: with 64 connections and two sockets, one often gets two thirds.
# It also picks sockets on which nobody accepts. Linux picks a client's successive source ports a few
# apart, so blocks of ports, assigned in turn, give a nearly even distribution.


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


class Listeners:
    """Sets of listening sockets, one socket per port in each, numbered from 0 as in the kernel.

    The kernel is told which sets get new connections. Sockets stay open when nobody accepts on them any more,
    and the next generation reuses them. So their numbers in the kernel never change, even when another server
    takes all of them over.

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
            joined.extend(join(one) for one in self.sets[0])
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
            await until_settled([one for number in numbers for one in self.sets[number]])

    def give_back(self, *numbers: int) -> None:
        """Return sets for reuse."""
        if self.has_many:
            self._free.extend(numbers)

    def listen_no_more(self) -> None:
        """Free the ports for another server, while connections accepted from them continue."""
        for several in self.sets:
            for one in several:
                listen_no_more(one)

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
