"""What every store refuses in the same words: names, keys and values that another store could not hold."""

from __future__ import annotations

import re
from collections.abc import Sequence

from headrace.errors import InvalidRequest, NotFound, TooLarge, shown
from headrace.stores.store import (
    LARGEST_VALUE_BYTES,
    LONGEST_KEY_BYTES,
    LONGEST_NAME,
    LONGEST_PARTITION,
    Item,
)

_PARTITION = re.compile(rf"[a-z0-9_]{{1,{LONGEST_PARTITION}}}")
_NAME = re.compile(rf"[ -~]{{1,{LONGEST_NAME}}}")


def check_partition(partition: str) -> None:
    """Refuse what cannot be a partition's name.

    Raises:
        InvalidRequest: It is too long, or has other characters.
    """
    if not _PARTITION.fullmatch(partition):
        raise InvalidRequest(
            f"expected 1 to {LONGEST_PARTITION} of small letters, digits and _, got {shown(partition)}",
            field="partition",
        )


def check_record(name: str, value: bytes = b"") -> None:
    """Refuse what cannot be a record.

    Raises:
        InvalidRequest: Its name is too long, or has other characters.
        TooLarge: Its value is.
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
    """Refuse items that some store could not hold, before one of them is written.

    Raises:
        InvalidRequest: A key is empty, or the time is no time.
        TooLarge: A key or a value is too long.
    """
    if not 0 <= ttl_seconds < float("inf"):
        raise InvalidRequest(f"expected seconds, 0 or more, got {ttl_seconds!r}", field="ttl_seconds")
    for key, value in items:
        if not 0 < len(key) <= LONGEST_KEY_BYTES:
            error = TooLarge if key else InvalidRequest
            raise error(
                f"expected 1 to {LONGEST_KEY_BYTES} bytes, got {len(key)}: use a digest of what is longer",
                field=f"key {shown(key)}",
            )
        if len(value) > LARGEST_VALUE_BYTES:
            raise TooLarge(
                f"expected a value of at most {LARGEST_VALUE_BYTES} bytes, got {len(value)}",
                field=f"key {shown(key)}",
            )


def not_there(partition: str) -> NotFound:
    """The error of a write to a partition that was never made."""
    return NotFound(f"partition {shown(partition)}: it was never made, or has been dropped; create it first")


def no_cursor(cursor: bytes) -> InvalidRequest:
    """The error of a scan that goes on from something else than a page's cursor."""
    return InvalidRequest(f"expected what a page gave, got {shown(cursor)}", field="cursor")
