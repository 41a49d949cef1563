"""Dead letters: keys that could not be embedded, each with the reason, until they are replayed or dropped.

``archive/filling/retries_and_dead_letters.py`` decides when a key becomes a dead letter.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import msgspec

from headrace.archive.model.keys import stored
from headrace.storage.stores.store import Item, Store, pages

PARTITION = "dead_letters"
"""Store partition of the dead letters."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A key that could not be embedded.

    Attributes:
        space: Name of the space.
        version: Space version that has no vector of the key.
        key: The key.
        reason: Reason, for people.
        attempts: Number of attempts.
        died: Time it was given up, in seconds of Unix time.
        is_final: Whether every retry would fail; the key is then not retried when it is queued again.
    """

    space: str
    version: int
    key: str
    reason: str
    attempts: int
    died: float
    is_final: bool = False


class DeadLetters:
    """The dead letters of an archive.

    Attributes:
        damaged: Number of unreadable values that were skipped; forgetting their keys removes them.
    """

    def __init__(self, store: Store) -> None:
        """Keep the dead letters in a store."""
        self._store = store
        self.damaged = 0

    def add(self, letters: Sequence[DeadLetter]) -> None:
        """Store dead letters, replacing those of the same key and space version.

        Raises:
            Unavailable: The store does not answer.
        """
        self._store.create(PARTITION)
        items = [Item(_name_of(one), msgspec.json.encode(one)) for one in letters]
        self._store.put_many(PARTITION, items)

    def all(self, space: str = "") -> Iterator[DeadLetter]:
        """Yield the dead letters of a space, or of all spaces.

        Raises:
            Unavailable: The store does not answer.
        """
        for page in pages(self._store, PARTITION):
            for value in self._store.get_many(PARTITION, page.keys):
                letter = self._decoded(value)
                if letter is not None and space in ("", letter.space):
                    yield letter

    def of(self, space: str, keys: Sequence[str], version: int) -> dict[str, DeadLetter]:
        """Return the dead letters of some keys in a space version, by key.

        Raises:
            Unavailable: The store does not answer.
        """
        values = self._store.get_many(PARTITION, [_name(space, version, key) for key in keys])
        letters = {key: self._decoded(value) for key, value in zip(keys, values, strict=True)}
        return {key: letter for key, letter in letters.items() if letter is not None}

    def among(self, space: str, keys: Sequence[str], version: int) -> set[str]:
        """Return the keys that have a dead letter in a space version.

        Raises:
            Unavailable: The store does not answer.
        """
        values = self._store.get_many(PARTITION, [_name(space, version, key) for key in keys])
        return {key for key, value in zip(keys, values, strict=True) if value}

    def drop(self, space: str, keys: Sequence[str], versions: Sequence[int]) -> None:
        """Remove the dead letters of some keys in some versions of a space.

        Raises:
            Unavailable: The store does not answer.
        """
        self._store.delete_many(
            PARTITION, [_name(space, version, key) for version in versions for key in keys]
        )

    def remove(self, letters: Sequence[DeadLetter]) -> None:
        """Remove dead letters, except those that were replaced since they were read.

        Raises:
            Unavailable: The store does not answer.
        """
        names = [_name_of(one) for one in letters]
        values = self._store.get_many(PARTITION, names)
        old = [
            name
            for name, value, letter in zip(names, values, letters, strict=True)
            if self._decoded(value) == letter
        ]
        self._store.delete_many(PARTITION, old)

    def _decoded(self, value: bytes) -> DeadLetter | None:
        """Return a dead letter; None if missing or unreadable, so that the others can still be read."""
        try:
            return msgspec.json.decode(value, type=DeadLetter) if value else None
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self.damaged += 1
            return None


def now() -> float:
    """Return the current time in seconds of Unix time, as in ``DeadLetter.died``."""
    return time.time_ns() / 1e9


def _name_of(letter: DeadLetter) -> bytes:
    return _name(letter.space, letter.version, letter.key)


def _name(space: str, version: int, key: str) -> bytes:
    return stored(f"{space}\0{version}\0{key}".encode())
