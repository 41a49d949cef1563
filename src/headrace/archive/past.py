"""What values were before they were replaced, so that rows are learnt with what they were served with.

Beside the partition of a space version stands one of its past. In it each value has an entry under a digest
of its key and the time that it was written, and each key a head, which says which entry is the newest. All
are found by exact keys, in any store, and are over by themselves.

Entries are written before the value that lookups find, the head after it. Whoever is killed in between leaves
an entry that nobody points at, or a value whose head is older than it; both are seen, and the next writer
goes on from there. Of two processes that write one key in the same moment one may not see the other: both
values are kept, and found by their exact times, but one of them is not on the way from the newest to the
oldest.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple, TypeVar

import numpy as np

from headrace.archive.catalog import Catalog, SpaceVersion, partition
from headrace.archive.config import SpaceSettings
from headrace.archive.past_links import NO_NODE, Node, decoded
from headrace.archive.records import HEAD, joined
from headrace.clock import unix_milliseconds
from headrace.errors import NotFound
from headrace.stores.store import Item, Store
from headrace.tensors import Array

_T = TypeVar("_T")

_DIGEST_BYTES = 24
_NO_TIME = bytes(8)  # the key of a head ends with it
_HEAD = struct.Struct("<QQ")  # when the newest entry was written, and when the key was forgotten
_MOST_AT_ONCE = 1000
_RECORDS_AT_ONCE = 100
_MILLISECONDS = 1000


def past_partition(space: str, number: int) -> str:
    """Where the replaced values of a space version are in the store."""
    return f"{partition(space, number)}_past"


class Found(NamedTuple):
    """What values were at some times.

    Attributes:
        records: uint8 ``[N, record bytes]``; anything where there was none.
        written: When they were written, in milliseconds of Unix time, uint64 ``[N]``; 0 where there was none.
        lost: Where there was one, or may have been one, that is not kept any more, bool ``[N]``.
    """

    records: Array
    written: Array
    lost: Array


@dataclass(slots=True)
class _Key:
    """What is known of one key.

    Attributes:
        digest: What its entries' keys begin with.
        written: When the value that lookups find was written; 0 for none.
        record: That value.
        newest: The newest entry, which may be after that value: that there is none any more.
        forgotten: Up to when nothing is to be told of it.
        has_head: Whether anything was kept of it.
    """

    digest: bytes
    written: int
    record: bytes
    newest: Node = NO_NODE
    forgotten: int = 0
    has_head: bool = False

    def entry(self, written: int) -> bytes:
        """The key of an entry."""
        return self.digest + written.to_bytes(8)

    def head(self) -> Item:
        """What says which entry is the newest."""
        return Item(
            self.digest + _NO_TIME, _HEAD.pack(self.newest.time, self.forgotten) + self.newest.encode()
        )


class Past:
    """The replaced values of one space version."""

    def __init__(self, store: Store, space: str, version: SpaceVersion, settings: SpaceSettings) -> None:
        """Keep them in a store, beside the values that lookups find."""
        self._store, self._form, self._settings = store, version.form, settings
        self._space, self._number = space, version.number
        self._values = partition(space, version.number)
        self._entries = past_partition(space, version.number)
        # An entry is written with its value, and anew when that is replaced: so long it is there after both.
        self._kept_seconds = settings.history_seconds + settings.ttl_seconds

    def keep(self, keys: Sequence[bytes], records: Array, *, is_told: bool) -> tuple[list[int], list[Item]]:
        """Keep values that are about to be stored, and those that they replace.

        Args:
            keys: As the store has them.
            records: uint8 ``[N, record bytes]``; of those that would not be later than what they replace,
                the time is moved on.
            is_told: Whether their times are somebody else's, and stay: those that are earlier than what is
                there are only kept.

        Returns:
            The rows to be stored, each key once, and the heads that ``point`` is to write afterwards.

        Raises:
            NotFound: The version has been dropped.
            Unavailable: The store does not answer; nothing is to be stored.
        """
        known = self._known(keys)
        times = records[:, : HEAD.itemsize].view(HEAD)[:, 0]["written"]
        items: dict[bytes, bytes] = {}
        rows: dict[bytes, int] = {}
        late: dict[bytes, dict[int, int]] = {}
        # What somebody tells in any order is written in that of its times, as far as it came together.
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
        """Keep that values are removed now, with what they were.

        Args:
            keys: As the store has them.

        Returns:
            The heads that ``point`` is to write before they are removed.

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
        """Have keys' newest entries be found.

        Raises:
            Unavailable: The store does not answer.
        """
        self._put(dict(heads))

    def forget(self, keys: Sequence[bytes]) -> None:
        """Remove all that was kept of keys; nothing of it is told from the beginning of that on.

        Raises:
            Unavailable: The store does not answer; ask again.
        """
        is_kept = self._settings.history_seconds > 0
        for one in self._known(keys).values():
            if not one.has_head and not is_kept:
                continue
            one.forgotten = max(unix_milliseconds(), one.newest.time)
            self._put(dict([one.head()]))
            # The oldest first: what is left by whoever is killed is still found from the newest.
            for some in _pages(sorted(self._all(one))):
                self._store.delete_many(self._entries, [one.entry(written) for written in some])
            one.newest = Node(one.forgotten)
            if is_kept:
                self._put(dict([one.head()]))
            else:
                self._store.delete_many(self._entries, [one.head().key])

    def at(self, keys: Sequence[bytes], times: Array, exact: Array | None = None) -> Found:
        """What values were.

        Args:
            keys: As the store has them.
            times: When, in milliseconds of Unix time, uint64 ``[N]``: the last ones written until then.
            exact: When exactly the values were written, where that is known; 0 for there was none.

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
        """The times of those values that were not over theirs."""
        if not self._settings.ttl_seconds:
            return written
        longest = np.uint64(self._settings.ttl_seconds * _MILLISECONDS)
        alive: Array = np.where(written + longest >= times, written, np.uint64(0))
        return alive

    def _unknown(self, written: Array, current: Array, times: Array) -> Array:
        """Where none is known, and it is too long ago to say that there was none."""
        settings = self._settings
        if settings.embedder and not settings.ttl_seconds:  # what is embedded once stays as it is
            return np.zeros(len(written), np.bool_)
        since = np.uint64(max(0, unix_milliseconds() - int(self._kept_seconds * _MILLISECONDS)))
        unknown: Array = (written == 0) & (times < since) & (current > times)
        return unknown

    def _walk(self, walks: Sequence[_Walk]) -> None:
        """Go from entry to entry, all keys together, until each walk is over."""
        going = [walk for walk in walks if walk.at]
        while going:
            asked = list(dict.fromkeys(walk.key.entry(walk.at) for walk in going))
            found = dict(zip(asked, self._read(asked), strict=True))
            for walk in going:
                walk.step(found[walk.key.entry(walk.at)], self._form.record_bytes)
            going = [walk for walk in going if not walk.is_over]

    def _known(self, keys: Sequence[bytes]) -> dict[bytes, _Key]:
        """What there is of keys, each once: their values, and their newest entries."""
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
        # Somebody was killed between a value and its head, or no history was kept when it was written.
        ahead = [one for one in known.values() if one.written > one.newest.time]
        entries = self._read([one.entry(one.written) for one in ahead]) if ahead else []
        for one, content in zip(ahead, entries, strict=True):
            entry = decoded(one.written, content)
            one.newest = entry[0] if entry else one.newest.next(one.written)
        return known

    def _renew(self, one: _Key, items: dict[bytes, bytes]) -> None:
        """Keep a value that is replaced from now on for as long as others."""
        if one.written and one.written == one.newest.time:
            items[one.entry(one.written)] = one.newest.encode() + one.record

    def _insert(self, one: _Key, late: Mapping[int, bytes]) -> None:
        """Keep values that were written before others that are there.

        Args:
            one: Their key.
            late: Records by when they were written.
        """
        nodes = {one.newest.time: one.newest}  # as they are to be; those that were seen or made
        made: dict[int, bytes] = {}
        changed: dict[int, None] = {}
        for written, record in late.items():
            way = self._way(one, written, nodes)
            if not way:  # what is before it is over: so is this one
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
        # First what is new, then what leads there: whoever is killed in between leaves all of the old.
        self._put({one.entry(written): nodes[written].encode() + record for written, record in made.items()})
        for some in _pages(list(changed), _RECORDS_AT_ONCE):
            found = zip(some, self._read([one.entry(written) for written in some]), strict=True)
            records = {written: entry[1] for written, had in found if (entry := decoded(written, had))}
            self._put({one.entry(at): nodes[at].encode() + record for at, record in records.items()})
        if nodes[one.newest.time] is not one.newest:
            one.newest = nodes[one.newest.time]
            self._put(dict([one.head()]))

    def _way(self, one: _Key, written: int, nodes: dict[int, Node]) -> list[Node]:
        """The entries from the newest to the last one after a time; none if one of them is over."""
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
        """When all entries of a key were written that the newest one leads to."""
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
        except NotFound:  # nothing of this version was kept before, unless it has been dropped
            if Catalog(self._store).read(self._space).is_gone(self._number):
                raise
            self._store.create(self._entries)
            self._store.put_many(self._entries, made, self._kept_seconds)


class _Walk:
    """The way to one value: from the newest entry to the last one written until a time."""

    def __init__(self, row: int, key: _Key, wanted: int) -> None:
        self.row, self.key, self._wanted = row, key, wanted
        self.at = 0
        self.record = b""
        self.is_lost = False
        self.is_over = False

    def begin(self, *, is_exact: bool) -> None:
        """Find where to go first."""
        self.at = self._wanted if is_exact else self._next(self.key.newest)
        self._check()

    def step(self, content: bytes, record_bytes: int) -> None:
        """Take in the entry where it is, and go on."""
        found = decoded(self.at, content)
        if found is None and self.at == self.key.written:  # it is older than what is kept, but still there
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
        if self.at <= self.key.forgotten:  # or there is nothing before
            self.at, self.is_over = 0, True


def _pages(many: Sequence[_T], size: int = _MOST_AT_ONCE) -> Iterator[Sequence[_T]]:
    for start in range(0, len(many), size):
        yield many[start : start + size]


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=_DIGEST_BYTES).digest()
