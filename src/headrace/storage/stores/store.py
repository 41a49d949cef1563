"""Store: values by key, in partitions. The contract of all engines, tested by the conformance suite.

Keys and values are bytes. A partition holds one kind of thing: the vectors of one space version, the rows of
one feature table, dead letters. Beside partitions a Store holds a few small named records, changed by
compare-and-swap. They hold the state that all processes must agree on.

Calls block and are thread-safe. Each returns, or raises ``Unavailable``, within the store's timeout. Any
failed call except ``swap`` may be retried.

All stores share the limits of names, keys and values: each refuses those that another could not hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, runtime_checkable

from headrace.base.errors import InvalidRequest, NotFound, TooLarge, shown
from headrace.base.tensors import Array

LONGEST_KEY_BYTES = 480
"""Longest key in bytes that every store takes. Use a digest for longer ones. Keys are never empty."""

LARGEST_VALUE_BYTES = 1024 * 1024
"""Largest value in bytes that every store takes."""

LONGEST_PARTITION = 48
"""Longest partition name in characters, which are lowercase letters, digits and underscores."""

LONGEST_NAME = 200
"""Longest record name in characters, which are printable ASCII."""

START = b""
"""The cursor that starts a scan, and that the last page returns."""


class Item(NamedTuple):
    """A key with its value."""

    key: bytes
    value: bytes


class Page(NamedTuple):
    """A page of the keys of a partition.

    Attributes:
        keys: Keys in the store's own order.
        cursor: Cursor of the next page; ``START`` if this is the last one.
    """

    keys: list[bytes]
    cursor: bytes


@runtime_checkable
class InPlace(Protocol):
    """An optional interface of a Store that returns the addresses of values, so that none is copied."""

    def in_place(self, partition: str, keys: list[str]) -> AbstractContextManager[Array | None]:
        """Return the addresses of values, valid while the context is open; others may write meanwhile.

        Args:
            partition: Name of the partition.
            keys: Keys of fewer than ``LONGEST_KEY_BYTES`` bytes in UTF-8; unchanged until the context opens.

        Returns:
            The address and size of each value, int64 ``[N, 2]``, zeros for a missing or expired one. None if
            they cannot be determined; then call ``get_many``.

        Raises:
            Unavailable: The store cannot be read.
        """


class Store(Protocol):
    """Values by key.

    Attributes:
        is_local: Whether a read takes only microseconds, from this machine's memory or files. Reads are then
            made in the calling thread, without a deadline.
    """

    is_local: bool

    def create(self, partition: str) -> None:
        """Create a partition, unless it exists.

        Raises:
            Unavailable: The store did not answer in time; applies to all calls.
            InvalidRequest: The name is not valid.
        """

    def drop(self, partition: str) -> None:
        """Remove a partition with all its values, if it exists.

        From then on nothing of it is visible, even if it is created again. Its space is freed in slices that
        do not delay other calls. Later calls may free the rest.
        """

    def get_many(self, partition: str, keys: Sequence[bytes], missing: bytes = b"") -> list[bytes]:
        """Return the values of keys.

        Args:
            partition: Name of the partition; one that does not exist has no keys.
            keys: Any number of keys, with repetitions. An invalid key (empty or too long) is treated as
                missing.
            missing: Result for a value that is missing or expired.

        Returns:
            One value for each key, in the order of ``keys``.
        """

    def put_many(self, partition: str, items: Sequence[Item], ttl_seconds: float = 0.0) -> None:
        """Write values, replacing existing ones; repeating a write changes nothing.

        When this returns, the values are written as durably as the store promises; the memory store loses
        them with the process. If a key occurs more than once, its last value is kept.

        Args:
            partition: Name of an existing partition.
            items: Any number of items. Each is written atomically; all together are not.
            ttl_seconds: Time to live in seconds, accurate to a second; 0 for none.

        Raises:
            NotFound: The partition was never created, or was dropped.
            InvalidRequest: A key is empty, or ``ttl_seconds`` is negative, infinite or not a number; nothing
                was written.
            TooLarge: A key is too long or a value too large; nothing was written.
            Unavailable: Some values may have been written.
        """

    def delete_many(self, partition: str, keys: Sequence[bytes]) -> None:
        """Remove keys, ignoring missing ones."""

    def scan(self, partition: str, cursor: bytes = START, limit: int = 1000) -> Page:
        """Return one page of the keys of a partition.

        A key that exists from the first page to the last is returned at least once, and possibly twice. One
        that is added or removed meanwhile may be missed. A cursor also works in another process, and after a
        restart of this one.

        Args:
            partition: Name of the partition.
            cursor: ``START``, or the cursor of the previous page.
            limit: Approximate number of keys; an empty page is not necessarily the last.

        Raises:
            InvalidRequest: The cursor is not one of this store's.
        """

    def read(self, name: str) -> bytes | None:
        """Return a record, or None if it does not exist. The value reflects all earlier swaps.

        Args:
            name: Name of the record: up to ``LONGEST_NAME`` printable ASCII characters.
        """

    def swap(self, name: str, expected: bytes | None, value: bytes) -> bool:
        """Write a record if its current value is the expected one.

        Args:
            name: Name of the record.
            expected: Expected current value; None if the record must not exist.
            value: New value.

        Returns:
            Whether the record was written.

        Raises:
            Unavailable: The record may or may not have been written; read it to find out.
        """

    def close(self) -> None:
        """Close files and connections.

        The caller ensures that no call is in progress, and makes none afterwards.
        """


def pages(store: Store, partition: str, cursor: bytes = START, limit: int = 1000) -> Iterator[Page]:
    """Yield all pages of a partition; each page's cursor tells where to resume after it.

    Args:
        store: Store to read.
        partition: Name of the partition.
        cursor: Cursor to start from.
        limit: Approximate number of keys in a page.

    Raises:
        Unavailable: The store does not answer.
        InvalidRequest: The cursor is not one of this store's.
    """
    while True:
        page = store.scan(partition, cursor, limit)
        yield page
        cursor = page.cursor
        if cursor == START:
            return


_PARTITION = re.compile(rf"[a-z0-9_]{{1,{LONGEST_PARTITION}}}")
_NAME = re.compile(rf"[ -~]{{1,{LONGEST_NAME}}}")


def check_partition(partition: str) -> None:
    """Check the name of a partition.

    Raises:
        InvalidRequest: The name is empty, too long, or contains a character that is not allowed.
    """
    if not _PARTITION.fullmatch(partition):
        raise InvalidRequest(
            f"expected 1 to {LONGEST_PARTITION} lowercase letters, digits and _, got {shown(partition)}",
            field="partition",
        )


def check_record(name: str, value: bytes = b"") -> None:
    """Check the name and value of a record.

    Raises:
        InvalidRequest: The name is empty, too long, or contains a character that is not allowed.
        TooLarge: The value is too large.
    """
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"expected 1 to {LONGEST_NAME} printable ASCII characters, got {shown(name)}", field="name"
        )
    if len(value) > LARGEST_VALUE_BYTES:
        raise TooLarge(
            f"expected a value of at most {LARGEST_VALUE_BYTES} bytes, got {len(value)}",
            field=f"record {name!r}",
        )


def check_items(items: Sequence[Item], ttl_seconds: float) -> None:
    """Check all items before the first of them is written.

    Raises:
        InvalidRequest: A key is empty, or ``ttl_seconds`` is negative, infinite or not a number.
        TooLarge: A key is too long or a value too large.
    """
    if not 0 <= ttl_seconds < float("inf"):
        raise InvalidRequest(f"expected seconds, 0 or more, got {ttl_seconds!r}", field="ttl_seconds")
    for key, value in items:
        if not 0 < len(key) <= LONGEST_KEY_BYTES:
            error = TooLarge if key else InvalidRequest
            way_out = "; use a digest for longer keys" if key else ""
            raise error(
                f"expected 1 to {LONGEST_KEY_BYTES} bytes, got {len(key)}{way_out}",
                field=f"key {shown(key)}",
            )
        if len(value) > LARGEST_VALUE_BYTES:
            raise TooLarge(
                f"expected a value of at most {LARGEST_VALUE_BYTES} bytes, got {len(value)}",
                field=f"key {shown(key)}",
            )


def not_there(partition: str) -> NotFound:
    """Return the error for a write to a partition that does not exist."""
    return NotFound(f"partition {shown(partition)} was never created or has been dropped; create it first")


def no_cursor(cursor: bytes) -> InvalidRequest:
    """Return the error for a scan cursor that is not one of the store's."""
    return InvalidRequest(f"expected the cursor of a page, got {shown(cursor)}", field="cursor")
