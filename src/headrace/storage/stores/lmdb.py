"""The store in an LMDB file of this machine, shared by several processes.

The file has one tree of keys. The first byte of a key tells its kind:

- ``p`` and a partition's name: its number, which is never reused, and flags of its two key ranges that were
  ever written to. Deleting this one entry drops the partition.
- ``d`` and a number: a dropped partition whose values have not all been removed.
- ``n``: the last number assigned. ``r`` and a name: a record.
- 4 bytes with the highest bit set, then the key: a value. The 4 bytes are a number. Even numbers hold values
  without a time to live, stored unchanged, so that a read costs no more than in plain LMDB. Odd numbers hold
  values with a time to live, followed by their expiry time. A key is never in both ranges.

Reads skip expired values. Writes remove them: each write examines a few more entries than it writes.
"""

from __future__ import annotations

import logging
import math
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from itertools import islice, repeat
from typing import NamedTuple

import numpy as np

from headrace.base.errors import Unavailable
from headrace.base.tensors import Array
from headrace.storage.lmdb_environment import CONTENTS_KEY, LmdbOptions, Transaction, open_lmdb
from headrace.storage.settings import LmdbStore
from headrace.storage.stores.lmdb_pages import DAMAGED, READ, DataFile, Pages, find
from headrace.storage.stores.store import (
    LONGEST_KEY_BYTES,
    START,
    Item,
    Page,
    check_items,
    check_partition,
    check_record,
    no_cursor,
    not_there,
)

_log = logging.getLogger(__name__)

_CONTENTS = "headrace store 1"
_PARTITION, _DROPPED, _NUMBER, _RECORD = b"p", b"d", b"n", b"r"
_PREFIX_BYTES = 4
_VALUES = 0x8000_0000
_END_BYTES = 5
_ENTRY = struct.Struct(">IB")
_WITHOUT_TTL, _WITH_TTL = 1, 2
# Limit of one transaction: about 10 ms, during which other writers wait.
_MOST_WRITTEN, _MOST_WRITTEN_BYTES = 10_000, 16 * 2**20
_MOST_REMOVED = 2000
# Entries that each write examines beyond those it writes, to remove expired and dropped values.
_SWEPT_MORE = 64
_LARGEST_PAGE = 100_000


class _Partition(NamedTuple):
    """A partition's number and key prefixes.

    Attributes:
        number: Number of the partition.
        written: Bit mask of the key ranges that were ever written.
        staying: Key prefix of values without a time to live.
        ending: Key prefix of values with a time to live.
    """

    number: int
    written: int
    staying: bytes
    ending: bytes

    @classmethod
    def of(cls, number: int, written: int) -> _Partition:
        """Return the partition with a number."""
        first = _VALUES | 2 * number
        return cls(number, written, first.to_bytes(_PREFIX_BYTES), (first + 1).to_bytes(_PREFIX_BYTES))


class InLmdbStore:
    """A Store on one LMDB file.

    Attributes:
        is_local: True.
    """

    is_local = True

    def __init__(self, settings: LmdbStore) -> None:
        """Open the file, creating it if needed.

        Raises:
            ConfigError: The file cannot be opened.
            Unavailable: The disk is full, or other writers held the lock until the timeout.
        """
        options = LmdbOptions(settings.path, settings.largest_bytes, settings.sync, _CONTENTS)
        self._timeout_seconds = settings.timeout_seconds
        self._file = open_lmdb(options, settings.timeout_seconds)
        self._sweep_positions: dict[int, bytes] = {}
        self._known_partitions: dict[str, tuple[int, _Partition]] = {}
        self._is_told = False
        self._data = DataFile(self._file.data)
        in_place = settings.read_in_place
        self._pages = Pages.of(self._file.environment, self._data, CONTENTS_KEY) if in_place else None

    def create(self, partition: str) -> None:
        """See Store."""
        check_partition(partition)
        key = _PARTITION + partition.encode()
        if self._get(key) is not None:
            return
        with self._writing(self._deadline()) as transaction:
            if transaction.get(key) is None:
                number = int.from_bytes(transaction.get(_NUMBER, b"")) + 1
                transaction.put(_NUMBER, number.to_bytes(_PREFIX_BYTES))
                transaction.put(key, _ENTRY.pack(number, 0))

    def drop(self, partition: str) -> None:
        """See Store. Deletes one entry, then removes values until the timeout; later calls continue."""
        check_partition(partition)
        deadline = self._deadline()
        key = _PARTITION + partition.encode()
        self._known_partitions.pop(partition, None)
        if self._get(key) is not None:
            with self._writing(deadline) as transaction:
                entry = transaction.pop(key)
                if entry is not None:
                    transaction.put(_DROPPED + entry[:_PREFIX_BYTES], b"")
        while self._is_anything_dropped() and time.monotonic() < deadline:
            with self._writing(deadline) as transaction:
                _remove_dropped(transaction, _MOST_REMOVED)

    def _is_anything_dropped(self) -> bool:
        with self._reading() as transaction:
            return _first_dropped(transaction) is not None

    def get_many(self, partition: str, keys: Sequence[bytes], missing: bytes = b"") -> list[bytes]:
        """See Store. Never waits for a writer."""
        try:
            with self._reading() as transaction:
                found = self._known(transaction, partition)
                if found is None:
                    return [missing] * len(keys)
                return _values(transaction.get, found, keys, missing)
        except Unavailable as error:
            import lmdb  # noqa: PLC0415 - imported only on this rare path, to keep lookups fast

            if not isinstance(error.__cause__, lmdb.BadValsizeError):  # a key exceeds LMDB's own limit
                raise
        possible = [key for key in keys if len(key) <= LONGEST_KEY_BYTES]
        values = iter(self.get_many(partition, possible, missing))
        return [next(values) if len(key) <= LONGEST_KEY_BYTES else missing for key in keys]

    @contextmanager
    def in_place(self, partition: str, keys: list[str]) -> Iterator[Array | None]:
        """See InPlace. Never waits for a writer."""
        with self._reading() as transaction:
            found = self._known(transaction, partition)
            tree = self._pages.tree(transaction) if self._pages is not None else None
            if found is None or tree is None:
                yield None
                return
            values, texts, ended = np.zeros((len(keys), 2), np.int64), id(keys), READ
            if found.written & _WITHOUT_TTL:
                ended = find(tree, int.from_bytes(found.staying), -1, texts, values)
            if found.written & _WITH_TTL and ended == READ:
                now = int.from_bytes(_end(_now()))
                ended = find(tree, int.from_bytes(found.ending), now, texts, values)
            if ended == DAMAGED:  # LMDB itself does not check pages
                raise self._damaged()
            yield values if ended == READ else None

    def _damaged(self) -> Unavailable:
        problem = (
            "the LMDB file is damaged: a page is invalid; stop all processes that have it open, then replace "
            "it with a copy or remove it"
        )
        if not self._is_told:
            self._is_told = True
            _log.error("%s: %s", self._file.data, problem)
        return Unavailable(problem)

    def _known(self, transaction: Transaction, name: str) -> _Partition | None:
        """Return a partition, cached until the next write to the file."""
        state = transaction.id()
        known = self._known_partitions.get(name)
        if known is not None and known[0] == state:
            return known[1]
        found = _partition(transaction, name)
        if found is not None:  # cache only existing partitions, to bound the cache
            self._known_partitions[name] = state, found
        return found

    def put_many(self, partition: str, items: Sequence[Item], ttl_seconds: float = 0.0) -> None:
        """See Store. Writes all items in one transaction, or in several if there are too many."""
        check_items(items, ttl_seconds)
        deadline = self._deadline()
        end = _end(_now() + ttl_seconds, math.ceil) if ttl_seconds else b""
        for some in _slices(items):
            size = sum(len(key) + len(value) for key, value in some)
            with self._writing(deadline, size) as transaction:
                self._put(transaction, partition, some, end)

    def _put(self, transaction: Transaction, name: str, items: Sequence[Item], end: bytes) -> None:
        found = _partition(transaction, name)
        if found is None:
            raise not_there(name)
        now, others = (_WITH_TTL, _WITHOUT_TTL) if end else (_WITHOUT_TTL, _WITH_TTL)
        if not found.written & now:
            found = found._replace(written=found.written | now)
            transaction.put(_PARTITION + name.encode(), _ENTRY.pack(found.number, found.written))
        here, there = (found.ending, found.staying) if end else (found.staying, found.ending)
        # In key order, which is cheaper. The sort is stable, so the last value of a key still wins.
        ordered = sorted(items, key=_key)
        with transaction.cursor() as cursor:
            cursor.putmulti([(here + key, value + end if end else value) for key, value in ordered])
        if found.written & others:
            for key, _ in ordered:
                transaction.delete(there + key)
        self._sweep(transaction, found, len(items) + _SWEPT_MORE)

    def _sweep(self, transaction: Transaction, found: _Partition, most: int) -> None:
        """Remove some dropped values, then some expired ones, resuming where the last sweep stopped."""
        most -= _remove_dropped(transaction, most)
        if most <= 0 or not found.written & _WITH_TTL:
            return
        prefix, now = found.ending, _end(_now())
        hand, over = prefix, []
        with transaction.cursor() as cursor:
            is_at = cursor.set_range(self._sweep_positions.get(found.number, prefix))
            for key, value in islice(cursor.iternext(), most) if is_at else ():
                hand = key if key[:_PREFIX_BYTES] == prefix else prefix
                if hand is prefix:
                    break
                if value[-_END_BYTES:] <= now:
                    over.append(key)
        self._sweep_positions[found.number] = hand
        for key in over:
            transaction.delete(key)

    def delete_many(self, partition: str, keys: Sequence[bytes]) -> None:
        """See Store."""
        deadline = self._deadline()
        possible = [Item(key, b"") for key in keys if len(key) <= LONGEST_KEY_BYTES]
        for some in _slices(possible):
            with self._writing(deadline) as transaction:
                found = _partition(transaction, partition)
                if found is None:
                    return
                for key, _ in some:
                    transaction.delete(found.staying + key)
                    transaction.delete(found.ending + key)

    def scan(self, partition: str, cursor: bytes = START, limit: int = 1000) -> Page:
        """See Store. Keys come in order: those without a time to live, then those with one."""
        if cursor != START and (cursor[:1] not in (b"s", b"e") or len(cursor) > LONGEST_KEY_BYTES + 1):
            raise no_cursor(cursor)
        limit = min(max(limit, 1), _LARGEST_PAGE)
        with self._reading() as transaction:
            found = _partition(transaction, partition)
            if found is None:
                return Page([], START)
            if cursor[:1] == b"e":
                return _page(transaction, found.ending, cursor, limit)
            page = _page(transaction, found.staying, cursor or b"s", limit)
            if page.cursor or not found.written & _WITH_TTL:
                return page
            return page._replace(cursor=b"e")

    def read(self, name: str) -> bytes | None:
        """See Store."""
        check_record(name)
        return self._get(_RECORD + name.encode())

    def swap(self, name: str, expected: bytes | None, value: bytes) -> bool:
        """See Store."""
        check_record(name, value)
        key = _RECORD + name.encode()
        with self._writing(self._deadline(), len(value) + 1) as transaction:
            is_expected: bool = transaction.get(key) == expected
            if is_expected:
                transaction.put(key, value)
        return is_expected

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        self._data.close()

    def _reading(self) -> AbstractContextManager[Transaction]:
        self._data.size()  # LMDB does not check the file's size; reading beyond its end kills the process
        return self._file.reading()

    def _writing(self, deadline: float, more_bytes: int = 0) -> AbstractContextManager[Transaction]:
        self._data.size()
        return self._file.writing(deadline, more_bytes)

    def _get(self, key: bytes) -> bytes | None:
        with self._reading() as transaction:
            value: bytes | None = transaction.get(key)
        return value

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout_seconds


def _partition(transaction: Transaction, name: str) -> _Partition | None:
    entry = transaction.get(_PARTITION + name.encode())
    return None if entry is None else _Partition.of(*_ENTRY.unpack(entry))


def _values(
    get: Callable[..., bytes], found: _Partition, keys: Sequence[bytes], missing: bytes
) -> list[bytes]:
    """Return the values of keys, with as little work for each as possible."""
    if not found.written & _WITH_TTL:
        return list(map(get, map(found.staying.__add__, keys), repeat(missing)))
    now = _end(_now())
    ending = map(get, map(found.ending.__add__, keys), repeat(b""))
    if not found.written & _WITHOUT_TTL:
        return [value[:-_END_BYTES] if value[-_END_BYTES:] > now else missing for value in ending]
    staying = map(get, map(found.staying.__add__, keys), repeat(missing))
    return [
        value[:-_END_BYTES] if value[-_END_BYTES:] > now else other
        for value, other in zip(ending, staying, strict=True)
    ]


def _page(transaction: Transaction, prefix: bytes, cursor: bytes, limit: int) -> Page:
    """Return the keys after a cursor, which is a letter for the key range followed by the last key."""
    now = _end(_now())
    keys: list[bytes] = []
    last = cursor[1:]
    with transaction.cursor() as at:
        is_at = at.set_range(prefix + last + b"\0" if last else prefix)
        for looked_at, (key, value) in enumerate(at.iternext() if is_at else ()):
            if key[:_PREFIX_BYTES] != prefix:
                break
            if looked_at == limit:
                return Page(keys, cursor[:1] + last)
            last = key[_PREFIX_BYTES:]
            if cursor[:1] == b"s" or value[-_END_BYTES:] > now:
                keys.append(last)
    return Page(keys, START)


def _first_dropped(transaction: Transaction) -> bytes | None:
    with transaction.cursor() as cursor:
        key: bytes = cursor.key() if cursor.set_range(_DROPPED) else b""
    return key if key[:1] == _DROPPED else None


def _remove_dropped(transaction: Transaction, most: int) -> int:
    """Remove up to ``most`` entries of dropped partitions and return how many were removed."""
    removed = 0
    while removed < most and (dropped := _first_dropped(transaction)) is not None:
        partition = _Partition.of(int.from_bytes(dropped[1:]), _WITHOUT_TTL | _WITH_TTL)
        keys: list[bytes] = []
        for prefix in (partition.staying, partition.ending):
            with transaction.cursor() as cursor:
                is_at = cursor.set_range(prefix)
                found = cursor.iternext(keys=True, values=False) if is_at else iter(())
                for key in islice(found, most - removed - len(keys)):
                    if key[:_PREFIX_BYTES] != prefix:
                        break
                    keys.append(key)
        for key in keys:
            transaction.delete(key)
        if removed + len(keys) < most:
            transaction.delete(dropped)
        removed += len(keys)
    return removed


def _slices(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Split items into slices that fit in one transaction; yield at least one slice."""
    start = size = 0
    for number, item in enumerate(items):
        size += len(item.value)
        if number - start == _MOST_WRITTEN or size > _MOST_WRITTEN_BYTES:
            yield items[start:number]
            start, size = number, len(item.value)
    yield items[start:]


def _key(item: Item) -> bytes:
    return item.key


def _now() -> float:
    return datetime.now(UTC).timestamp()


def _end(seconds: float, rounded: Callable[[float], int] = int) -> bytes:
    """Encode a time as bytes that sort in time order."""
    last = 2 ** (8 * _END_BYTES) - 1
    moment: int = min(rounded(seconds), last)
    return moment.to_bytes(_END_BYTES)
