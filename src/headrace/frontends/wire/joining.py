"""Parts of a body or an answer, joined in small steps."""

from __future__ import annotations

from collections.abc import Generator
from io import BytesIO

_JOINED_BYTES = 256 * 1024


def joined(parts: list[bytes | memoryview]) -> Generator[None, None, bytes]:
    """Join parts in small steps, each of which is given back once it is copied: the list is emptied.

    Args:
        parts: The parts.
    """
    # What it is made with is written over, and becomes the bytes: nothing is copied again. Growing would copy
    # it several times where the system has no pages to move.
    whole, written = BytesIO(bytes(sum(map(len, parts)))), 0
    for index, part in enumerate(parts):
        view = memoryview(part)
        for start in range(0, len(view), _JOINED_BYTES):
            written += whole.write(view[start : start + _JOINED_BYTES])
            if written >= _JOINED_BYTES:
                written = 0
                yield
        parts[index] = b""
    return whole.getvalue()
