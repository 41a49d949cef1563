"""Dead letters: keys that have no vector, each with the reason, until somebody replays or drops them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import msgspec

from headrace.archive.keys import stored
from headrace.stores.store import Item, Store, pages

PARTITION = "dead_letters"
"""Where they are in the store."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A key that could not be embedded.

    Attributes:
        space: Its space.
        version: The space version that has no vector of it.
        key: The key.
        reason: Why, for people.
        attempts: How often it was tried.
        died: When it was given up, in seconds of Unix time.
        is_final: Whether trying again could not help: then it is not tried when it is asked for again.
    """

    space: str
    version: int
    key: str
    reason: str
    attempts: int
    died: float
    is_final: bool = False


class DeadLetters:
    """Those of an archive.

    Attributes:
        damaged: How many values were passed over that are no letters; to forget their keys removes them.
    """

    def __init__(self, store: Store) -> None:
        """Keep them in a store."""
        self._store = store
        self.damaged = 0

    def add(self, letters: Sequence[DeadLetter]) -> None:
        """Keep some; one of the same key and space version is replaced.

        Raises:
            Unavailable: The store does not answer.
        """
        self._store.create(PARTITION)
        items = [Item(_name_of(one), msgspec.json.encode(one)) for one in letters]
        self._store.put_many(PARTITION, items)

    def all(self, space: str = "") -> Iterator[DeadLetter]:
        """Those of a space, or of all.

        Raises:
            Unavailable: The store does not answer.
        """
        for page in pages(self._store, PARTITION):
            for value in self._store.get_many(PARTITION, page.keys):
                letter = self._decoded(value)
                if letter is not None and space in ("", letter.space):
                    yield letter

    def of(self, space: str, keys: Sequence[str], version: int) -> dict[str, DeadLetter]:
        """Those of some keys of a space version, by key.

        Raises:
            Unavailable: The store does not answer.
        """
        values = self._store.get_many(PARTITION, [_name(space, version, key) for key in keys])
        letters = {key: self._decoded(value) for key, value in zip(keys, values, strict=True)}
        return {key: letter for key, letter in letters.items() if letter is not None}

    def among(self, space: str, keys: Sequence[str], version: int) -> set[str]:
        """Which of some keys are dead letters of a space version.

        Raises:
            Unavailable: The store does not answer.
        """
        values = self._store.get_many(PARTITION, [_name(space, version, key) for key in keys])
        return {key for key, value in zip(keys, values, strict=True) if value}

    def drop(self, space: str, keys: Sequence[str], versions: Sequence[int]) -> None:
        """Remove those of some keys, of some versions of their space.

        Raises:
            Unavailable: The store does not answer.
        """
        self._store.delete_many(
            PARTITION, [_name(space, version, key) for version in versions for key in keys]
        )

    def remove(self, letters: Sequence[DeadLetter]) -> None:
        """Remove letters; one whose key has died anew since they were read stays.

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
        """A letter; None where there is none, or nobody can read it: that keeps no other from being read."""
        try:
            return msgspec.json.decode(value, type=DeadLetter) if value else None
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self.damaged += 1
            return None


def now() -> float:
    """When a letter dies: seconds of Unix time."""
    return time.time_ns() / 1e9


def _name_of(letter: DeadLetter) -> bytes:
    return _name(letter.space, letter.version, letter.key)


def _name(space: str, version: int, key: str) -> bytes:
    return stored(f"{space}\0{version}\0{key}".encode())
