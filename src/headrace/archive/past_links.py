"""How replaced values hang together: each entry points at some of those before it, to find a time fast.

Each entry has a height. It points at the entry before it, at the nearest one before that which is higher, at
the nearest one before that which is higher still, and so on. The n-th entry of a key, counted from 0, is as
high as n has zeros at its end: so its pointers lead to n - 1 and to what that is with its lowest bits
cleared, one after the other; they follow from those of the entry before it, so that a new one costs no reads;
and from the newest entry to any other it is no more hops than the number has bits.

An entry that comes late, between others, has a height by chance, as often so high as others are. It has the
pointers of the one behind it. Those on the way to it from the newest get to know it, as far as they see it:
that is a skip list (Pugh, 1990), in which no entry needs to be moved. Whoever is not told of an entry finds
it with a few hops more.

::

    0   uint64   the heights of those that it points at, a bit each; if the next field's second byte is 0: n
    8   uint8    how many pointers there are
    9   uint8    1 + its own height
    10  uint48   n; of a late one that of the entry behind it
    16  uint64…  when the entries it points at were written, in milliseconds of Unix time, descending
        …        the record; nothing where the key had no value from then on
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
        time: When its value was written, in milliseconds of Unix time; 0 for none.
        number: How many were written before it, and not late.
        pointers: When entries before it were written, descending; the first is the one before it.
        heights: How high those are, a bit each: the first is the lowest.
        height: How high it is itself.
    """

    time: int
    number: int = 0
    pointers: tuple[int, ...] = ()
    heights: int = 0
    height: int = _HIGHEST

    def encode(self) -> bytes:
        """What stands before its record."""
        count = len(self.pointers)
        head = _HEAD.pack(self.heights, count, 1 + self.height, self.number.to_bytes(_NUMBER_BYTES, "little"))
        return head + struct.pack(f"<{count}Q", *self.pointers)

    def next(self, time: int) -> Node:
        """The entry after this one."""
        if not self.time:
            return Node(time)
        heights = self.heights & -(2 << self.height) | 1 << self.height
        higher = self.pointers[len(self.pointers) - heights.bit_count() + 1 :]
        number = self.number + 1
        return Node(time, number, (self.time, *higher), heights, _zeros(number))

    def late(self, time: int) -> Node:
        """An entry between this one and the one before it."""
        return Node(time, self.number, self.pointers, self.heights, _zeros(secrets.randbits(_HIGHEST)))

    def seeing(self, other: Node) -> Node:
        """This entry, with a pointer at a late one if none between them is as high."""
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
        """The farthest entry that was written after a time, to go on from; 0 if this is the last of them."""
        return next((pointer for pointer in reversed(self.pointers) if pointer > time), 0)

    @property
    def before(self) -> int:
        """When the entry before it was written; 0 for none."""
        return self.pointers[0] if self.pointers else 0


NO_NODE = Node(0)


def decoded(time: int, entry: bytes) -> tuple[Node, bytes] | None:
    """A node and its record; None for what is no entry.

    Args:
        time: When it was written, by its key.
        entry: What the store gave.
    """
    if len(entry) < _HEAD.size:
        return None
    heights, count, height, last = _HEAD.unpack_from(entry)
    number = int.from_bytes(last, "little") if height else heights
    end = _HEAD.size + 8 * count
    if count > _MOST_POINTERS or len(entry) < end or height > 1 + _HIGHEST:
        return None
    pointers = struct.unpack_from(f"<{count}Q", entry, _HEAD.size)
    if any(one <= other for one, other in pairwise((time, *pointers))):  # it would be walked for ever
        return None
    if not height:  # before there were heights
        heights, height = _heights_before(number), 1 + _zeros(number)
        heights = heights if heights.bit_count() == count else (1 << count) - 1
    if heights.bit_count() != count:
        return None
    return Node(time, number, pointers, heights, height - 1), entry[end:]


def _heights_before(number: int) -> int:
    """The heights of those that the n-th entry points at."""
    heights, place = 0, number - 1
    while place > 0:
        heights |= 1 << _zeros(place)
        place &= place - 1
    return heights | 1 << _HIGHEST if number else 0


def _zeros(number: int) -> int:
    """How many zeros a number has at its end."""
    return min(_HIGHEST, (number & -number).bit_length() - 1) if number else _HIGHEST


def _bits(number: int) -> list[int]:
    """Which bits of a number are set, the lowest first."""
    return [bit for bit in range(number.bit_length()) if number >> bit & 1]
