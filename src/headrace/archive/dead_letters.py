"""Dead letters: keys that have no vector, each with the reason, until somebody replays or drops them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import msgspec

from headrace.archive.keys import stored
from headrace.errors import HeadraceError
from headrace.stores.store import START, Item, Store

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
    """

    space: str
    version: int
    key: str
    reason: str
    attempts: int
    died: float


class DeadLetters:
    """Those of an archive."""

    def __init__(self, store: Store) -> None:
        """Keep them in a store."""
        self._store = store

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
        cursor = START
        while True:
            page = self._store.scan(PARTITION, cursor)
            for value in self._store.get_many(PARTITION, page.keys):
                letter = _decoded(value) if value else None
                if letter is not None and space in ("", letter.space):
                    yield letter
            cursor = page.cursor
            if cursor == START:
                return

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
            if value and _decoded(value) == letter
        ]
        self._store.delete_many(PARTITION, old)


def _decoded(value: bytes) -> DeadLetter:
    try:
        return msgspec.json.decode(value, type=DeadLetter)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HeadraceError(f"a dead letter in the store is damaged: {error}") from error


def now() -> float:
    """When a letter dies: seconds of Unix time."""
    return time.time_ns() / 1e9


def _name_of(letter: DeadLetter) -> bytes:
    return _name(letter.space, letter.version, letter.key)


def _name(space: str, version: int, key: str) -> bytes:
    return stored(f"{space}\0{version}\0{key}".encode())
