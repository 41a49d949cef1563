"""Join the parts of a body or a response in small steps."""

from __future__ import annotations

from collections.abc import Generator
from io import BytesIO

_JOINED_BYTES = 256 * 1024


def joined(parts: list[bytes | memoryview]) -> Generator[None, None, bytes]:
    """Join parts in small steps, freeing each once it is copied.

    Args:
        parts: Parts to join; each is replaced by empty bytes.
    """
    # The initial bytes are overwritten in place and returned without another copy. A growing buffer would be
    # copied several times where the system cannot move its pages.
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
