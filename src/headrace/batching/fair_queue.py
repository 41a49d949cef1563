"""A queue that is fair among callers, by rows: a caller with many requests delays itself, not others.

Each request has a finish: the number of rows that each caller would have received by then if all waiting
callers were served one row each in turn (fair queueing by virtual time). The queue is ordered by priority,
then by finish. The Batcher's law that nothing overtakes an item that did not fit refers to this order. A
request gets its place when it is enqueued and keeps it.

If only one caller waits, requests of equal priority are in order of arrival.

A running batch is not interrupted, so a new request waits for it and then for its own, which other requests
fill up. While one caller has most of the queue and others send requests as well, batches are therefore kept
shorter.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from headrace.access.caller import ASKING
from headrace.batching.batch_queue import BatchQueue
from headrace.batching.cost import BatchCost
from headrace.batching.request import Request
from headrace.config import BatchingPolicy
from headrace.model.servable import Signature

USUAL_PRIORITY = 2
"""Priority of requests that name none; lower numbers are served first."""

_CALLERS_KEPT = 1024
_CALLERS_COUNTED = 64
_OTHERS_SECONDS = 1.0
"""Time for which another caller counts as active after its last request."""


class Turn(NamedTuple):
    """Place of a request in the fair order.

    Attributes:
        priority: Priority; lower numbers are served first.
        finish: Virtual time at which it is served: rows received by each waiting caller.
        caller: Name of the caller.
    """

    priority: int
    finish: float
    caller: str


class FairQueue(deque[Request]):
    """The fair queue of a lane. Serving thread only."""

    def __init__(self) -> None:
        """Create an empty queue."""
        super().__init__()
        self._taken = 0.0  # virtual time: the largest finish taken so far
        self._finishes: dict[str, float] = {}
        self._most_finishes = _CALLERS_KEPT
        self._rows: dict[str, int] = {}
        self._all_rows = 0
        self._last = self._greedy = ""
        self._others_until = -math.inf

    def append(self, item: Request) -> None:
        """Enqueue a request for its caller: the current one or, for a part, that of the whole request."""
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
        """Remove and return the first request."""
        item = super().popleft()
        self._taken = max(self._taken, item.turn.finish)
        self._uncount(item)
        return item

    def extendleft(self, items: Iterable[Request]) -> None:
        """Put the requests taken last back at the head, in reverse order."""
        for item in items:
            self.appendleft(item)
            self._taken = min(self._taken, item.turn.finish - item.rows)
            self._count(item)

    def clear(self) -> None:
        """Remove all requests, which are about to be answered."""
        self._taken = max((item.turn.finish for item in self), default=self._taken)
        super().clear()
        self._rows.clear()
        self._all_rows = 0

    @property
    def is_dominated(self) -> bool:
        """Whether one caller has more than half of the rows and others were active within a second."""
        return self._others_until > -math.inf and 2 * self._rows.get(self._greedy, 0) > self._all_rows

    def rows_before(self, item: Request) -> int:
        """Return an estimate of the rows served before a request that is not enqueued yet."""
        share = self._rows.get(self._whose(item), 0) + item.rows
        if len(self._rows) > _CALLERS_COUNTED:  # an upper bound, as summing would take too long
            return min(self._all_rows, share * len(self._rows))
        return sum(min(rows, share) for rows in self._rows.values())

    def give_way(self, item: Request, rows: int) -> list[Request]:
        """Remove requests from the end of the queue to make room for one that goes before them.

        Args:
            item: The request that needs room.
            rows: Number of rows to remove.

        Returns:
            The removed requests, the last one first, with at least ``rows`` rows in total; empty if that is
            impossible. Parts of a split request are never removed.
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
        """Return the name of a request's caller; for a part, the caller of the whole request."""
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
        else:  # includes requests without rows, which count 0
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


class FairBatchQueue(BatchQueue):
    """A lane that is fair among callers."""

    __slots__ = ()

    queue: FairQueue

    def __init__(self, signature: Signature, policy: BatchingPolicy, cost: BatchCost) -> None:
        """Create an empty lane."""
        super().__init__(signature, policy, cost)
        self.queue = FairQueue()

    def rows_within(self, seconds: float) -> int:
        """Return the most rows of a batch predicted to take ``seconds``; fewer while one caller dominates."""
        if self.queue.is_dominated:
            seconds = min(seconds, self.cost.turn_seconds)
        return super().rows_within(seconds)
