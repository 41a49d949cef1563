"""Keys that were forgotten while they may have been on their way to a vector."""

from __future__ import annotations

import time
from collections.abc import Sequence

from headrace.archive.keys import stored
from headrace.stores.store import Item, Store

PARTITION = "forgotten"
"""Where they are in the store."""

_KEPT_SECONDS = 30 * 86_400.0
_STAMP_BYTES = 8

CLOCKS_APART_SECONDS = 5.0
"""How far clocks of two machines may be apart, where what was queued is compared with what was forgotten."""


class Forgotten:
    """When keys were forgotten: whoever fills asks before it embeds a key, and after it has stored a vector.

    A queue may not be able to drop what waits in it, and a vector may be on its way. What is remembered for
    that is a digest, not the key, for 30 days.
    """

    def __init__(self, store: Store) -> None:
        """Keep it in a store."""
        self._store = store

    def add(self, space: str, keys: Sequence[str], margin_seconds: float = 0.0) -> None:
        """Remember that keys are forgotten now.

        Args:
            space: Their space.
            keys: The keys.
            margin_seconds: For how long after now what is queued counts as queued before.

        Raises:
            Unavailable: The store does not answer.
        """
        self._store.create(PARTITION)
        stamp = (time.time_ns() + int(margin_seconds * 1e9)).to_bytes(_STAMP_BYTES, "big")
        self._store.put_many(PARTITION, [Item(_name(space, key), stamp) for key in keys], _KEPT_SECONDS)

    def since(self, wanted: Sequence[tuple[str, str, float]]) -> list[bool]:
        """Which keys were forgotten after they were queued.

        Args:
            wanted: The space, the key, and when it was queued, in seconds of Unix time.

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
