"""A queue in which callers take turns, by rows: one who asks for much waits for himself, not others for him.

Each request has a finish: how many rows each caller would have had by then, if all who wait were served one
row each in turn (fair queueing by virtual time). The queue is in the order of priorities, and of finishes
among equals. That order is what the Batcher's law is about that nothing overtakes an item that did not fit:
who has had less stands further ahead from the moment on in which he comes, and nothing moves after that.

Where only one caller waits, the order is that of arrival.

A batch that runs is not interrupted, and who comes next waits for it, then for his own, which others fill
up. So while one caller has most of the queue to himself, and others ask as well, batches are shorter.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from headrace.access.caller import ASKING
from headrace.batching.batch import Lane
from headrace.batching.cost import BatchCost
from headrace.batching.request import Request
from headrace.config import BatchingPolicy
from headrace.servable import Signature

USUAL_PRIORITY = 2
"""The class of requests that name none; lower ones are first."""

_CALLERS_KEPT = 1024
_CALLERS_COUNTED = 64
_OTHERS_SECONDS = 1.0
"""How long a caller counts as one who asks as well, after he has asked."""


class Turn(NamedTuple):
    """Where a request stands.

    Attributes:
        priority: Its class; lower ones are first.
        finish: How many rows each waiting caller has had by then.
        caller: Whose it is, by name.
    """

    priority: int
    finish: float
    caller: str


class FairQueue(deque[Request]):
    """What waits in a lane, in turns. Serving thread only."""

    def __init__(self) -> None:
        """Begin with nothing."""
        super().__init__()
        self._taken = 0.0  # the virtual time: the finish of what was taken last
        self._finishes: dict[str, float] = {}
        self._most_finishes = _CALLERS_KEPT
        self._rows: dict[str, int] = {}
        self._all_rows = 0
        self._last = self._greedy = ""
        self._others_until = -math.inf

    def append(self, item: Request) -> None:
        """Let a request take its place; it is of who asks now, a further part of who asked for the first."""
        turn = item.turn = self._turn(item)
        self._finishes[turn.caller] = turn.finish
        if len(self._finishes) > self._most_finishes:
            self._finishes = {one: at for one, at in self._finishes.items() if at > self._taken}
            self._most_finishes = max(_CALLERS_KEPT, 2 * len(self._finishes))
        self._count(item)
        self._notice(turn.caller, getattr(item, "whole", item).enqueued)
        if not self or self[-1].turn[:2] <= turn[:2]:
            super().append(item)
        else:
            self.insert(self._place(turn), item)

    def popleft(self) -> Request:
        """Take the first."""
        item = super().popleft()
        self._taken = max(self._taken, item.turn.finish)
        self._uncount(item)
        return item

    def extendleft(self, items: Iterable[Request]) -> None:
        """Put back what was taken last, the last of it first."""
        for item in items:
            self.appendleft(item)
            self._taken = min(self._taken, item.turn.finish - item.rows)
            self._count(item)

    def clear(self) -> None:
        """Let everything go."""
        super().clear()
        self._rows.clear()
        self._all_rows = 0

    @property
    def is_dominated(self) -> bool:
        """Whether one caller has more than half of the rows, and others have asked within a second."""
        return self._others_until > -math.inf and 2 * self._rows.get(self._greedy, 0) > self._all_rows

    def rows_before(self, item: Request) -> int:
        """About how many rows are served before those of a request that is not in here yet."""
        share = self._rows.get(self._whose(item), 0) + item.rows
        if len(self._rows) > _CALLERS_COUNTED:  # as many as could be
            return min(self._all_rows, share * len(self._rows))
        return sum(min(rows, share) for rows in self._rows.values())

    def give_way(self, item: Request, rows: int) -> list[Request]:
        """Take out whoever is last in turn, and would come after a request that finds no room.

        Args:
            item: The request.
            rows: How many there must be less.

        Returns:
            Who gives way: requests of so many rows at the least, the last of all first; nobody where these
            are fewer. Of a request that was cut, no part does.
        """
        turn, found = self._turn(item), 0
        giving, parts, taken = list[Request](), list[Request](), list[Request]()
        while self and found < rows and self[-1].turn[:2] > turn[:2]:
            last = self.pop()
            taken.append(last)
            (parts if hasattr(last, "whole") else giving).append(last)
            found += 0 if hasattr(last, "whole") else last.rows
        for one in reversed(parts if found >= rows else taken):
            super().append(one)
        if found < rows:
            return []
        for one in giving:
            self._uncount(one)
        return giving

    def _notice(self, caller: str, now: float) -> None:
        if caller != self._last:
            if self._last:
                self._others_until = max(self._others_until, now + _OTHERS_SECONDS)
            self._last = caller
        elif now > self._others_until:
            self._others_until = -math.inf
        if 2 * self._rows.get(caller, 0) > self._all_rows:
            self._greedy = caller

    @staticmethod
    def _whose(item: Request) -> str:
        """The caller of a request; that of a part is who asked when the first one came."""
        whole: Request = getattr(item, "whole", item)
        name: str | None = getattr(whole, "asker", None)
        if name is None:
            name = whole.asker = ASKING.get().name
        return name

    def _turn(self, item: Request) -> Turn:
        name = self._whose(item)
        call = getattr(item, "whole", item).call
        priority = getattr(call, "priority", USUAL_PRIORITY)
        return Turn(priority, max(self._taken, self._finishes.get(name, 0.0)) + item.rows, name)

    def _count(self, item: Request) -> None:
        name = item.turn.caller
        self._rows[name] = self._rows.get(name, 0) + item.rows
        self._all_rows += item.rows

    def _uncount(self, item: Request) -> None:
        name = item.turn.caller
        self._all_rows -= item.rows
        left = self._rows.get(name, 0) - item.rows
        if left > 0:
            self._rows[name] = left
        else:  # also of a request without rows, which was counted with nothing
            self._rows.pop(name, None)

    def _place(self, turn: Turn) -> int:
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self[middle].turn[:2] <= turn[:2]:
                low = middle + 1
            else:
                high = middle
        return low


class FairLane(Lane):
    """A lane in which callers take turns."""

    __slots__ = ()

    queue: FairQueue

    def __init__(self, signature: Signature, policy: BatchingPolicy) -> None:
        """Open an empty queue."""
        super().__init__(signature, policy)
        self.queue = FairQueue()

    def rows_within(self, seconds: float, cost: BatchCost) -> int:
        """The most rows of a batch predicted to stay within a time; fewer while one caller crowds others."""
        if self.queue.is_dominated:
            seconds = min(seconds, cost.turn_seconds)
        return super().rows_within(seconds, cost)
