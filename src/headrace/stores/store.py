"""Store: values by key, in partitions. The contract that each engine keeps, and the suite tests.

Keys and values are bytes. A partition holds one kind of thing: the vectors of one space version, the rows of
one feature table, dead letters. Beside partitions a Store holds a few small records by name, which are
changed by compare-and-swap: what all processes must agree on.

Calls block, and may be made from any number of threads at once. Each ends within the time that the store was
opened with, by its result or by ``Unavailable``; a call that failed may be made again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, runtime_checkable

from headrace.tensors import Array

LONGEST_KEY_BYTES = 480
"""The longest key that every store takes; whoever has longer ones uses a digest of them. None is empty."""

LARGEST_VALUE_BYTES = 1024 * 1024
"""The largest value that every store takes."""

LONGEST_PARTITION = 48
"""The most characters of a partition's name, which are small letters, digits and underscores."""

LONGEST_NAME = 200
"""The most characters of a record's name, which are printable ASCII."""

START = b""
"""The cursor that a scan starts with, and that says that nothing is left."""


class Item(NamedTuple):
    """One key with its value."""

    key: bytes
    value: bytes


class Page(NamedTuple):
    """Some keys of a partition.

    Attributes:
        keys: In the store's own order.
        cursor: Where the next page begins; ``START`` when there is none.
    """

    keys: list[bytes]
    cursor: bytes


@runtime_checkable
class InPlace(Protocol):
    """What a Store may have beside: it says where in memory values lie, so that none is copied."""

    def in_place(self, partition: str, keys: list[str]) -> AbstractContextManager[Array | None]:
        """Where the values of keys lie, as long as the context is open; others may write meanwhile.

        Args:
            partition: Where.
            keys: Texts of fewer than ``LONGEST_KEY_BYTES`` of UTF-8; not changed until this returns.

        Returns:
            The address and the size of each, int64 ``[N, 2]``, 0 for one that is not there, or is over its
            time; None if that cannot be said: then ``get_many`` is to be asked.

        Raises:
            Unavailable: The store cannot be read.
        """


class Store(Protocol):
    """Values by key.

    Attributes:
        is_local: Whether a read is a look into this machine's memory or files, a few microseconds long: then
            it is made in the thread that asks, and no deadline is kept for it.
    """

    is_local: bool

    def create(self, partition: str) -> None:
        """Make a partition; nothing happens if it is there.

        Raises:
            Unavailable: The store did not answer in time; for all calls.
            InvalidRequest: The name cannot be one.
        """

    def drop(self, partition: str) -> None:
        """Remove a partition with all it holds; nothing happens if it is not there.

        From then on nothing of it is seen, also where it is made anew. What it took is given back in slices,
        which do not hold up others: some of it perhaps after this call, by later ones.
        """

    def get_many(self, partition: str, keys: Sequence[bytes], missing: bytes = b"") -> list[bytes]:
        """The values of keys.

        Args:
            partition: Where; one that was never made has no keys.
            keys: Any number; the same key may come more than once. One that no store takes (empty, or too
                long) is not there.
            missing: What stands for a value that is not there, or is over its time.

        Returns:
            As many as keys, in their order.
        """

    def put_many(self, partition: str, items: Sequence[Item], ttl_seconds: float = 0.0) -> None:
        """Write values; those that are there are replaced, and writing the same again changes nothing.

        When it returns, the values survive the end of this process, and of the store's if it promises that.
        Of several values of one key the last one counts.

        Args:
            partition: Where; it was made.
            items: Any number; they may come to be there in parts, each item whole.
            ttl_seconds: When the values are to be forgotten, to the second; 0 for never.

        Raises:
            NotFound: The partition was never made, or was dropped.
            InvalidRequest: A key is empty; as TooLarge: a key or a value is too long. Nothing was written.
            Unavailable: Some of them may have been written.
        """

    def delete_many(self, partition: str, keys: Sequence[bytes]) -> None:
        """Remove keys; those that are not there are passed over."""

    def scan(self, partition: str, cursor: bytes = START, limit: int = 1000) -> Page:
        """The keys of a partition, a page at a time.

        A key that is there from the first page to the last comes at least once, and may come twice; one that
        comes or goes meanwhile may be missed. A cursor works in another process, too, and after a restart.

        Args:
            partition: Where.
            cursor: ``START``, or what the page before gave.
            limit: About how many keys; a page may be empty and not the last.

        Raises:
            InvalidRequest: The cursor is none of this store's.
        """

    def read(self, name: str) -> bytes | None:
        """A record, or None; never one that an earlier ``swap`` of anybody replaced.

        Args:
            name: Of the record: up to ``LONGEST_NAME`` printable ASCII characters.
        """

    def swap(self, name: str, expected: bytes | None, value: bytes) -> bool:
        """Write a record if it is still what is expected.

        Args:
            name: Of the record.
            expected: What it must be now; None for not there.
            value: What it shall be.

        Returns:
            Whether it was written. After ``Unavailable`` it may have been: read it.
        """

    def close(self) -> None:
        """Let go of files and connections; no call is under way or comes after it."""


def pages(store: Store, partition: str, cursor: bytes = START, limit: int = 1000) -> Iterator[Page]:
    """All pages of a partition; the cursor of each says where to go on after it.

    Args:
        store: Where it is.
        partition: Which it is.
        cursor: Where to begin.
        limit: About how many keys a page has.

    Raises:
        Unavailable: The store does not answer.
        InvalidRequest: The cursor is none of this store's.
    """
    while True:
        page = store.scan(partition, cursor, limit)
        yield page
        cursor = page.cursor
        if cursor == START:
            return
