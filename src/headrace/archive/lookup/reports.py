"""Reports of an archive's processes. Each process writes its own to the store about once a second.

Counts are reported in slices of ten seconds of Unix time, so that those of several processes can be added,
however long each has run. Reported are lookups, the filling of spaces, and a model's inputs from the archive.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TypeVar

import msgspec

from headrace.archive.lookup.space_reader import Counts
from headrace.base.errors import Unavailable
from headrace.storage.stores.store import Item, Store, pages

PARTITION = "reports"
"""Store partition of the reports."""

SLICE_SECONDS = 10
"""Length of a slice."""

SLICES = 7
"""Maximum number of slices in a report: a minute and the present one. Slices without counts are left out."""

_RECENT_SECONDS = 60.0
"""Age of its last report after which a process counts as gone."""

_EVERY_SECONDS = 1.0
_QUIET_SECONDS = 5.0  # interval while nothing changes
_KEPT_SECONDS = 300.0
_ROOM_BYTES = 2**16  # about a batch of vectors; a smaller value may still fit into a full file


@dataclass(slots=True)
class FillCounts:
    """Counts of filling one space since the process started.

    Attributes:
        filled: Number of vectors made and stored.
        there: Number of keys that already had a vector.
        dead: Number of keys that became dead letters.
        late_seconds: Total time from queueing to storing, of all filled keys.
    """

    filled: int = 0
    there: int = 0
    dead: int = 0
    late_seconds: float = 0.0


@dataclass(frozen=True)
class Counted:
    """Counts of the rows of one input of a model from the archive.

    Attributes:
        keys: Number of rows with a key.
        found: Number of these that got a value.
        too_old: Number of these whose value was older than allowed.
    """

    keys: int
    found: int
    too_old: int


class InputTotals:
    """Totals of one input of a model since the process started, for all versions of the model.

    Attributes:
        keys: Number of rows with a key.
        found: Number of these that got a value.
        too_old: Number of these whose value was older than allowed.
    """

    __slots__ = ("_turn", "found", "keys", "too_old")

    def __init__(self) -> None:
        """Start at zero."""
        self.keys = self.found = self.too_old = 0
        self._turn = threading.Lock()

    def add(self, counted: Counted) -> None:
        """Add the counts of a batch, from any thread."""
        with self._turn:
            self.keys += counted.keys
            self.found += counted.found
            self.too_old += counted.too_old


_CountsT = TypeVar("_CountsT", Counts, FillCounts)


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one process in ten seconds; spaces without any are left out.

    Attributes:
        number: Number of the slice: its start in Unix time, divided by its length.
        lookups: Lookup counts, by space.
        fills: Filling counts, by space.
    """

    number: int
    lookups: dict[str, Counts]
    fills: dict[str, FillCounts]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Recent activity of one process.

    Attributes:
        instance: Name of the process: its host, its process id, and a random part.
        written: Time of the report in seconds of Unix time.
        slices: Counts, the newest last.
        spaces: Spaces that it looks up in.
        filled_spaces: Spaces that it fills.
        troubles: Reasons why it currently waits.
        is_over: Whether this is its last report.
    """

    instance: str
    written: float
    slices: tuple[Slice, ...]
    spaces: tuple[str, ...] = ()
    filled_spaces: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()
    is_over: bool = False


class Reporter:
    """Writes the reports of one process."""

    def __init__(
        self,
        store: Store,
        lookups: Mapping[str, Counts],
        fills: Mapping[str, FillCounts],
        troubles: dict[object, str],
    ) -> None:
        """Report counts that are updated elsewhere.

        Args:
            store: Store to write to.
            lookups: Lookup counts by space, which keep changing.
            fills: Filling counts by space, which keep changing.
            troubles: Reasons why the process waits, by the waiting object.
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
        """Write a report if one is due: soon after a change, else at longer intervals.

        Args:
            is_over: Whether this is the last report, which is due at once if there is anything to report.

        Raises:
            Unavailable: The store does not answer.
        """
        now = time.monotonic()
        if now < self._due and not is_over:
            return
        self._due = now + _EVERY_SECONDS
        report = self._made(is_over)
        if is_over and not (report.slices or self._told.instance):
            return  # the archive was open for a moment only, and has counted nothing
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
        """Add what was counted since the last call to the present slice."""
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
                lookups=sums_by_space(before.lookups, made.lookups),
                fills=sums_by_space(before.fills, made.fills),
            )
        self._slices.append(made)


def _since(now: Mapping[str, _CountsT], before: Mapping[str, _CountsT]) -> dict[str, _CountsT]:
    """Return the counts since an earlier state, for the spaces that have any."""
    found: dict[str, _CountsT] = {}
    for space, counts in now.items():
        then = asdict(before[space]) if space in before else {}
        new = {name: value - then.get(name, 0) for name, value in asdict(counts).items()}
        if any(new.values()):
            found[space] = type(counts)(**new)
    return found


def sums_by_space(one: Mapping[str, _CountsT], other: Mapping[str, _CountsT]) -> dict[str, _CountsT]:
    """Return the sums of counts by space."""
    found = dict(one)
    for space, counts in other.items():
        found[space] = sum_of(found[space], counts) if space in found else counts
    return found


def sum_of(one: _CountsT, other: _CountsT) -> _CountsT:
    """Return the sum of two counts."""
    further = asdict(other)
    return type(one)(**{name: value + further[name] for name, value in asdict(one).items()})


def refusal(store: Store) -> str:
    """Return the reason why a store accepts no writes, such as a full disk; "" if it does."""
    try:
        store.create(PARTITION)
        store.put_many(PARTITION, [Item(b"room", bytes(_ROOM_BYTES))], _RECENT_SECONDS)
    except Unavailable as error:
        return error.message
    return ""


def reports(store: Store) -> Iterator[Report]:
    """Yield the recent reports of all processes.

    Raises:
        Unavailable: The store does not answer.
    """
    oldest = time.time_ns() / 1e9 - _RECENT_SECONDS
    seen: set[bytes] = set()
    for page in pages(store, PARTITION):
        keys = [key for key in page.keys if key not in seen]
        seen.update(keys)
        for value in store.get_many(PARTITION, keys):
            try:
                report = msgspec.json.decode(value, type=Report)
            except (msgspec.MsgspecError, UnicodeDecodeError):  # expired, or written by another release
                continue
            if report.written >= oldest:
                yield report
