"""Tombstones for keys that were forgotten while they may have been queued or embedded."""

from __future__ import annotations

import time
from collections.abc import Sequence

from headrace.archive.model.keys import stored
from headrace.storage.stores.store import Item, Store

PARTITION = "forgotten"
"""Store partition of the tombstones."""

_KEPT_SECONDS = 30 * 86_400.0
_STAMP_BYTES = 8

CLOCKS_APART_SECONDS = 5.0
"""Largest assumed difference between two machines' clocks, when queue times and tombstones are compared."""


class Forgotten:
    """Times at which keys were forgotten. Fillers check them before embedding a key and after storing it.

    A queue may be unable to drop a key's message, and a filler may be making its vector. A tombstone holds a
    digest, not the key, for 30 days.
    """

    def __init__(self, store: Store) -> None:
        """Keep the tombstones in a store."""
        self._store = store

    def add(self, space: str, keys: Sequence[str], margin_seconds: float = 0.0) -> None:
        """Record that keys are forgotten now.

        Args:
            space: Name of the space.
            keys: The keys.
            margin_seconds: Messages queued up to this long after now also count as queued before.

        Raises:
            Unavailable: The store does not answer.
        """
        self._store.create(PARTITION)
        stamp = (time.time_ns() + int(margin_seconds * 1e9)).to_bytes(_STAMP_BYTES, "big")
        self._store.put_many(PARTITION, [Item(_name(space, key), stamp) for key in keys], _KEPT_SECONDS)

    def since(self, wanted: Sequence[tuple[str, str, float]]) -> list[bool]:
        """Return which keys were forgotten after they were queued.

        Args:
            wanted: Space, key, and queue time in seconds of Unix time.

        Raises:
            Unavailable: The store does not answer.
        """
        names = [_name(space, key) for space, key, _ in wanted]
        stamps = self._store.get_many(PARTITION, names)
        return [
            bool(stamp) and int.from_bytes(stamp, "big") >= queued * 1e9
            for stamp, (_, _, queued) in zip(stamps, wanted, strict=True)
        ]


def _name(space: str, key: str) -> bytes:
    digest = stored(f"{space}\0{key}".encode().ljust(480, b"\0"))
    return digest[-32:]
