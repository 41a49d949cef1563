"""Assign calls to the processes of a version, each of which computes one call at a time."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar


class Member(Protocol):
    """A member of the pool, which takes calls."""

    @property
    def is_ready(self) -> bool:
        """Whether it takes calls."""


MemberT = TypeVar("MemberT", bound=Member)


class ProcessPool(Generic[MemberT]):
    """Gives each call exclusive use of a member. Thread-safe.

    The first idle member is taken, so that the same few stay warm under low load.
    """

    def __init__(self, members: Sequence[MemberT]) -> None:
        """Begin with all members idle.

        Args:
            members: The members that take calls.
        """
        self._members = members
        self._busy = [False] * len(members)
        self._changed = threading.Condition()

    def take(self) -> MemberT | None:
        """Wait for an idle member that is ready, and take it; ``give_back`` must follow.

        The wait ends at the latest when a running call ends; calls have a timeout.

        Returns:
            The member; None if none is ready.
        """
        with self._changed:
            while True:
                ready = [number for number, one in enumerate(self._members) if one.is_ready]
                if not ready:
                    return None
                for number in ready:
                    if not self._busy[number]:
                        self._busy[number] = True
                        return self._members[number]
                self._changed.wait()

    def give_back(self, member: MemberT) -> None:
        """Return a member to the pool."""
        with self._changed:
            self._busy[self._members.index(member)] = False
            self._changed.notify()

    def look(self) -> None:
        """Wake the waiting threads after a member has become ready or unready."""
        with self._changed:
            self._changed.notify_all()
