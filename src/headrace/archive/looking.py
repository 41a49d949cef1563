"""Looking keys up in one space version: in memory, then in the store; what is missing is queued."""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from headrace.archive.cache import Cache
from headrace.archive.catalog import SpaceVersion, partition
from headrace.archive.columns import Column, column_values, values_of
from headrace.archive.config import CacheSettings, SpaceSettings
from headrace.archive.keys import all_stored, checked
from headrace.archive.oov import oov_vector
from headrace.archive.publishing import Publisher, Wanted
from headrace.archive.quotas import Quota
from headrace.archive.reading import Place, Reads, Values
from headrace.archive.records import joined
from headrace.clock import unix_milliseconds
from headrace.errors import InvalidRequest, Unavailable
from headrace.stores.store import LONGEST_KEY_BYTES, InPlace, Store
from headrace.tensors import Array

_log = logging.getLogger(__name__)

_MILLISECONDS = 1000
_TOLD_EVERY_SECONDS = 60.0


@dataclass(slots=True)
class Counts:
    """What the lookups of one space came to, since the process began.

    Attributes:
        lookups: How many there were.
        keys: How many keys they had.
        cached: How many of those were in memory.
        stored: How many were in the store.
        missing: How many were answered with the out-of-vocabulary vector.
        new: How many were handed on to be queued, for the first time as far as this process knows.
        again: How many were handed on again, as they had no vector when that was due.
        over_quota: How many were not, as their caller has had its share.
        late: How many lookups did not wait for the store to the end, or did not ask it.
        damaged: How many values of the store were no vectors of this space version.
    """

    lookups: int = 0
    keys: int = 0
    cached: int = 0
    stored: int = 0
    missing: int = 0
    new: int = 0
    again: int = 0
    over_quota: int = 0
    late: int = 0
    damaged: int = 0


@dataclass(slots=True, eq=False)
class Lookup:
    """The answer to a lookup; unpacks as ``vectors, found``.

    Attributes:
        vectors: ``[N, dimension]``, of the space's dtype (float32 for int8); the out-of-vocabulary vector
            where there is none. Of a feature table, its rows as they lie, uint8 ``[N, row bytes]``.
        written: When each was written, in milliseconds of Unix time, uint64 ``[N]``; 0 where there is none.
        version: The space version that answered.
        columns: Those of a feature table.
        oov: The out-of-vocabulary vector, ``[dimension]`` of the same dtype; not to be written to.
    """

    vectors: Array
    written: Array
    version: int
    columns: tuple[Column, ...] = ()
    oov: Array = field(kw_only=True)
    waits: list[Future[Values]] = field(default_factory=list)
    _places: list[tuple[int, Place]] = field(default_factory=list)

    @property
    def found(self) -> Array:
        """Whether each key has a vector, bool ``[N]``."""
        found: Array = self.written != 0
        return found

    def values(self) -> dict[str, Array]:
        """The values of a feature table by column, each ``[N]``: the column's default for a missing key.

        Returns:
            Numbers in their dtype, texts as objects, ``bytes`` of UTF-8.

        Raises:
            InvalidRequest: The space has vectors, and no columns.
        """
        if not self.columns:
            raise InvalidRequest("expected a feature table, got a space of vectors", field="space")
        return values_of(self.columns, self.vectors)

    def part(self, column: str, rows: slice) -> Array:
        """Some values of one column of a feature table; as ``values`` has them."""
        (one,) = (one for one in self.columns if one.name == column)
        return column_values(one, self.columns, self.vectors[rows])

    def __iter__(self) -> Iterator[Array]:
        """The vectors, then which of them were found."""
        yield self.vectors
        yield self.found


class Keys(NamedTuple):
    """Some keys of a lookup, as those who go on with them need them.

    Attributes:
        texts: The keys.
        hashes: What they go by in memory, uint64 ``[N, 2]``.
        longest: How many bytes of UTF-8 one of them has at the most.
        caller: Who asked.
    """

    texts: list[str]
    hashes: Array
    longest: int
    caller: str


class SpaceReader:
    """One space version, to be looked up in by any thread.

    Attributes:
        space: The space's name.
        version: Which version it is.
        settings: Of the space.
        counts: What lookups came to; of the space, so that versions share them.
        cache: What is in memory.
    """

    def __init__(
        self,
        space: str,
        version: SpaceVersion,
        settings: SpaceSettings,
        parts: Parts,
        counts: Counts,
        quota: Quota,
    ) -> None:
        """Begin with an empty cache.

        Args:
            space: The space's name.
            version: Which version it is.
            settings: Of the space.
            parts: What all spaces share.
            counts: Where lookups are counted.
            quota: How many new keys a caller may have queued, in all versions of the space.

        Raises:
            ConfigError: The file of the out-of-vocabulary vector is not what it should be.
        """
        self.space, self.version, self.settings, self.counts = space, version, settings, counts
        self._parts = parts
        self._form = version.form
        self._partition = partition(space, version.number)
        self.cache = Cache(self._form, parts.cache_bytes)
        self.cache.set_oov(oov_vector(settings.oov, version))
        self._quota = quota
        self._lock = threading.Lock()
        self._epoch = 0
        self._told = -_TOLD_EVERY_SECONDS

    @property
    def cache_bytes(self) -> int:
        """How much it may keep in memory."""
        return self._parts.cache_bytes

    def revise(self, version: SpaceVersion) -> None:
        """Go on with the same version as it is described now: its mean, whether it is full.

        Raises:
            ConfigError: Its mean is damaged.
        """
        self.cache.set_oov(oov_vector(self.settings.oov, version))
        self.version = version

    def begin(self, keys: Sequence[str], caller: str = "", out: Array | None = None) -> Lookup:
        """Look keys up, without waiting for a store that is elsewhere.

        Args:
            keys: Texts.
            caller: Who asks, for quotas.
            out: Where to put the vectors; a new array if there is none.

        Returns:
            The answer; to be ended with ``end`` once its ``waits`` are over, if it has any.

        Raises:
            InvalidRequest: A key is no text, empty, or too long; or there are too many.
        """
        settings, counts = self.settings, self.counts
        texts = checked(keys, settings.max_keys)
        hashes, longest = self.cache.hashed(texts, settings.max_key_bytes)
        now = _monotonic()
        found = self.cache.find(hashes, self._since(now), now, out)
        version, oov = self.version, self.cache.oov
        lookup = Lookup(found.vectors, found.written, version.number, version.columns, oov=oov)
        counts.lookups += 1
        counts.keys += len(texts)
        cached = int(np.count_nonzero(found.written))
        counts.cached += cached
        counts.missing += len(texts) - cached - len(found.asked)
        if len(found.asked) == 0:
            return lookup
        asked, some = found.asked, Keys(texts, hashes, longest, caller)
        if len(asked) < len(texts):
            some = Keys([texts[place] for place in asked.tolist()], hashes[asked], longest, caller)
        if self._parts.reads is not None:
            self._ask(lookup, asked.tolist(), some, self._parts.reads)
            return lookup
        try:
            self._read_here(lookup, asked, some)
        except Unavailable as error:
            counts.late += 1
            counts.missing += len(asked)
            self._tell(error)
        return lookup

    def _tell(self, error: Unavailable) -> None:
        """Say from time to time that what is in the store is answered as missing."""
        if (now := time.monotonic()) - self._told >= _TOLD_EVERY_SECONDS:
            self._told = now
            _log.error("the store cannot be read, so keys of %s are missing: %s", self.space, error.message)

    def end(self, lookup: Lookup, waited_seconds: float) -> Lookup:
        """Take in what the store has given by now; what it has not stays out of vocabulary.

        Args:
            lookup: From ``begin``.
            waited_seconds: How long its reads were waited for; one that has had less than is usual is not
                late.
        """
        if not lookup.waits:
            return lookup
        reads = self._parts.reads
        places, values = [], []
        is_late, count = False, 0
        for place, (read, at) in lookup._places:
            if not read.done():
                is_late = True
            elif not read.cancelled() and read.exception() is None:
                places.append(place)
                values.append(read.result()[at])
        if is_late and reads is not None:
            if waited_seconds >= reads.breaker.patience_seconds:
                reads.late(lookup.waits)
            self.counts.late += 1
        if places:
            records, count = self.cache.check(values, self._since(0)[0])
            self.cache.give(records, np.array(places, np.int32), lookup.vectors, lookup.written)
            self.counts.stored += count
        self.counts.missing += len(lookup._places) - count
        lookup.waits, lookup._places = [], []
        return lookup

    def lookup(
        self, keys: Sequence[str], timeout_seconds: float, caller: str = "", out: Array | None = None
    ) -> Lookup:
        """Look keys up, and wait for the store no longer than is usual, or than the caller has time."""
        lookup = self.begin(keys, caller, out)
        if lookup.waits:
            patience = self.patience(timeout_seconds)
            wait_for(lookup.waits, patience)
            self.end(lookup, patience)
        return lookup

    def patience(self, timeout_seconds: float) -> float:
        """How long to wait for the store, of the time that a caller has."""
        reads = self._parts.reads
        return min(timeout_seconds, reads.breaker.patience_seconds) if reads is not None else 0.0

    @property
    def epoch(self) -> int:
        """Counts how often keys were forgotten here; to be asked for before what ``took`` gets is stored."""
        return self._epoch

    def took(self, texts: Sequence[str], records: Array, epoch: int) -> None:
        """Have what was stored just now be found here.

        Args:
            texts: The keys.
            records: uint8 ``[N, record bytes]``.
            epoch: What ``epoch`` was before they were stored; if keys were forgotten since, these are not
                kept in memory.
        """
        hashes = self.cache.hashes(list(texts), self.settings.max_key_bytes)
        self.cache.put(hashes, self.cache.where(records), _monotonic(), replaces=True)
        if epoch != self._epoch:
            self.cache.remove(hashes)

    def forget(self, texts: Sequence[str]) -> None:
        """Forget keys here, and what is being read of them."""
        self._epoch += 1
        self.cache.remove(self.cache.hashes(list(texts), self.settings.max_key_bytes))

    def forget_all(self) -> None:
        """Forget all that is in memory."""
        self._epoch += 1
        self.cache.clear()

    def queued(self, texts: Sequence[str]) -> None:
        """The queue has taken these keys."""
        until = _monotonic() + int(self.settings.pending_seconds * _MILLISECONDS)
        self.cache.mark(self.cache.hashes(list(texts), self.settings.max_key_bytes), -1, until)

    def _since(self, now: int) -> tuple[int, int]:
        """The earliest times that a vector may have been written, and put in memory."""
        settings = self.settings
        written = (
            unix_milliseconds() - int(settings.ttl_seconds * _MILLISECONDS) if settings.ttl_seconds else 0
        )
        put = now - int(settings.cache_seconds * _MILLISECONDS) if settings.cache_seconds else 0
        return written, max(0, put)

    def _read_here(self, lookup: Lookup, asked: Array, some: Keys) -> None:
        """Answer with what a store on this machine has."""
        epoch = self._epoch  # before the read: what is forgotten while it goes on is not to stay
        if self._parts.in_place is not None and some.longest < LONGEST_KEY_BYTES:
            with self._parts.in_place.in_place(self._partition, some.texts) as places:
                if places is not None:
                    self._answer(lookup, asked, some, places, epoch)
                    return
        keys = all_stored(some.texts, some.longest)
        values = self._parts.store.get_many(self._partition, keys, self._form.missing)
        self._answer(lookup, asked, some, values, epoch)

    def _answer(self, lookup: Lookup, asked: Array, some: Keys, values: Values | Array, epoch: int) -> None:
        records, count = self._arrived(some, values, epoch)
        self.cache.give(records, asked, lookup.vectors, lookup.written)
        self.counts.stored += count
        self.counts.missing += len(asked) - count

    def _ask(self, lookup: Lookup, places: list[int], some: Keys, reads: Reads) -> None:
        epoch = self._epoch

        def arrived(which: Sequence[int], values: Values) -> None:
            texts = [some.texts[one] for one in which]
            part = Keys(texts, some.hashes[np.array(which)], some.longest, some.caller)
            self._arrived(part, values, epoch)

        keys = all_stored(some.texts, some.longest)
        found = reads.submit(self._partition, self._form.missing, keys, arrived)
        if not found:
            self.counts.late += 1
        self.counts.missing += len(places) - len(found)
        lookup._places = list(zip(places, found, strict=False))
        lookup.waits = list({id(place.read): place.read for place in found}.values())

    def _arrived(self, some: Keys, values: Values | Array, epoch: int) -> tuple[Array, int]:
        """Keep what a store has given, and queue what it has not.

        Args:
            some: The keys.
            values: Theirs; or where they lie, as ``InPlace`` says it.
            epoch: What it was before they were read.

        Returns:
            Where the record of each lies, int64 ``[N]``, 0 for none; and how many there are.
        """
        # A store may forget later than it was told to, and give what is over its time.
        records, count = self.cache.check(values, self._since(0)[0])
        self.cache.put(some.hashes, records, _monotonic())
        if epoch != self._epoch:  # some of them may have been forgotten meanwhile
            self.cache.remove(some.hashes)
        if count < len(records):
            rows = np.flatnonzero(records == 0)
            self._count_damaged([_value(values, row) for row in rows.tolist()])
            self._missed(some, rows)
        return records, count

    def _count_damaged(self, values: Values) -> None:
        """Count those that are neither missing nor over their time."""
        wrong = [value for value in values if value and value != self._form.missing]
        if wrong:
            found = self._form.are_records(joined(wrong, self._form))
            self.counts.damaged += len(wrong) - int(np.count_nonzero(found))

    def _missed(self, some: Keys, rows: Array) -> None:
        now = _monotonic()
        hashes = some.hashes[rows]
        self.cache.mark(hashes, now + int(self._parts.absent_seconds * _MILLISECONDS), -1)
        if not self.version.embedder:
            self.cache.mark(hashes, -1, now + int(self.settings.pending_seconds * _MILLISECONDS))
            return
        new = rows[~self.cache.queued(hashes, now)].tolist()
        with self._lock:
            taken = self._quota.take(some.caller, len(new), time.monotonic())
        self.counts.over_quota += len(new) - taken
        if taken:
            again = int(np.count_nonzero(self.cache.queued(some.hashes[new[:taken]], 0)))
            self.counts.again += again
            self.counts.new += taken - again
            number = self.version.number
            self._parts.publisher.want([Wanted(self.space, number, some.texts[row]) for row in new[:taken]])


@dataclass(frozen=True)
class Parts:
    """What the spaces of an archive share.

    Attributes:
        store: Where vectors are.
        reads: Reads it in the background; None for a store of this machine, which is read at once.
        publisher: Takes what is missing.
        cache: The settings of what is kept in memory.
        cache_bytes: How much of it is one space version's.
    """

    store: Store
    reads: Reads | None
    publisher: Publisher
    cache: CacheSettings
    cache_bytes: int

    @cached_property
    def in_place(self) -> InPlace | None:
        """The store, if it says where values lie."""
        return self.store if isinstance(self.store, InPlace) else None

    @property
    def absent_seconds(self) -> float:
        """For how long a key that the store does not have is not looked for there again."""
        return self.cache.absent_seconds


def _value(values: Values | Array, row: int) -> bytes:
    """One of what a store has given, or of what lies where it says; empty for none."""
    if isinstance(values, list):
        return values[row]
    at, size = values[row].tolist()
    return ctypes.string_at(at, size) if at else b""


def _monotonic() -> int:
    """Milliseconds of the monotonic clock."""
    return time.monotonic_ns() // 1_000_000
