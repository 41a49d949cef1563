"""Whether an archive pays: keys repeat, a late vector is worth having, new keys are few."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import msgspec

from headrace.archive.archive import Archive
from headrace.archive.backfilling import is_done
from headrace.archive.catalog import SpaceRecord
from headrace.archive.config import SpaceSettings
from headrace.archive.fill_counts import FillCounts
from headrace.archive.looking import Counts
from headrace.archive.reports import Report, refusal, reports
from headrace.queues.queue import Depth

_FEW_KEYS = 100  # fewer say nothing about rates
_MANY_NEW = 0.2
_MANY_MISSING = 0.5
_LONG_SECONDS = 600.0


class SpaceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One space, as all processes together have seen it in the last minute.

    Attributes:
        space: Its name.
        version: The default version; 0 if there is none.
        versions: All that there are.
        processes: How many look up in it or fill it, and have not ended.
        keys_per_second: How many keys are looked up.
        hit_rate: Which share of them has a vector; None where none were looked up.
        cached_rate: Which share is answered from memory.
        missing_rate: Which share is answered with the out-of-vocabulary vector.
        new_rate: Which share was never asked for before, as far as is known.
        new_per_second: How many new keys come.
        filled_per_second: How many vectors are made.
        dead_per_second: How many become dead letters.
        late_seconds: How long a vector takes from the first miss to the store, on average; None where none
            were made.
        warnings: Which assumptions do not hold.
    """

    space: str
    version: int
    versions: tuple[int, ...]
    processes: int
    keys_per_second: float
    hit_rate: float | None
    cached_rate: float | None
    missing_rate: float | None
    new_rate: float | None
    new_per_second: float
    filled_per_second: float
    dead_per_second: float
    late_seconds: float | None
    warnings: tuple[str, ...]


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """An archive.

    Attributes:
        queue_messages: How many keys wait to be embedded, or are being embedded.
        queue_oldest_seconds: How long the oldest of them has waited.
        dead_letters: How many keys could not be embedded.
        spaces: Each space.
        warnings: What processes wait for, and whether the store takes anything.
    """

    queue_messages: int
    queue_oldest_seconds: float
    dead_letters: int
    spaces: tuple[SpaceStatus, ...]
    warnings: tuple[str, ...] = ()


def look(archive: Archive) -> Status:
    """How an archive fares.

    Raises:
        Unavailable: The store or the queue does not answer.
    """
    depth = archive.queue.depth()
    told = list(reports(archive.store))
    spaces = []
    for name, settings in archive.config.spaces.items():
        record = archive.catalog.read(name)
        status = of_space(name, settings, told, depth)
        spaces.append(
            msgspec.structs.replace(
                status,
                version=record.default,
                versions=tuple(one.number for one in record.versions),
                warnings=(*status.warnings, *_waiting(archive, name, record)),
            )
        )
    return Status(
        queue_messages=depth.messages,
        queue_oldest_seconds=depth.oldest_seconds,
        dead_letters=sum(1 for _ in archive.dead_letters.all()),
        spaces=tuple(spaces),
        warnings=tuple(_troubles(told, refusal(archive.store))),
    )


def _waiting(archive: Archive, space: str, record: SpaceRecord) -> Iterable[str]:
    """Whether a newer version waits until somebody fills it."""
    newest = record.versions[-1] if record.versions else None
    if newest is None or newest.columns or newest.number <= record.default or newest.is_full:
        return
    if not is_done(archive.store, space, record.default, newest.number):
        yield (
            f"version {newest.number} is of a newer encoder and awaits the keys of version {record.default}, "
            f"which answers until then: headrace archive backfill {space}"
        )


def _troubles(told: Iterable[Report], refused: str) -> Iterable[str]:
    if refused:
        yield f"the store takes nothing: {refused}"
    waiting = Counter(trouble for report in told for trouble in report.troubles)
    for trouble, processes in waiting.items():
        yield f"{processes} {'process waits' if processes == 1 else 'processes wait'}: {trouble}"


def of_space(name: str, settings: SpaceSettings, told: Iterable[Report], depth: Depth) -> SpaceStatus:
    """What processes have told of one space, together; its versions are left out."""
    lookups, fills, processes = Counts(), FillCounts(), 0
    rates: dict[str, float] = dict.fromkeys(("keys", "new", "filled", "dead"), 0.0)
    for report in told:
        looked, filled = report.recent_lookups.get(name), report.recent_fills.get(name)
        processes += not report.is_over and (looked is not None or filled is not None)
        if looked is not None:
            lookups = _more(lookups, looked)
            rates["keys"] += _rate(looked.keys, report.seconds)
            rates["new"] += _rate(looked.new, report.seconds)
        if filled is not None:
            fills = _more(fills, filled)
            rates["filled"] += _rate(filled.filled, report.seconds)
            rates["dead"] += _rate(filled.dead, report.seconds)
    keys = lookups.keys
    return SpaceStatus(
        space=name,
        version=0,
        versions=(),
        processes=processes,
        keys_per_second=rates["keys"],
        hit_rate=_share(lookups.cached + lookups.stored, keys),
        cached_rate=_share(lookups.cached, keys),
        missing_rate=_share(lookups.missing, keys),
        new_rate=_share(lookups.new, keys),
        new_per_second=rates["new"],
        filled_per_second=rates["filled"],
        dead_per_second=rates["dead"],
        late_seconds=_share(fills.late_seconds, fills.filled),
        warnings=tuple(_warnings(settings, lookups, fills, depth)),
    )


def _warnings(settings: SpaceSettings, lookups: Counts, fills: FillCounts, depth: Depth) -> Iterable[str]:
    """Which of the three assumptions under which an archive pays do not hold."""
    keys = lookups.keys
    if keys >= _FEW_KEYS and lookups.new > _MANY_NEW * keys:
        yield (
            f"{lookups.new / keys:.0%} of the keys were never asked for before: an archive pays where keys "
            "repeat; is something in the key that changes with each request?"
        )
    if (lookups.new or lookups.again) and depth.messages and not (fills.filled or fills.dead or fills.there):
        yield (
            f"{depth.messages} keys wait, the oldest for {depth.oldest_seconds:.0f} s, and nothing was "
            "filled in the last minute: is headrace archive fill running?"
        )
    elif settings.embedder and depth.oldest_seconds > _LONG_SECONDS:
        yield (
            f"the oldest key has waited for {depth.oldest_seconds:.0f} s: new keys come faster than they are "
            "filled; start more fillers, or see which keys are worth a vector"
        )
    late = fills.late_seconds / fills.filled if fills.filled else 0.0
    if settings.ttl_seconds and late > settings.ttl_seconds / 10:
        yield (
            f"vectors come {late:.0f} s late and live for {settings.ttl_seconds:.0f} s: a late vector is "
            "hardly worth having"
        )
    is_lacking = keys >= _FEW_KEYS and lookups.missing > _MANY_MISSING * keys
    if is_lacking and settings.is_table:
        yield (
            f"{lookups.missing / keys:.0%} of the keys have no row: is the table loaded, and are these its "
            "keys?"
        )
    elif is_lacking and lookups.new <= _MANY_NEW * keys:
        yield (
            f"{lookups.missing / keys:.0%} of the keys have no vector, though few are new: they wait in the "
            "queue, are dead letters, or the store does not answer"
        )
    if keys >= _FEW_KEYS and lookups.late > 0.01 * lookups.lookups:
        share = lookups.late / lookups.lookups
        yield f"{share:.0%} of the lookups did not wait for the store: it is slow or down"
    if lookups.damaged:
        yield f"{lookups.damaged} values of the store were no vectors of this space; who else writes there?"
    if lookups.over_quota:
        yield f"{lookups.over_quota} new keys were over their caller's quota, and not queued"


def _more(one: Counts | FillCounts, other: Counts | FillCounts) -> Any:
    further = asdict(other)
    return type(one)(**{name: value + further[name] for name, value in asdict(one).items()})


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
