"""How an archive's processes fare: each tells it in the store every few seconds; one look sees them all."""

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

EVERY_SECONDS = 5.0
"""How often a process reports."""

RECENT_SECONDS = 60.0
"""What rates are taken over; a process that has been silent for as long is gone."""

_KEPT_SECONDS = 3600.0
_ROOM_BYTES = 2**16  # about what a batch of vectors takes: less may find a place in a full file

_CountsT = TypeVar("_CountsT", Counts, FillCounts)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What one process has done.

    Attributes:
        instance: The process: its machine, its number, and what tells it from others of that number.
        written: When it said so, in seconds of Unix time.
        seconds: How much time ``recent_lookups`` and ``recent_fills`` are of.
        lookups: What its lookups came to since it began, by space.
        fills: The same of its filling.
        recent_lookups: What its lookups came to lately.
        recent_fills: The same of its filling.
        troubles: What it waits for at present.
        is_over: Whether this is the last that it says.
    """

    instance: str
    written: float
    seconds: float
    lookups: dict[str, Counts]
    fills: dict[str, FillCounts]
    recent_lookups: dict[str, Counts]
    recent_fills: dict[str, FillCounts]
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
        self._before: deque[tuple[float, dict[str, Counts], dict[str, FillCounts]]] = deque()
        self._before.append((time.monotonic(), {}, {}))
        self._due = 0.0

    def report(self, *, is_over: bool = False) -> None:
        """Report, if it is time.

        Args:
            is_over: Whether this is the last time: then it is time in any case.

        Raises:
            Unavailable: The store does not answer.
        """
        now = time.monotonic()
        if now < self._due and not is_over:
            return
        self._due = now + EVERY_SECONDS
        lookups = {space: Counts(**asdict(one)) for space, one in self._lookups.items()}
        fills = {space: FillCounts(**asdict(one)) for space, one in list(self._fills.items())}
        while len(self._before) > 1 and now - self._before[0][0] > RECENT_SECONDS:
            self._before.popleft()
        since, lookups_then, fills_then = self._before[0]
        self._before.append((now, lookups, fills))
        report = Report(
            instance=self._instance,
            written=time.time_ns() / 1e9,
            seconds=now - since,
            lookups=lookups,
            fills=fills,
            recent_lookups={space: _less(one, lookups_then.get(space)) for space, one in lookups.items()},
            recent_fills={space: _less(one, fills_then.get(space)) for space, one in fills.items()},
            troubles=tuple(sorted(set(self._troubles.copy().values()))) if self._troubles else (),
            is_over=is_over,
        )
        if not self._created:
            self._store.create(PARTITION)
            self._created = True
        item = Item(self._instance.encode(), msgspec.json.encode(report))
        self._store.put_many(PARTITION, [item], _KEPT_SECONDS)


def _less(now: _CountsT, then: _CountsT | None) -> _CountsT:
    """What has been counted since then."""
    if then is None:
        return now
    before = asdict(then)
    return type(now)(**{name: value - before[name] for name, value in asdict(now).items()})


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
