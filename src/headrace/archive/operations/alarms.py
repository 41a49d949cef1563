"""Warnings about a space: assumptions behind the archive that do not hold, and other faults.

Pure functions of what was observed. A share is judged only on enough evidence: a minimum number of keys, over
half a minute, and still in the last seconds. A new archive, in which every key misses at first, raises none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from headrace.archive.lookup.space_reader import Counts
from headrace.archive.model.archive_toml import SpaceSettings
from headrace.archive.model.fill_counts import FillCounts
from headrace.base.terminal import counted
from headrace.storage.queues.queue import Depth

ENOUGH_KEYS = 1000
"""Minimum number of keys looked up before their shares are judged."""

ENOUGH_SLICES = 3
"""Minimum number of time slices with lookups before shares are judged."""

ENOUGH_LATELY = 100
"""Minimum number of keys, or lookups, in the last seconds before shares are judged."""

ENOUGH_VECTORS = 10
"""Minimum number of vectors made before their delay is judged."""

_MANY_NEW, _MANY_MISSING, _MANY_LATE = 0.2, 0.5, 0.01
_LONG_SECONDS = 600.0
_STUCK_SECONDS = 60.0
_UNATTENDED_SECONDS = 5.0


class Seen(NamedTuple):
    """Observations of a space.

    Attributes:
        seconds: Time span of ``lookups`` and ``fills``.
        lookups: Lookup counts of all processes.
        lately: Lookup counts of the last ten to twenty seconds.
        slices: Number of time slices with lookups.
        fills: Filling counts.
        fillers: Number of processes that fill the space.
        depth: Backlog of the queue, for all spaces; None if unknown.
        dead_letters: Number of dead letters of the space.
    """

    seconds: float = 60.0
    lookups: Counts = Counts()
    lately: Counts = Counts()
    slices: int = 0
    fills: FillCounts = FillCounts()
    fillers: int = 0
    depth: Depth | None = None
    dead_letters: int = 0


def warnings(settings: SpaceSettings, seen: Seen) -> Iterable[str]:
    """Yield a sentence for each thing that is wrong with a space."""
    if settings.embedder:
        yield from _of_new_keys(seen)
        yield from _of_filling(seen)
        yield from _of_delay(settings, seen)
    yield from _of_missing(settings, seen)
    if _is_late(seen.lookups) and _is_late(seen.lately):
        share = seen.lookups.late / seen.lookups.lookups
        yield f"{share:.0%} of the lookups gave up waiting for the store; it is slow or down"
    if damaged := seen.lookups.damaged:
        what = "was not a vector" if damaged == 1 else "were not vectors"
        yield f"{counted(damaged, 'value')} of the store {what} of this space; who else writes to it?"
    if over := seen.lookups.over_quota:
        was = "was" if over == 1 else "were"
        yield f"{counted(over, 'new key')} {was} over the caller's quota, and not queued"


def _of_new_keys(seen: Seen) -> Iterable[str]:
    if _is_lasting(seen, "new", _MANY_NEW):
        yield (
            f"{seen.lookups.new / seen.lookups.keys:.0%} of the keys are new: an archive pays off only where "
            "keys repeat; does the key contain something that changes with each request?"
        )


def _of_filling(seen: Seen) -> Iterable[str]:
    if seen.depth is None or not seen.depth.messages:
        return
    waiting, oldest = seen.depth.messages, seen.depth.oldest_seconds
    wait = f"{counted(waiting, 'key')} {'waits' if waiting == 1 else 'wait'}, the oldest for {oldest:,.0f} s"
    was_missed = seen.lookups.new or seen.lookups.again  # else the keys may all be from other spaces
    was_filled = seen.fills.filled or seen.fills.dead or seen.fills.there
    if not seen.fillers:
        if was_missed and oldest >= _UNATTENDED_SECONDS:
            yield f"{wait}, and no process fills this space: is headrace archive fill running?"
    elif was_missed and not was_filled and oldest >= _STUCK_SECONDS:
        yield f"{wait}, and nothing was filled in the last {seen.seconds:.0f} s: check the fillers' logs"
    elif oldest > _LONG_SECONDS:
        yield (
            f"the oldest key has waited for {oldest:,.0f} s: new keys arrive faster than they are filled; "
            "start more fillers, or decide which keys are worth a vector"
        )


def _of_delay(settings: SpaceSettings, seen: Seen) -> Iterable[str]:
    if seen.fills.filled < ENOUGH_VECTORS:
        return
    late = seen.fills.late_seconds / seen.fills.filled
    if settings.ttl_seconds and late > settings.ttl_seconds / 10:
        yield (
            f"vectors arrive {late:,.0f} s late and expire after {settings.ttl_seconds:,.0f} s: late vectors "
            "serve few lookups"
        )


def _of_missing(settings: SpaceSettings, seen: Seen) -> Iterable[str]:
    if not _is_lasting(seen, "missing", _MANY_MISSING):
        return
    lacking = f"{seen.lookups.missing / seen.lookups.keys:.0%} of the keys have no"
    waiting = seen.depth.messages if seen.depth is not None else 0
    wait = "waits" if waiting == 1 else "wait"
    if settings.is_table:
        yield f"{lacking} row: is the table loaded, and are these its keys?"
    elif not settings.embedder:
        yield f"{lacking} vector, and no embedder makes any: are these the keys that were put?"
    elif seen.lookups.new > _MANY_NEW * seen.lookups.keys:
        return  # already reported for new keys
    elif waiting:
        yield f"{lacking} vector, though few are new: {counted(waiting, 'key')} {wait} in the queue"
    elif seen.dead_letters:
        letters = counted(seen.dead_letters, "dead letter")
        yield f"{lacking} vector, though few are new: there are {letters}; headrace archive dead-letters list"


def _is_lasting(seen: Seen, what: str, share: float) -> bool:
    """Return whether a count exceeds a share of the keys, on enough evidence and in the last seconds too."""
    lookups, lately = seen.lookups, seen.lately
    is_enough = lookups.keys >= ENOUGH_KEYS and seen.slices >= ENOUGH_SLICES
    if not is_enough or getattr(lookups, what) <= share * lookups.keys:
        return False
    return bool(lately.keys >= ENOUGH_LATELY and getattr(lately, what) > share * lately.keys)


def _is_late(counts: Counts) -> bool:
    return counts.lookups >= ENOUGH_LATELY and counts.late > _MANY_LATE * counts.lookups
