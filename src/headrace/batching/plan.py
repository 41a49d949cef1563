"""What to do with a queue: a pure decision, tested as a truth table.

The Batcher's laws, as far as they are decided here:

* nothing overtakes an item that did not fit: a batch is the head of its queue, and ends at the first item
that is too large;
* an item nobody waits for, or whose deadline has passed, is never run;
* a lone request never waits while an instance is idle, unless the policy asks for a wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar


class Item(Protocol):
    """What a decision needs to know of a request."""

    rows: int
    deadline: float
    enqueued: float

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for it."""


class Room(Protocol):
    """What one batch has room for beside its rows."""

    def takes(self, item: Any) -> bool:
        """Add an item if it fits, and say whether it does; the first one always does."""


class Release(Enum):
    """Why a batch was released; operators read it in the metrics."""

    IDLE = "idle"
    """An instance was idle and nothing more was there."""
    FULL = "full"
    """No room for the next request, or none at all."""
    WAITED = "waited"
    """The oldest request had waited as long as the policy allows."""
    DEADLINE = "deadline"
    """Waiting longer would have cost a request its deadline."""

    __hash__ = object.__hash__  # Enum's own hashes the name, in Python: twice a batch


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the next batch.

    Attributes:
        max_rows: The most rows.
        max_wait_seconds: How long the oldest request may be held back for more to come; 0 for not at all.
        run_seconds: What running a full batch is predicted to take.
        room: Makes a ``Room``, where rows are not all that limits a batch.
    """

    max_rows: int
    max_wait_seconds: float = 0.0
    run_seconds: float = 0.0
    room: Callable[[], Room] | None = None


ItemT = TypeVar("ItemT", bound=Item)


@dataclass(slots=True)
class Plan(Generic[ItemT]):
    """What to do with a queue now.

    Attributes:
        taken: How many items at the queue's head this plan is about: ``run``, ``expired`` and ``abandoned``
            together.
        run: The items that make the batch, in order. Without a ``release`` they go on waiting at the queue's
            head.
        expired: Items whose deadline has passed: to be told so.
        abandoned: Items that nobody waits for: to be forgotten.
        rows: How many rows the batch has.
        release: Why the batch goes now; None when it does not.
        wake_at: When to look again if nothing else happens; None when there is nothing to wait for.
    """

    taken: int = 0
    run: list[ItemT] = field(default_factory=list)
    expired: list[ItemT] = field(default_factory=list)
    abandoned: list[ItemT] = field(default_factory=list)
    rows: int = 0
    release: Release | None = None
    wake_at: float | None = None


def plan(queue: Iterable[ItemT], now: float, limits: Limits) -> Plan[ItemT]:
    """Say what to do with the queue at time ``now``: whom to drop, what to run, when to look again.

    Pure: reads the queue, changes nothing, and gives the same plan for the same queue, time and limits.

    Args:
        queue: Items in the order of their arrival; one larger than ``limits.max_rows`` goes alone.
        now: The monotonic time in seconds.
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


def _hold_back(made: Plan[ItemT], now: float, limits: Limits) -> None:
    """Decide between running now and waiting for more, where the policy asks for a wait."""
    waited_at = made.run[0].enqueued + limits.max_wait_seconds
    latest = min(item.deadline for item in made.run) - limits.run_seconds
    if now >= waited_at:
        made.release = Release.WAITED
    elif now >= latest:
        made.release = Release.DEADLINE
    else:
        made.wake_at = min(waited_at, latest)
