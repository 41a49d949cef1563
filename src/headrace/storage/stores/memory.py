"""The store in one process's memory: for tests, demonstrations, and services that may lose their data.

Keys are held twice: with their values, and in a fixed number of bins. Scans go through the bins, so they need
neither sorting nor any state between two pages.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.base.errors import Unavailable
from headrace.storage.settings import MemoryStore
from headrace.storage.stores.store import (
    START,
    Item,
    Page,
    check_items,
    check_partition,
    check_record,
    no_cursor,
    not_there,
)

_BINS = 1024
_CURSOR_BYTES = 4
# Overhead of an item for objects, dictionary entries and its place in a bin. Measured: 160 bytes, and 290
# with a time to live.
_ITEM_BYTES = 300
# Values examined for expiry for each value written.
_SWEPT_PER_WRITE = 2


@dataclass(slots=True)
class _Partition:
    values: dict[bytes, bytes] = field(default_factory=dict)
    expiries: OrderedDict[bytes, float] = field(default_factory=OrderedDict)  # the next to examine first
    bins: list[set[bytes]] = field(default_factory=lambda: [set() for _ in range(_BINS)])


class InMemoryStore:
    """A Store that lives as long as this object.

    Attributes:
        is_local: True.
    """

    is_local = True

    def __init__(self, settings: MemoryStore) -> None:
        """Create an empty store.

        Args:
            settings: Settings with the capacity.
        """
        self._largest_bytes = settings.largest_bytes
        self._held_bytes = 0
        self._partitions: dict[str, _Partition] = {}
        self._records: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def create(self, partition: str) -> None:
        """See Store."""
        check_partition(partition)
        with self._lock:
            self._partitions.setdefault(partition, _Partition())

    def drop(self, partition: str) -> None:
        """See Store."""
        check_partition(partition)
        with self._lock:
            held = self._partitions.pop(partition, None)
            if held is not None:
                self._held_bytes -= sum(map(_size, held.values.items()))

    def get_many(self, partition: str, keys: Sequence[bytes], missing: bytes = b"") -> list[bytes]:
        """See Store. Takes no lock."""
        held = self._partitions.get(partition)
        if held is None:
            return [missing] * len(keys)
        get = held.values.get
        if not held.expiries:
            return [get(key, missing) for key in keys]
        expires, now = held.expiries.get, time.monotonic()
        return [get(key, missing) if expires(key, now + 1) > now else missing for key in keys]

    def put_many(self, partition: str, items: Sequence[Item], ttl_seconds: float = 0.0) -> None:
        """See Store. Raises Unavailable if the store would exceed its capacity."""
        check_items(items, ttl_seconds)
        with self._lock:
            held = self._partitions.get(partition)
            if held is None:
                raise not_there(partition)
            _sweep(self, held, len(items) * _SWEPT_PER_WRITE)
            for key, value in items:
                self._put(held, key, value, ttl_seconds)

    def _put(self, held: _Partition, key: bytes, value: bytes, ttl_seconds: float) -> None:
        before = held.values.get(key)
        more = len(value) - len(before) if before is not None else _size((key, value))
        if self._held_bytes + more > self._largest_bytes:
            raise Unavailable(
                f"the store in memory is full: it may hold {self._largest_bytes} bytes (store.largest_bytes)"
            )
        self._held_bytes += more
        # Set the value first. A reader takes no lock: it may see the new value with the old expiry time, but
        # must never see the old value with the new expiry time.
        held.values[key] = value
        if ttl_seconds:
            held.expiries[key] = time.monotonic() + ttl_seconds
        else:
            held.expiries.pop(key, None)
        held.bins[_bin(key)].add(key)

    def delete_many(self, partition: str, keys: Sequence[bytes]) -> None:
        """See Store."""
        with self._lock:
            held = self._partitions.get(partition)
            if held is not None:
                self.remove(held, keys)

    def remove(self, held: _Partition, keys: Sequence[bytes]) -> None:
        """Remove keys; the caller holds the lock."""
        for key in keys:
            value = held.values.pop(key, None)
            if value is not None:
                held.expiries.pop(key, None)
                held.bins[_bin(key)].discard(key)
                self._held_bytes -= _size((key, value))

    def scan(self, partition: str, cursor: bytes = START, limit: int = 1000) -> Page:
        """See Store. Returns whole bins until there are enough keys."""
        if cursor != START and (len(cursor) != _CURSOR_BYTES or int.from_bytes(cursor) >= _BINS):
            raise no_cursor(cursor)
        keys: list[bytes] = []
        number = int.from_bytes(cursor)
        with self._lock:
            held = self._partitions.get(partition)
            while held is not None and number < _BINS and len(keys) < max(limit, 1):
                now = time.monotonic()
                keys += (key for key in held.bins[number] if held.expiries.get(key, now + 1) > now)
                number += 1
        is_last = held is None or number == _BINS
        return Page(keys, START if is_last else number.to_bytes(_CURSOR_BYTES))

    def read(self, name: str) -> bytes | None:
        """See Store."""
        check_record(name)
        return self._records.get(name)

    def swap(self, name: str, expected: bytes | None, value: bytes) -> bool:
        """See Store."""
        check_record(name, value)
        with self._lock:
            if self._records.get(name) != expected:
                return False
            self._records[name] = value
            return True

    def close(self) -> None:
        """Discard everything."""
        self._partitions, self._records = {}, {}


def _sweep(store: InMemoryStore, held: _Partition, most: int) -> None:
    """Examine the next ``most`` values with a time to live and remove those that have expired."""
    now, expiries = time.monotonic(), held.expiries
    for _ in range(min(most, len(expiries))):
        key = next(iter(expiries))
        if expiries[key] < now:
            store.remove(held, [key])
        else:
            expiries.move_to_end(key)


def _bin(key: bytes) -> int:
    return zlib.crc32(key) % _BINS


def _size(item: tuple[bytes, bytes]) -> int:
    return len(item[0]) + len(item[1]) + _ITEM_BYTES
