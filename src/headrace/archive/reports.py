"""How an archive's processes fare: each tells it in the store every second or so; one look sees them all.

What is counted is told by slices of ten seconds of Unix time, so that those of several processes add up,
however long each of them has lived.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TypeVar

import msgspec

from headrace.archive.fill_counts import FillCounts
from headrace.archive.looking import Counts
from headrace.errors import Unavailable
from headrace.stores.store import Item, Store, pages

PARTITION = "reports"
"""Where they are in the store."""

SLICE_SECONDS = 10
"""How long a slice is."""

SLICES = 7
"""How many a process tells: the one that it is in, and those of the minute before."""

RECENT_SECONDS = 60.0
"""A process that has been silent for as long is gone."""

_EVERY_SECONDS = 1.0
_QUIET_SECONDS = 5.0  # where nothing has changed
_KEPT_SECONDS = 300.0
_ROOM_BYTES = 2**16  # about what a batch of vectors takes: less may find a place in a full file

_CountsT = TypeVar("_CountsT", Counts, FillCounts)


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """What one process has counted in ten seconds; spaces without any are left out.

    Attributes:
        number: Which: its start in Unix time, divided by its length.
        lookups: What lookups came to, by space.
        fills: What filling came to, by space.
    """

    number: int
    lookups: dict[str, Counts]
    fills: dict[str, FillCounts]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What one process has done lately.

    Attributes:
        instance: The process: its machine, its number, and what tells it from others of that number.
        written: When it said so, in seconds of Unix time.
        slices: What it has counted, the newest last.
        spaces: What it looks up in.
        filled_spaces: What it fills.
        troubles: What it waits for at present.
        is_over: Whether this is the last that it says.
    """

    instance: str
    written: float
    slices: tuple[Slice, ...]
    spaces: tuple[str, ...] = ()
    filled_spaces: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()
    is_over: bool = False


class Reporter:
    """Writes one process's reports."""

    def __init__(
        self,
        store: Store,
        lookups: Mapping[str, Counts],
        fills: Mapping[str, FillCounts],
        troubles: dict[object, str],
    ) -> None:
        """Report what is counted elsewhere.

        Args:
            store: Where to.
            lookups: By space; they go on counting.
            fills: The same.
            troubles: What the process waits for, by who waits.
        """
        self._store = store
        self._lookups, self._fills, self._troubles = lookups, fills, troubles
        self._instance = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._created = False
        self._slices: deque[Slice] = deque(maxlen=SLICES)
        self._lookups_before: dict[str, Counts] = {}
        self._fills_before: dict[str, FillCounts] = {}
        self._due, self._quiet_until, self._told = 0.0, 0.0, Report(instance="", written=0.0, slices=())

    def report(self, *, is_over: bool = False) -> None:
        """Report, if it is time: soon if something has changed, else now and then.

        Args:
            is_over: Whether this is the last time: then it is time in any case, if there is anything to tell.

        Raises:
            Unavailable: The store does not answer.
        """
        now = time.monotonic()
        if now < self._due and not is_over:
            return
        self._due = now + _EVERY_SECONDS
        report = self._made(is_over)
        if is_over and not (report.slices or self._told.instance):
            return  # it was opened for a moment, and has counted nothing
        is_same = msgspec.structs.replace(report, written=self._told.written) == self._told
        if is_same and now < self._quiet_until:
            return
        if not self._created:
            self._store.create(PARTITION)
            self._created = True
        item = Item(self._instance.encode(), msgspec.json.encode(report))
        self._store.put_many(PARTITION, [item], _KEPT_SECONDS)
        self._told, self._quiet_until = report, now + _QUIET_SECONDS

    def _made(self, is_over: bool) -> Report:
        written = time.time_ns() / 1e9
        self._count(int(written // SLICE_SECONDS))
        fills = tuple(self._fills)
        return Report(
            instance=self._instance,
            written=written,
            slices=tuple(self._slices),
            spaces=tuple(self._lookups),
            filled_spaces=fills,
            troubles=tuple(sorted(set(self._troubles.copy().values()))) if self._troubles else (),
            is_over=is_over,
        )

    def _count(self, number: int) -> None:
        """Add what has been counted since the last time to the slice that it is now."""
        lookups = {space: Counts(**asdict(one)) for space, one in list(self._lookups.items())}
        fills = {space: FillCounts(**asdict(one)) for space, one in list(self._fills.items())}
        made = Slice(
            number=number,
            lookups=_since(lookups, self._lookups_before),
            fills=_since(fills, self._fills_before),
        )
        self._lookups_before, self._fills_before = lookups, fills
        if not (made.lookups or made.fills):
            return
        if self._slices and self._slices[-1].number == number:
            before = self._slices.pop()
            made = Slice(
                number=number,
                lookups=together(before.lookups, made.lookups),
                fills=together(before.fills, made.fills),
            )
        self._slices.append(made)


def _since(now: Mapping[str, _CountsT], before: Mapping[str, _CountsT]) -> dict[str, _CountsT]:
    """What has been counted since then, where anything has."""
    found: dict[str, _CountsT] = {}
    for space, counts in now.items():
        then = asdict(before[space]) if space in before else {}
        new = {name: value - then.get(name, 0) for name, value in asdict(counts).items()}
        if any(new.values()):
            found[space] = type(counts)(**new)
    return found


def together(one: Mapping[str, _CountsT], other: Mapping[str, _CountsT]) -> dict[str, _CountsT]:
    """Sums by space."""
    found = dict(one)
    for space, counts in other.items():
        found[space] = added(found[space], counts) if space in found else counts
    return found


def added(one: _CountsT, other: _CountsT) -> _CountsT:
    """The sum of two counts."""
    further = asdict(other)
    return type(one)(**{name: value + further[name] for name, value in asdict(one).items()})


def refusal(store: Store) -> str:
    """Why a store takes nothing now, as when its disk is full; "" if it does."""
    try:
        store.create(PARTITION)
        store.put_many(PARTITION, [Item(b"room", bytes(_ROOM_BYTES))], RECENT_SECONDS)
    except Unavailable as error:
        return error.message
    return ""


def reports(store: Store) -> Iterator[Report]:
    """What processes have told lately.

    Raises:
        Unavailable: The store does not answer.
    """
    oldest = time.time_ns() / 1e9 - RECENT_SECONDS
    seen: set[bytes] = set()
    for page in pages(store, PARTITION):
        keys = [key for key in page.keys if key not in seen]
        seen.update(keys)
        for value in store.get_many(PARTITION, keys):
            try:
                report = msgspec.json.decode(value, type=Report)
            except (msgspec.MsgspecError, UnicodeDecodeError):  # gone, or told by another release
                continue
            if report.written >= oldest:
                yield report
