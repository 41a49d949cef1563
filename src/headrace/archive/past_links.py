"""How replaced values hang together: each entry points at some of those before it, to find a time fast.

An entry is the n-th of its key, counted from 0. It points at the entry before it, n - 1, and at those whose
numbers are n - 1 with its lowest bits cleared, one after the other, down to 0. Its pointers follow from those
of the entry before it, so a new one costs no more reads; and from the newest entry to any other it is no more
hops than the number has bits.

::

    0   uint64   n
    8   uint64   how many pointers there are
    16  uint64…  when the entries it points at were written, in milliseconds of Unix time, descending
        …        the record; nothing where the key had no value from then on
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import NamedTuple

_HEAD = struct.Struct("<QQ")
_MOST_POINTERS = 65


class Node(NamedTuple):
    """The place of an entry among those of its key.

    Attributes:
        time: When its value was written, in milliseconds of Unix time; 0 for none.
        number: How many are before it.
        pointers: When entries before it were written, descending; the first is the one before it.
    """

    time: int
    number: int = 0
    pointers: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """What stands before its record."""
        count = len(self.pointers)
        return _HEAD.pack(self.number, count) + struct.pack(f"<{count}Q", *self.pointers)

    def next(self, time: int) -> Node:
        """The entry after this one."""
        if not self.time:
            return Node(time)
        places = dict(zip(_places(self.number - 1), self.pointers, strict=False)) if self.number else {}
        before = [places[place] for place in _places(self.number)[1:] if place in places]
        return Node(time, self.number + 1, (self.time, *before))

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
    number, count = _HEAD.unpack_from(entry)
    end = _HEAD.size + 8 * count
    if count > _MOST_POINTERS or len(entry) < end:
        return None
    pointers = struct.unpack_from(f"<{count}Q", entry, _HEAD.size)
    if any(one <= other for one, other in pairwise((time, *pointers))):  # it would be walked for ever
        return None
    return Node(time, number, pointers), entry[end:]


def _places(number: int) -> list[int]:
    """A number, and what it is with its lowest bits cleared, one after the other."""
    found = [number]
    while number > 0:
        number &= number - 1
        found.append(number)
    return found
