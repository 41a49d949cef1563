"""Links between the entries of a key's past, which find a time in few hops.

Each entry has a height. It points at the entry before it, at the nearest earlier entry that is higher than
that one, at the nearest earlier one that is higher still, and so on. The n-th entry of a key, counted from 0,
is as high as n has trailing zeros. So its pointers lead to n - 1, and to n - 1 with its lowest set bits
cleared, one after the other. They follow from those of the entry before it, so that a new entry needs no
reads. A path from the newest entry to any other has at most as many hops as n has bits.

An entry that arrives late, between others, gets a random height, with the same distribution. It takes over
the pointers of the entry behind it. The entries on the path to it from the newest get a pointer at it, unless
an entry in between is at least as high. This is a skip list (Pugh, 1990) in which no entry moves. Entries
without a pointer at a late one reach it with a few more hops.

The layout::

    0   uint64   heights of the entries it points at, a bit each; n if byte 9 is 0, as in old entries
    8   uint8    number of pointers
    9   uint8    1 + its own height
    10  uint48   n; for a late entry, n of the entry behind it
    16  uint64…  write times of the entries it points at, in milliseconds of Unix time, descending
        …        the record; empty if the key had no value from then on
"""

from __future__ import annotations

import secrets
import struct
from itertools import pairwise
from typing import NamedTuple

_HEAD = struct.Struct("<QBB6s")
_NUMBER_BYTES = 6
_MOST_POINTERS = 64
_HIGHEST = 63


class Node(NamedTuple):
    """The place of an entry among those of its key.

    Attributes:
        time: Write time of its value in milliseconds of Unix time; 0 for none.
        number: Number of entries before it, without late ones.
        pointers: Write times of earlier entries, descending; the first is that of the entry before it.
        heights: Heights of these entries, a bit each; the first is the lowest.
        height: Its own height.
    """

    time: int
    number: int = 0
    pointers: tuple[int, ...] = ()
    heights: int = 0
    height: int = _HIGHEST

    def encode(self) -> bytes:
        """Return the bytes stored before the record."""
        count = len(self.pointers)
        head = _HEAD.pack(self.heights, count, 1 + self.height, self.number.to_bytes(_NUMBER_BYTES, "little"))
        return head + struct.pack(f"<{count}Q", *self.pointers)

    def next(self, time: int) -> Node:
        """Return the entry after this one."""
        if not self.time:
            return Node(time)
        heights = self.heights & -(2 << self.height) | 1 << self.height
        higher = self.pointers[len(self.pointers) - heights.bit_count() + 1 :]
        number = self.number + 1
        return Node(time, number, (self.time, *higher), heights, _zeros(number))

    def late(self, time: int) -> Node:
        """Return an entry between this one and the one before it."""
        return Node(time, self.number, self.pointers, self.heights, _zeros(secrets.randbits(_HIGHEST)))

    def seeing(self, other: Node) -> Node:
        """Return this entry with a pointer at a late one, unless an entry in between is at least as high."""
        lower, heights, higher = list[int](), 0, list[int]()
        for pointer, height in zip(self.pointers, _bits(self.heights), strict=True):
            if pointer > other.time:
                if height >= other.height:
                    return self
                lower.append(pointer)
            elif height > other.height:
                higher.append(pointer)
            else:
                continue
            heights |= 1 << height
        return self._replace(pointers=(*lower, other.time, *higher), heights=heights | 1 << other.height)

    def towards(self, time: int) -> int:
        """Return the earliest entry it points at that is later than a time; 0 if there is none."""
        return next((pointer for pointer in reversed(self.pointers) if pointer > time), 0)

    @property
    def before(self) -> int:
        """Write time of the entry before it; 0 for none."""
        return self.pointers[0] if self.pointers else 0


NO_NODE = Node(0)


def decoded(time: int, entry: bytes) -> tuple[Node, bytes] | None:
    """Decode an entry into a node and a record; return None if it is not an entry.

    Args:
        time: Write time from the entry's key.
        entry: Value from the store.
    """
    if len(entry) < _HEAD.size:
        return None
    heights, count, height, last = _HEAD.unpack_from(entry)
    number = int.from_bytes(last, "little") if height else heights
    end = _HEAD.size + 8 * count
    if count > _MOST_POINTERS or len(entry) < end or height > 1 + _HIGHEST:
        return None
    pointers = struct.unpack_from(f"<{count}Q", entry, _HEAD.size)
    if any(one <= other for one, other in pairwise((time, *pointers))):  # a walk would never end
        return None
    if not height:  # written before heights were stored
        heights, height = _heights_before(number), 1 + _zeros(number)
        heights = heights if heights.bit_count() == count else (1 << count) - 1
    if heights.bit_count() != count:
        return None
    return Node(time, number, pointers, heights, height - 1), entry[end:]


def _heights_before(number: int) -> int:
    """Return the heights of the entries that the n-th entry points at."""
    heights, place = 0, number - 1
    while place > 0:
        heights |= 1 << _zeros(place)
        place &= place - 1
    return heights | 1 << _HIGHEST if number else 0


def _zeros(number: int) -> int:
    """Return the number of trailing zeros of a number."""
    return min(_HIGHEST, (number & -number).bit_length() - 1) if number else _HIGHEST


def _bits(number: int) -> list[int]:
    """Return the set bits of a number, the lowest first."""
    return [bit for bit in range(number.bit_length()) if number >> bit & 1]
