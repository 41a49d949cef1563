"""Limits that all stores share: each refuses names, keys and values that another could not hold."""

from __future__ import annotations

import re
from collections.abc import Sequence

from headrace.base.errors import InvalidRequest, NotFound, TooLarge, shown
from headrace.storage.stores.store import (
    LARGEST_VALUE_BYTES,
    LONGEST_KEY_BYTES,
    LONGEST_NAME,
    LONGEST_PARTITION,
    Item,
)

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
    """Return the error for a scan cursor that no page returned."""
    return InvalidRequest(f"expected the cursor of a page, got {shown(cursor)}", field="cursor")
