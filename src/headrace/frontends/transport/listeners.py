"""The listening sockets of generations: each has its own, so that it can be kept from new connections."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import NamedTuple

from headrace.frontends.transport.listening import join, listen_no_more, until_settled
from headrace.frontends.transport.steering import program, steer


class Listeners:
    """Sets of listening sockets, one socket a port in each, numbered from 0 as the kernel numbers them.

    The kernel is told which sets get new connections. Sockets stay open when nobody accepts at them any more,
    and whoever comes next gets them: so their numbers in the kernel never change, not even when another
    server takes all of them over.

    Where that cannot be had (not Linux; sockets that somebody else has opened, or steers to), there is one
    set, and whoever follows takes connections from it side by side with who was there.

    Attributes:
        sets: All sets.
        has_many: Whether sets can be added, and connections led to some of them.
        leading: The sets that get new connections.
    """

    def __init__(
        self,
        sets: Sequence[Sequence[socket.socket]],
        *,
        may_join: bool,
        free: Sequence[int] | None = None,
        leading: Sequence[int] | None = None,
    ) -> None:
        """Begin with some sets.

        Args:
            sets: Bound and listening, one a port in each. The first set stays the caller's.
            may_join: Whether further sockets may be opened beside them.
            free: The sets at which nobody accepts; all of them if left out.
            leading: The sets to which another server leads connections now, and goes on to until ``resume``.
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
        """The sets at which nobody accepts."""
        return list(self._free)

    @property
    def used(self) -> list[int]:
        """The sets at which somebody may accept."""
        return [number for number in range(len(self.sets)) if number not in self._free]

    def take(self) -> int:
        """The number of a set for somebody who accepts there, which gets no connections yet.

        Raises:
            OSError: No further socket can be had.
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
        """The descriptors of a set."""
        return [one.fileno() for one in self.sets[number]]

    def lead_to(self, numbers: Sequence[int]) -> None:
        """Let these sets, and no others, get new connections."""
        self.leading = sorted(set(numbers))
        if not self._paused and (self.has_many or len(self.sets) > 1):
            self._steer()

    def _steer(self) -> bool:
        steps = program(self.leading)
        took = [steer(one, steps) for one in self.sets[0] if one.fileno() >= 0]
        return all(took)

    def pause(self) -> None:
        """Leave it to another server where connections are led, until ``resume``."""
        self._paused = True

    def resume(self) -> None:
        """Lead connections again, to where they were to be led last."""
        self._paused = False
        self.lead_to(self.leading)

    async def until_accepted(self, *numbers: int) -> None:
        """Wait until the connections are accepted that sets got before new ones were led elsewhere."""
        if self.has_many:
            await until_settled([one for number in numbers for one in self.sets[number]])

    def give_back(self, *numbers: int) -> None:
        """Let somebody else have sets."""
        if self.has_many:
            self._free.extend(numbers)

    def listen_no_more(self) -> None:
        """Let another server have the ports, although connections go on here that came from them."""
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
        listeners: For REST and gRPC.
        is_lent: Whether somebody else goes on to listen at the same sockets, so nothing may be left on them.
        admin: Those for administration.
    """

    listeners: Listeners
    is_lent: bool
    admin: tuple[socket.socket, ...] = ()
