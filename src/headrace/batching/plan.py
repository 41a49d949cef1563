"""Decide which batch to release from a queue: a pure function, tested as a truth table.

It implements these laws of the Batcher:

* nothing overtakes an item that did not fit: a batch is the head of its queue, and ends at the first item
that is too large;
* an item that nobody waits for, or whose deadline has passed, is never run;
* a lone request never waits while an instance is idle, unless the policy asks for a wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar


class Item(Protocol):
    """The part of a request that the decision depends on."""

    rows: int
    deadline: float
    enqueued: float

    @property
    def wanted(self) -> bool:
        """Whether a caller still waits for the answer."""


class Room(Protocol):
    """A limit on a batch in addition to its number of rows."""

    def takes(self, item: Any) -> bool:
        """Add an item if it fits, and return whether it does; the first one always does."""


class Release(Enum):
    """Reason for a batch's release, as shown in the metrics."""

    IDLE = "idle"
    """An instance was idle and the queue held no further request."""
    FULL = "full"
    """The batch was full, or the next request did not fit."""
    WAITED = "waited"
    """The oldest request had waited as long as the policy allows."""
    DEADLINE = "deadline"
    """Waiting longer would have cost a request its deadline."""

    __hash__ = object.__hash__  # Enum.__hash__ hashes the name in Python code, twice per batch


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The limits of the next batch.

    Attributes:
        max_rows: The most rows.
        max_wait_seconds: Longest time to hold back the oldest request for more to arrive; 0 for none.
        run_seconds: Predicted duration of a full batch.
        room: Factory of a ``Room``; None if only rows limit a batch.
    """

    max_rows: int
    max_wait_seconds: float = 0.0
    run_seconds: float = 0.0
    room: Callable[[], Room] | None = None


ItemT = TypeVar("ItemT", bound=Item)


@dataclass(slots=True)
class Plan(Generic[ItemT]):
    """A decision about a queue.

    Attributes:
        taken: Number of items at the queue's head that the plan covers: ``run``, ``expired`` and
            ``abandoned`` together.
        run: The items of the batch, in order. Without a ``release`` they stay at the queue's head.
        expired: Items whose deadline has passed.
        abandoned: Items that nobody waits for.
        rows: Number of rows of the batch.
        release: Reason for releasing the batch now; None if it is held back or empty.
        wake_at: Time at which to plan again at the latest; None if there is nothing to wait for.
    """

    taken: int = 0
    run: list[ItemT] = field(default_factory=list)
    expired: list[ItemT] = field(default_factory=list)
    abandoned: list[ItemT] = field(default_factory=list)
    rows: int = 0
    release: Release | None = None
    wake_at: float | None = None


def plan(queue: Iterable[ItemT], now: float, limits: BatchLimits) -> Plan[ItemT]:
    """Return which items to drop, which to run, and when to plan again.

    Pure: reads the queue, changes nothing, and returns the same plan for the same arguments.

    Args:
        queue: Items in the order of the queue; one larger than ``limits.max_rows`` runs alone.
        now: Monotonic time in seconds.
        limits: The limits of the batch.
    """
    made: Plan[ItemT] = Plan()
    run, rows, taken, full = made.run, 0, 0, False
    max_rows = limits.max_rows
    takes = limits.room().takes if limits.room is not None else None
    for item in queue:
        if not item.wanted:
            made.abandoned.append(item)
        elif item.deadline <= now:
            made.expired.append(item)
        elif (run and rows + item.rows > max_rows) or not (takes is None or takes(item)):
            full = True
            break
        else:
            run.append(item)
            rows += item.rows
        taken += 1
    made.taken = taken
    if not run:
        return made
    made.rows = rows
    if full or rows >= max_rows:
        made.release = Release.FULL
    elif limits.max_wait_seconds <= 0.0:
        made.release = Release.IDLE
    else:
        _hold_back(made, now, limits)
    return made


def _hold_back(made: Plan[ItemT], now: float, limits: BatchLimits) -> None:
    """Decide between running now and waiting for more requests, for a policy with a wait."""
    waited_at = made.run[0].enqueued + limits.max_wait_seconds
    latest = min(item.deadline for item in made.run) - limits.run_seconds
    if now >= waited_at:
        made.release = Release.WAITED
    elif now >= latest:
        made.release = Release.DEADLINE
    else:
        made.wake_at = min(waited_at, latest)
