"""Status of an archive, with warnings: mostly about spaces where an archive does not pay off.

Known values are returned even if the store or the queue does not answer.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

import msgspec

from headrace.archive.filling.backfill import is_done
from headrace.archive.lookup.dead_letter_records import DeadLetters
from headrace.archive.lookup.reports import (
    SLICE_SECONDS,
    SLICES,
    FillCounts,
    Report,
    refusal,
    reports,
    sum_of,
)
from headrace.archive.lookup.space_reader import Counts
from headrace.archive.model.archive_toml import ArchiveConfig, SpaceSettings
from headrace.archive.model.catalog import Catalog, SpaceRecord
from headrace.base.errors import ConfigError, HeadraceError
from headrace.base.terminal import counted
from headrace.storage.queues.queue import Depth, Held, Queue, TellsHeld
from headrace.storage.stores.store import Store

# An archive assumes that keys repeat, that few are new, and that a late vector is still useful. Warnings say
# where this does not hold, and report other faults. They are pure functions of what was observed. A share is
# judged only on enough evidence: a minimum number of keys, over half a minute, and still in the last seconds.
# So a new archive, in which every key misses at first, causes no warning.

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


_LETTERS_SECONDS = 5.0  # limit for counting dead letters, of which there may be millions
_NEWEST = 2

_ToldT = TypeVar("_ToldT")


class SpaceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One space, as seen by all processes in the last minute.

    Attributes:
        space: Name of the space.
        version: The default version; 0 if there is none.
        versions: All versions.
        processes: Number of running processes that have the space open.
        fillers: Number of these that fill it.
        keys: Number of keys looked up.
        keys_per_second: Rate of keys looked up.
        hit_rate: Share of keys with a vector; None without lookups.
        cached_rate: Share of keys answered from memory; None without lookups.
        missing_rate: Share of keys answered with the OOV vector; None without lookups.
        new_rate: Share of keys never looked up before, as far as known; None without lookups.
        new_per_second: Rate of new keys.
        filled_per_second: Rate of vectors made.
        dead_per_second: Rate of dead letters.
        late_seconds: Average time from queueing a key to storing its vector; None if none were made.
        warnings: Assumptions that do not hold, and other faults.
    """

    space: str
    version: int = 0
    versions: tuple[int, ...] = ()
    processes: int = 0
    fillers: int = 0
    keys: int = 0
    keys_per_second: float = 0.0
    hit_rate: float | None = None
    cached_rate: float | None = None
    missing_rate: float | None = None
    new_rate: float | None = None
    new_per_second: float = 0.0
    filled_per_second: float = 0.0
    dead_per_second: float = 0.0
    late_seconds: float | None = None
    warnings: tuple[str, ...] = ()


class Silence(msgspec.Struct, frozen=True):
    """A part that did not answer, or not as expected.

    Attributes:
        part: Name of the part: the store or the queue.
        reason: Reason.
    """

    part: str
    reason: str


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Status of an archive; values that are unknown because a part does not answer are None.

    Attributes:
        seconds: Time span of the spaces' numbers: a minute, and the elapsed part of ten seconds more.
        queue_messages: Number of keys that wait to be embedded, or are being embedded.
        queue_oldest_seconds: Age of the oldest of them.
        queue_held: Number of them that fillers have received; None also if the queue cannot report it.
        queue_silent: Number of these held by fillers that have been silent for long.
        dead_letters: Number of dead letters.
        are_more_dead_letters: Whether there are more than could be counted in five seconds.
        spaces: Each space; without numbers if the store does not answer.
        warnings: Reasons why processes wait, silent fillers, and a store that refuses writes.
        unanswered: Parts that did not answer.
    """

    seconds: float
    queue_messages: int | None = None
    queue_oldest_seconds: float | None = None
    queue_held: int | None = None
    queue_silent: int | None = None
    dead_letters: int | None = None
    are_more_dead_letters: bool = False
    spaces: tuple[SpaceStatus, ...] = ()
    warnings: tuple[str, ...] = ()
    unanswered: tuple[Silence, ...] = ()


def look(config: ArchiveConfig, open_store: Callable[[], Store], open_queue: Callable[[], Queue]) -> Status:
    """Return the status of an archive; a part is not asked again after its first failure.

    Args:
        config: Settings of the archive.
        open_store: Returns the store.
        open_queue: Returns the queue.

    Raises:
        ConfigError: Something that the settings name can never be opened.
    """
    silent: list[Silence] = []
    depth, held = _asked(silent, "queue", lambda: _waits(open_queue())) or (None, None)
    now = time.time_ns() / 1e9
    nothing = tuple(SpaceStatus(space=name) for name in config.spaces)
    status = Status(seconds=round(_seconds(now), 1), spaces=nothing)
    store_told = _asked(silent, "store", lambda: _of_store(config, open_store(), depth, now))
    if store_told is not None:
        status = msgspec.structs.replace(store_told, seconds=status.seconds)
    if depth is not None:
        status = msgspec.structs.replace(
            status, queue_messages=depth.messages, queue_oldest_seconds=depth.oldest_seconds
        )
    if held is not None:
        status = msgspec.structs.replace(
            status,
            queue_held=held.messages,
            queue_silent=held.silent,
            warnings=(*status.warnings, *_silent_fillers(held)),
        )
    return msgspec.structs.replace(status, unanswered=tuple(silent))


def _asked(silent: list[Silence], part: str, ask: Callable[[], _ToldT]) -> _ToldT | None:
    try:
        return ask()
    except ConfigError:
        raise
    except HeadraceError as error:
        silent.append(Silence(part, error.message))
        return None


def _waits(queue: Queue) -> tuple[Depth, Held | None]:
    return queue.depth(), queue.held() if isinstance(queue, TellsHeld) else None


def _of_store(config: ArchiveConfig, store: Store, depth: Depth | None, now: float) -> Status:
    """Return the status from what the store contains."""
    catalog, told = Catalog(store), list(reports(store))
    records = {name: catalog.read(name) for name in config.spaces}
    letters, are_more = _dead_letters(store)
    spaces = []
    for name, settings in config.spaces.items():
        record = records[name]
        status, seen = of_space(name, told, now)
        seen = seen._replace(depth=depth, dead_letters=letters[name])
        found = (*warnings(settings, seen), *_waiting(store, name, record))
        numbers = tuple(one.number for one in record.versions)
        spaces.append(
            msgspec.structs.replace(status, version=record.default, versions=numbers, warnings=found)
        )
    return Status(
        seconds=0.0,
        dead_letters=letters.total(),
        are_more_dead_letters=are_more,
        spaces=tuple(spaces),
        warnings=tuple(_troubles(told, refusal(store))),
    )


def _dead_letters(store: Store) -> tuple[Counter[str], bool]:
    """Return the number of dead letters by space, and whether counting ran out of time."""
    letters: Counter[str] = Counter()
    end = time.monotonic() + _LETTERS_SECONDS
    for letter in DeadLetters(store).all():
        letters[letter.space] += 1
        if time.monotonic() > end:
            return letters, True
    return letters, False


def _waiting(store: Store, space: str, record: SpaceRecord) -> Iterable[str]:
    """Yield a warning if a newer version waits to be filled."""
    newest = record.versions[-1] if record.versions else None
    if newest is None or newest.columns or newest.number <= record.default or newest.is_full:
        return
    if not is_done(store, space, record.default, newest.number):
        yield (
            f"version {newest.number} is of a newer encoder and lacks keys of version {record.default}, "
            f"which stays the default until they are filled: headrace archive backfill {space}"
        )


def _troubles(told: Iterable[Report], refused: str) -> Iterable[str]:
    if refused:
        yield f"the store accepts no writes: {refused}"
    waiting = Counter(trouble for report in told for trouble in report.troubles)
    for trouble, processes in waiting.items():
        yield f"{processes} {'process waits' if processes == 1 else 'processes wait'}: {trouble}"


def _silent_fillers(held: Held) -> Iterable[str]:
    if not held.silent:
        return
    are = "key is" if held.silent == 1 else "keys are"
    others = f"others get {'it' if held.silent == 1 else 'them'}"
    then = f"{others} in {held.until_seconds:.0f} s" if held.until_seconds > 0 else f"{others} when they ask"
    yield (
        f"{held.silent:,} {are} with a filler that has been silent for {held.silent_seconds:.0f} s (was it "
        f"killed or stopped?): {then}"
    )


def of_space(name: str, told: Iterable[Report], now: float) -> tuple[SpaceStatus, Seen]:
    """Return what processes have reported of one space, added up; other fields keep their defaults.

    Args:
        name: Name of the space.
        told: The reports.
        now: Current time in seconds of Unix time.
    """
    newest = int(now // SLICE_SECONDS)
    lookups, lately, fills = Counts(), Counts(), FillCounts()
    active: set[int] = set()
    processes = fillers = 0
    for report in told:
        is_filler = name in report.filled_spaces
        processes += not report.is_over and (is_filler or name in report.spaces)
        fillers += not report.is_over and is_filler
        for part in report.slices:
            if part.number <= newest - SLICES:
                continue
            if name in part.lookups:
                lookups = sum_of(lookups, part.lookups[name])
                active.add(part.number)
                if part.number > newest - _NEWEST:
                    lately = sum_of(lately, part.lookups[name])
            if name in part.fills:
                fills = sum_of(fills, part.fills[name])
    keys, seconds = lookups.keys, _seconds(now)
    status = SpaceStatus(
        space=name,
        processes=processes,
        fillers=fillers,
        keys=keys,
        keys_per_second=keys / seconds,
        hit_rate=_share(lookups.cached + lookups.stored, keys),
        cached_rate=_share(lookups.cached, keys),
        missing_rate=_share(lookups.missing, keys),
        new_rate=_share(lookups.new, keys),
        new_per_second=lookups.new / seconds,
        filled_per_second=fills.filled / seconds,
        dead_per_second=fills.dead / seconds,
        late_seconds=_share(fills.late_seconds, fills.filled),
    )
    return status, Seen(seconds, lookups, lately, len(active), fills, fillers)


def _seconds(now: float) -> float:
    """Return the time span of the slices that count now."""
    return now - (now // SLICE_SECONDS - SLICES + 1) * SLICE_SECONDS


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
