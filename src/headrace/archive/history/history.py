"""Replaced values, kept so that models are trained with the values that were served.

Each space version has a second partition for its past. There each value has an entry, under a digest of its
key and its write time, and each key has a head that points at the newest entry. All are read by exact keys,
in any store, and expire by themselves.

An entry is written before the value that lookups find, and the head after that value. A crash in between
leaves an entry without a pointer to it, or a value newer than its head; both are detected, and the next
writer continues from there. Of two processes that write one key at the same moment, one may not see the
other. Both values are kept and found by their exact times, but one of them is not on the path from the newest
entry to the oldest.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple, TypeVar

import numpy as np

from headrace.archive.history.skip_list import NO_NODE, Node, decoded
from headrace.archive.model.archive_toml import SpaceSettings
from headrace.archive.model.catalog import Catalog, SpaceVersion, partition
from headrace.archive.model.records import HEAD, joined
from headrace.base.clock import unix_milliseconds
from headrace.base.errors import NotFound
from headrace.base.tensors import Array
from headrace.storage.stores.store import Item, Store

_T = TypeVar("_T")

_DIGEST_BYTES = 24
_NO_TIME = bytes(8)  # suffix of a head's key
_HEAD = struct.Struct("<QQ")  # write time of the newest entry, and time at which the key was forgotten
_MOST_AT_ONCE = 1000
_RECORDS_AT_ONCE = 100
_MILLISECONDS = 1000


def past_partition(space: str, number: int) -> str:
    """Return the store partition of a space version's replaced values."""
    return f"{partition(space, number)}_past"


class Found(NamedTuple):
    """Values at given times.

    Attributes:
        records: uint8 ``[N, record bytes]``; arbitrary if there was no value.
        written: Write times in milliseconds of Unix time, uint64 ``[N]``; 0 if there was no value.
        lost: Whether there was, or may have been, a value that is not kept any more, bool ``[N]``.
    """

    records: Array
    written: Array
    lost: Array


@dataclass(slots=True)
class _Key:
    """State of one key.

    Attributes:
        digest: Prefix of its entries' keys.
        written: Write time of the present value; 0 for none.
        record: The present value.
        newest: Newest entry; later than the present value if that was removed.
        forgotten: Time up to which nothing is returned of the key.
        has_head: Whether the key has a head.
    """

    digest: bytes
    written: int
    record: bytes
    newest: Node = NO_NODE
    forgotten: int = 0
    has_head: bool = False

    def entry(self, written: int) -> bytes:
        """Return the key of an entry."""
        return self.digest + written.to_bytes(8)

    def head(self) -> Item:
        """Return the head, which points at the newest entry."""
        return Item(
            self.digest + _NO_TIME, _HEAD.pack(self.newest.time, self.forgotten) + self.newest.encode()
        )


class Past:
    """The replaced values of one space version."""

    def __init__(self, store: Store, space: str, version: SpaceVersion, settings: SpaceSettings) -> None:
        """Keep them in a store, beside the present values."""
        self._store, self._form, self._settings = store, version.form, settings
        self._space, self._number = space, version.number
        self._values = partition(space, version.number)
        self._entries = past_partition(space, version.number)
        # An entry is written with its value, and again when the value is replaced; this is its time to live.
        self._kept_seconds = settings.history_seconds + settings.ttl_seconds

    def keep(self, keys: Sequence[bytes], records: Array, *, is_told: bool) -> tuple[list[int], list[Item]]:
        """Keep values that are about to be stored, and those that they replace.

        Args:
            keys: Keys in their stored form.
            records: uint8 ``[N, record bytes]``. Write times that are not later than those of the replaced
                values are moved forward in place.
            is_told: Whether the write times were given by the caller and must not change. Values earlier than
                the present one are then only kept as past values.

        Returns:
            The rows to store, each key once, and the heads for ``point`` to write afterwards.

        Raises:
            NotFound: The version has been dropped.
            Unavailable: The store does not answer; nothing may be stored.
        """
        known = self._known(keys)
        times = records[:, : HEAD.itemsize].view(HEAD)[:, 0]["written"]
        items: dict[bytes, bytes] = {}
        rows: dict[bytes, int] = {}
        late: dict[bytes, dict[int, int]] = {}
        # Given times may come in any order; values of one call are written in the order of their times.
        order = np.argsort(times, kind="stable").tolist() if is_told else range(len(keys))
        for row in order:
            key = keys[row]
            one, written = known[key], int(times[row])
            if written <= one.newest.time and not is_told:
                times[row] = written = one.newest.time + 1
            if written < one.newest.time:
                late.setdefault(key, {})[written] = row
                continue
            if written > one.newest.time:
                if key not in rows:
                    self._renew(one, items)
                one.newest = one.newest.next(written)
            items[one.entry(written)] = one.newest.encode() + records[row].tobytes()
            rows[key] = row
        self._put(items)
        for key, some in late.items():
            self._insert(known[key], {written: records[row].tobytes() for written, row in some.items()})
        return list(rows.values()), [known[key].head() for key in rows]

    def end(self, keys: Sequence[bytes]) -> list[Item]:
        """Keep values that are about to be removed, and record their end.

        Args:
            keys: Keys in their stored form.

        Returns:
            The heads for ``point`` to write before the values are removed.

        Raises:
            Unavailable: The store does not answer.
        """
        items: dict[bytes, bytes] = {}
        heads = []
        for one in self._known(keys).values():
            if not one.written:
                continue
            self._renew(one, items)
            one.newest = one.newest.next(max(unix_milliseconds(), one.newest.time + 1))
            items[one.entry(one.newest.time)] = one.newest.encode()
            heads.append(one.head())
        self._put(items)
        return heads

    def point(self, heads: Sequence[Item]) -> None:
        """Write heads, so that the newest entries are found.

        Raises:
            Unavailable: The store does not answer.
        """
        self._put(dict(heads))

    def forget(self, keys: Sequence[bytes]) -> None:
        """Remove all past values of keys; lookups return none of them from the start of this call.

        Raises:
            Unavailable: The store does not answer; try again.
        """
        is_kept = self._settings.history_seconds > 0
        for one in self._known(keys).values():
            if not one.has_head and not is_kept:
                continue
            one.forgotten = max(unix_milliseconds(), one.newest.time)
            self._put(dict([one.head()]))
            # Oldest first: after a crash, the remaining entries can still be reached from the newest.
            for some in _pages(sorted(self._all(one))):
                self._store.delete_many(self._entries, [one.entry(written) for written in some])
            one.newest = Node(one.forgotten)
            if is_kept:
                self._put(dict([one.head()]))
            else:
                self._store.delete_many(self._entries, [one.head().key])

    def at(self, keys: Sequence[bytes], times: Array, exact: Array | None = None) -> Found:
        """Return the values at given times.

        Args:
            keys: Keys in their stored form.
            times: Milliseconds of Unix time, uint64 ``[N]``: the last values written by then are returned.
            exact: Write times of the values, uint64 ``[N]``, if known; 0 for none. ``times`` is then ignored.

        Raises:
            Unavailable: The store does not answer.
        """
        known = self._known(keys)
        order = {key: place for place, key in enumerate(known)}
        ones = list(known.values())
        places = np.fromiter((order[key] for key in keys), np.intp, len(keys))
        records = joined([one.record for one in ones], self._form)[places]
        current = np.array([one.written for one in ones], np.uint64)[places]
        newest = np.array([one.newest.time for one in ones], np.uint64)[places]
        if exact is None:
            is_current = (current > 0) & (current == newest) & (current <= times)
            wanted = times
        else:
            is_current = (current == exact) & (exact > 0)
            wanted = exact
        written = np.where(is_current, current, np.uint64(0))
        lost = np.zeros(len(keys), np.bool_)
        rows = np.flatnonzero(~is_current & ((exact > 0) if exact is not None else (newest > 0)))
        walks = [_Walk(row, ones[places[row]], int(wanted[row])) for row in rows.tolist()]
        for walk in walks:
            walk.begin(is_exact=exact is not None)
        self._walk(walks)
        for walk in walks:
            if walk.record:
                records[walk.row] = np.frombuffer(walk.record, np.uint8)
                written[walk.row] = walk.at
            lost[walk.row] = walk.is_lost
        if exact is None:
            written = self._alive(written, times)
            lost |= self._unknown(written, current, times)
        return Found(records, written, lost)

    def _alive(self, written: Array, times: Array) -> Array:
        """Return the write times, with 0 for values that had expired."""
        if not self._settings.ttl_seconds:
            return written
        longest = np.uint64(self._settings.ttl_seconds * _MILLISECONDS)
        alive: Array = np.where(written + longest >= times, written, np.uint64(0))
        return alive

    def _unknown(self, written: Array, current: Array, times: Array) -> Array:
        """Return which keys have no known value, but may have had one too old to be kept."""
        settings = self._settings
        if settings.embedder and not settings.ttl_seconds:  # embedded vectors do not change
            return np.zeros(len(written), np.bool_)
        since = np.uint64(max(0, unix_milliseconds() - int(self._kept_seconds * _MILLISECONDS)))
        unknown: Array = (written == 0) & (times < since) & (current > times)
        return unknown

    def _walk(self, walks: Sequence[_Walk]) -> None:
        """Follow the pointers of all walks together, until each has ended."""
        going = [walk for walk in walks if walk.at]
        while going:
            asked = list(dict.fromkeys(walk.key.entry(walk.at) for walk in going))
            found = dict(zip(asked, self._read(asked), strict=True))
            for walk in going:
                walk.step(found[walk.key.entry(walk.at)], self._form.record_bytes)
            going = [walk for walk in going if not walk.is_over]

    def _known(self, keys: Sequence[bytes]) -> dict[bytes, _Key]:
        """Return the state of each distinct key: its present value and its newest entry."""
        unique = list(dict.fromkeys(keys))
        values = self._store.get_many(self._values, unique, self._form.missing)
        records = joined(values, self._form)
        there = self._form.are_records(records)
        times = np.where(there, self._form.written(records), np.uint64(0)).tolist()
        size = self._form.record_bytes
        known = {
            key: _Key(_digest(key), written, value[:size] if written else self._form.missing)
            for key, value, written in zip(unique, values, times, strict=True)
        }
        heads = self._read([one.digest + _NO_TIME for one in known.values()])
        for one, head in zip(known.values(), heads, strict=True):
            if len(head) > _HEAD.size:
                one.has_head = True
                newest, one.forgotten = _HEAD.unpack_from(head)
                entry = decoded(newest, head[_HEAD.size :])
                one.newest = entry[0] if entry else Node(newest)
        # A crash left a value newer than its head, or no history was kept when it was written.
        ahead = [one for one in known.values() if one.written > one.newest.time]
        entries = self._read([one.entry(one.written) for one in ahead]) if ahead else []
        for one, content in zip(ahead, entries, strict=True):
            entry = decoded(one.written, content)
            one.newest = entry[0] if entry else one.newest.next(one.written)
        return known

    def _renew(self, one: _Key, items: dict[bytes, bytes]) -> None:
        """Rewrite the entry of a value that is being replaced, so that it is kept as long as others."""
        if one.written and one.written == one.newest.time:
            items[one.entry(one.written)] = one.newest.encode() + one.record

    def _insert(self, one: _Key, late: Mapping[int, bytes]) -> None:
        """Keep values that were written before existing ones.

        Args:
            one: Their key.
            late: Records, by write time.
        """
        nodes = {one.newest.time: one.newest}  # nodes read or made, in their new state
        made: dict[int, bytes] = {}
        changed: dict[int, None] = {}
        for written, record in late.items():
            way = self._way(one, written, nodes)
            if not way:  # a later entry has expired, so this one has too
                continue
            made[written] = record
            if way[-1].before == written:
                nodes[written] = self._node(one, written) or Node(written)
                continue
            nodes[written] = way[-1].late(written)
            for node in way:
                nodes[node.time] = seeing = node.seeing(nodes[written])
                if seeing is not node and node.time not in made:
                    changed[node.time] = None
        # New entries first, then the pointers to them: a crash in between leaves the old ones intact.
        self._put({one.entry(written): nodes[written].encode() + record for written, record in made.items()})
        for some in _pages(list(changed), _RECORDS_AT_ONCE):
            found = zip(some, self._read([one.entry(written) for written in some]), strict=True)
            records = {written: entry[1] for written, had in found if (entry := decoded(written, had))}
            self._put({one.entry(at): nodes[at].encode() + record for at, record in records.items()})
        if nodes[one.newest.time] is not one.newest:
            one.newest = nodes[one.newest.time]
            self._put(dict([one.head()]))

    def _way(self, one: _Key, written: int, nodes: dict[int, Node]) -> list[Node]:
        """Return the path from the newest entry to the first after a time; [] if part of it has expired."""
        way = [nodes[one.newest.time]]
        while further := way[-1].towards(written):
            node = nodes.get(further) or self._node(one, further)
            if node is None:
                return []
            nodes[further] = node
            way.append(node)
        return way

    def _node(self, one: _Key, written: int) -> Node | None:
        found = decoded(written, self._read([one.entry(written)])[0])
        return None if found is None else found[0]

    def _all(self, one: _Key) -> set[int]:
        """Return the write times of all entries that can be reached from the newest."""
        seen = {one.newest.time}
        going = [*one.newest.pointers]
        while going:
            seen.update(going)
            entries = self._read([one.entry(written) for written in going])
            nodes = [decoded(*entry) for entry in zip(going, entries, strict=True)]
            going = list({pointer for node in nodes if node for pointer in node[0].pointers} - seen)
        return seen

    def _read(self, keys: Sequence[bytes]) -> list[bytes]:
        found: list[bytes] = []
        for some in _pages(keys):
            found += self._store.get_many(self._entries, some)
        return found

    def _put(self, items: Mapping[bytes, bytes]) -> None:
        if not items:
            return
        made = [Item(key, value) for key, value in items.items()]
        try:
            self._store.put_many(self._entries, made, self._kept_seconds)
        except NotFound:  # either the first entry of this version, or the version has been dropped
            if Catalog(self._store).read(self._space).is_gone(self._number):
                raise
            self._store.create(self._entries)
            self._store.put_many(self._entries, made, self._kept_seconds)


class _Walk:
    """The path to one value: from the newest entry to the last one written by a given time."""

    def __init__(self, row: int, key: _Key, wanted: int) -> None:
        self.row, self.key, self._wanted = row, key, wanted
        self.at = 0
        self.record = b""
        self.is_lost = False
        self.is_over = False

    def begin(self, *, is_exact: bool) -> None:
        """Go to the first entry."""
        self.at = self._wanted if is_exact else self._next(self.key.newest)
        self._check()

    def step(self, content: bytes, record_bytes: int) -> None:
        """Read the present entry, and go to the next one."""
        found = decoded(self.at, content)
        if found is None and self.at == self.key.written:  # older than the entries kept, but still stored
            found = Node(self.at), self.key.record
        if self.at <= self._wanted or found is None:
            self.is_over = True
            self.record = found[1] if found and len(found[1]) == record_bytes else b""
            self.is_lost = not self.record and (found is None or bool(found[1]))
        else:
            self.at = self._next(found[0])
            self._check()

    def _next(self, node: Node) -> int:
        return node.time if node.time <= self._wanted else node.towards(self._wanted) or node.before

    def _check(self) -> None:
        if self.at <= self.key.forgotten:  # forgotten, or no entry before
            self.at, self.is_over = 0, True


def _pages(many: Sequence[_T], size: int = _MOST_AT_ONCE) -> Iterator[Sequence[_T]]:
    for start in range(0, len(many), size):
        yield many[start : start + size]


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=_DIGEST_BYTES).digest()
