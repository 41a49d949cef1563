"""Which process of a version gets the next call, where each computes one at a time."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar


class Member(Protocol):
    """Whoever is given calls."""

    @property
    def is_ready(self) -> bool:
        """Whether it takes calls just now."""


MemberT = TypeVar("MemberT", bound=Member)


class Pool(Generic[MemberT]):
    """Gives each call a member that computes nothing else; in any thread.

    The first idle member is taken, so that under little load the same few stay warm.
    """

    def __init__(self, members: Sequence[MemberT]) -> None:
        """Nobody computes yet.

        Args:
            members: Whoever may be given calls.
        """
        self._members = members
        self._busy = [False] * len(members)
        self._changed = threading.Condition()

    def take(self) -> MemberT | None:
        """Wait until a member that is ready is idle, and take it; ``give_back`` must follow.

        The wait ends at the latest when the calls that run do, which have a time limit.

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
        """Let others take a member again."""
        with self._changed:
            self._busy[self._members.index(member)] = False
            self._changed.notify()

    def look(self) -> None:
        """Let those who wait look again: a member has become ready, or is so no more."""
        with self._changed:
            self._changed.notify_all()
