"""Lookups in one space version: in memory, then in the store; misses are queued."""

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

from headrace.archive.lookup.background_reads import Place, Reads, Values
from headrace.archive.lookup.cache import Cache
from headrace.archive.lookup.miss_queue import Publisher, Quota, Wanted
from headrace.archive.model.archive_toml import CacheSettings, SpaceSettings
from headrace.archive.model.catalog import SpaceVersion, partition
from headrace.archive.model.columns import Column, column_values, values_of
from headrace.archive.model.keys import all_stored, checked
from headrace.archive.model.oov import oov_vector
from headrace.archive.model.records import joined
from headrace.base.clock import unix_milliseconds
from headrace.base.errors import InvalidRequest, Unavailable
from headrace.base.tensors import Array
from headrace.storage.stores.store import LONGEST_KEY_BYTES, InPlace, Store

_log = logging.getLogger(__name__)

_MILLISECONDS = 1000
_TOLD_EVERY_SECONDS = 60.0


@dataclass(slots=True)
class Counts:
    """Counts of the lookups in one space since the process started.

    Attributes:
        lookups: Number of lookups.
        keys: Number of keys looked up.
        cached: Number of keys found in memory.
        stored: Number of keys found in the store.
        missing: Number of keys answered with the OOV vector.
        new: Number of keys passed on to be queued for the first time, as far as this process knows.
        again: Number of keys passed on again because they still had no vector when their mark expired.
        over_quota: Number of keys not passed on because the caller exceeded its quota.
        late: Number of lookups that stopped waiting for the store, did not ask it, or could not read it.
        damaged: Number of values in the store that are not vectors of the space version.
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
    """Result of a lookup; unpacks as ``vectors, found``.

    Attributes:
        vectors: ``[N, dimension]``, in the space's dtype (float32 for int8); the OOV vector for misses.
            For a feature table, packed rows, uint8 ``[N, row bytes]``.
        written: Write times in milliseconds of Unix time, uint64 ``[N]``; 0 for misses.
        version: Number of the space version that answered.
        columns: Columns of a feature table.
        oov: The OOV vector, ``[dimension]`` of the same dtype; must not be modified.
        waits: Pending reads of the store.
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
        """Return the values of a feature table by column, each ``[N]``; the column's default for misses.

        Returns:
            Numbers in their dtype; texts as objects, ``bytes`` of UTF-8.

        Raises:
            InvalidRequest: The space is not a feature table.
        """
        if not self.columns:
            raise InvalidRequest("expected a feature table, got a space of vectors", field="space")
        return values_of(self.columns, self.vectors)

    def part(self, column: str, rows: slice) -> Array:
        """Return the values of some rows in one column of a feature table, as ``values`` does."""
        (one,) = (one for one in self.columns if one.name == column)
        return column_values(one, self.columns, self.vectors[rows])

    def __iter__(self) -> Iterator[Array]:
        """Yield the vectors, then ``found``."""
        yield self.vectors
        yield self.found


class Keys(NamedTuple):
    """Some keys of a lookup, with their hashes.

    Attributes:
        texts: The keys.
        hashes: Their hashes in the cache, uint64 ``[N, 2]``.
        longest: Upper bound of a key's length in bytes of UTF-8.
        caller: Name of the caller.
    """

    texts: list[str]
    hashes: Array
    longest: int
    caller: str


class SpaceReader:
    """Looks keys up in one space version, from any thread.

    Attributes:
        space: Name of the space.
        version: The space version.
        settings: Settings of the space.
        counts: Lookup counts of the space, shared by its versions.
        cache: Vectors in memory.
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
        """Start with an empty cache.

        Args:
            space: Name of the space.
            version: The space version.
            settings: Settings of the space.
            parts: Objects and settings shared by all spaces.
            counts: Counts to update.
            quota: Quota of new keys per caller, shared by all versions of the space.

        Raises:
            ConfigError: The file of the OOV vector is invalid.
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
        """Upper bound of the cache's size in bytes."""
        return self._parts.cache_bytes

    def revise(self, version: SpaceVersion) -> None:
        """Update the description of the version: its mean, and whether it is full.

        Raises:
            ConfigError: The mean is damaged.
        """
        self.cache.set_oov(oov_vector(self.settings.oov, version))
        self.version = version

    def begin(self, keys: Sequence[str], caller: str = "", out: Array | None = None) -> Lookup:
        """Start a lookup, without waiting for a remote store.

        Args:
            keys: The keys.
            caller: Name of the caller, for quotas.
            out: Array to write the vectors to; None allocates one.

        Returns:
            The result so far; if it has ``waits``, complete it with ``end`` after waiting for them.

        Raises:
            InvalidRequest: A key is not text, empty, or too long; or there are too many.
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
        """Log, at most once a minute, that keys are missing because the store cannot be read."""
        if (now := time.monotonic()) - self._told >= _TOLD_EVERY_SECONDS:
            self._told = now
            _log.error("the store cannot be read, so keys of %s are missing: %s", self.space, error.message)

    def end(self, lookup: Lookup, waited_seconds: float) -> Lookup:
        """Complete a lookup with the reads that have ended; the other keys are misses.

        Args:
            lookup: Result of ``begin``.
            waited_seconds: Time spent waiting for its reads. Unfinished reads are reported to the breaker
                only if this is at least its patience.

        Returns:
            The same lookup.
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
        """Look keys up; wait for the store up to the timeout or the breaker's patience, if shorter."""
        lookup = self.begin(keys, caller, out)
        if lookup.waits:
            patience = self.patience(timeout_seconds)
            wait_for(lookup.waits, patience)
            self.end(lookup, patience)
        return lookup

    def patience(self, timeout_seconds: float) -> float:
        """Return how many seconds of the caller's timeout to wait for the store."""
        reads = self._parts.reads
        return min(timeout_seconds, reads.breaker.patience_seconds) if reads is not None else 0.0

    @property
    def epoch(self) -> int:
        """Number that increases when keys are forgotten; read it before storing, for ``cache_stored``."""
        return self._epoch

    def cache_stored(self, texts: Sequence[str], records: Array, epoch: int) -> None:
        """Put records that were just stored into the cache.

        Args:
            texts: The keys.
            records: uint8 ``[N, record bytes]``.
            epoch: Value of ``epoch`` before they were stored. If it has increased since, the records are not
                cached.
        """
        hashes = self.cache.hashes(list(texts), self.settings.max_key_bytes)
        self.cache.put(hashes, self.cache.where(records), _monotonic(), replaces=True)
        if epoch != self._epoch:
            self.cache.remove(hashes)

    def forget(self, texts: Sequence[str]) -> None:
        """Remove keys from memory; discard reads in flight too."""
        self._epoch += 1
        self.cache.remove(self.cache.hashes(list(texts), self.settings.max_key_bytes))

    def forget_all(self) -> None:
        """Remove all keys from memory."""
        self._epoch += 1
        self.cache.clear()

    def queued(self, texts: Sequence[str]) -> None:
        """Mark keys as accepted by the queue, for ``pending_seconds``."""
        until = _monotonic() + int(self.settings.pending_seconds * _MILLISECONDS)
        self.cache.mark(self.cache.hashes(list(texts), self.settings.max_key_bytes), -1, until)

    def _since(self, now: int) -> tuple[int, int]:
        """Return the earliest acceptable times, in milliseconds, of a vector's write and of its caching."""
        settings = self.settings
        written = (
            unix_milliseconds() - int(settings.ttl_seconds * _MILLISECONDS) if settings.ttl_seconds else 0
        )
        put = now - int(settings.cache_seconds * _MILLISECONDS) if settings.cache_seconds else 0
        return written, max(0, put)

    def _read_here(self, lookup: Lookup, asked: Array, some: Keys) -> None:
        """Answer from a local store."""
        epoch = self._epoch  # before the read: keys forgotten during it must not stay in memory
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
        """Cache the records that the store returned, and queue the missing keys.

        Args:
            some: The keys.
            values: Their values, or addresses and sizes as returned by ``InPlace``.
            epoch: Value of ``epoch`` before the read.

        Returns:
            Addresses of the records, int64 ``[N]``, 0 for misses; and the number of records.
        """
        # A store may expire values late, and return them meanwhile.
        records, count = self.cache.check(values, self._since(0)[0])
        self.cache.put(some.hashes, records, _monotonic())
        if epoch != self._epoch:  # some of the keys may have been forgotten meanwhile
            self.cache.remove(some.hashes)
        if count < len(records):
            rows = np.flatnonzero(records == 0)
            self._count_damaged([_value(values, row) for row in rows.tolist()])
            self._missed(some, rows)
        return records, count

    def _count_damaged(self, values: Values) -> None:
        """Count values that are neither missing nor expired."""
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
    """Objects and settings shared by the spaces of an archive.

    Attributes:
        store: Store of the vectors.
        reads: Background reads of the store; None for a local store, which is read directly.
        publisher: Queues missing keys.
        cache: Settings of the cache.
        cache_bytes: Upper bound of one space version's cache, in bytes.
    """

    store: Store
    reads: Reads | None
    publisher: Publisher
    cache: CacheSettings
    cache_bytes: int

    @cached_property
    def in_place(self) -> InPlace | None:
        """The store, if it returns addresses of values."""
        return self.store if isinstance(self.store, InPlace) else None

    @property
    def absent_seconds(self) -> float:
        """For how many seconds a key that the store lacks is not looked up there again."""
        return self.cache.absent_seconds


def _value(values: Values | Array, row: int) -> bytes:
    """Return one of a store's values, or the value at an address; empty for a miss."""
    if isinstance(values, list):
        return values[row]
    at, size = values[row].tolist()
    return ctypes.string_at(at, size) if at else b""


def _monotonic() -> int:
    """Return the time of the monotonic clock in milliseconds."""
    return time.monotonic_ns() // 1_000_000
