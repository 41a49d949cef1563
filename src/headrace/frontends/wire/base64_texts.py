"""Decode base64 as common tools write it: with line ends, without padding, or in the URL-safe alphabet."""

from __future__ import annotations

import base64
from collections.abc import Iterator

_TO_STANDARD = str.maketrans({"\r": None, "\n": None, "\t": None, " ": None, "-": "+", "_": "/"})
_MOST_PADDING = 2


def decoding(text: str, step: int) -> Iterator[bytes]:
    """Decode base64 in small steps.

    Args:
        text: Base64 in RFC 4648's standard or URL-safe alphabet, with or without padding and white space.
        step: Number of characters decoded at once.

    Yields:
        Decoded bytes of each step.

    Raises:
        ValueError: The text is not base64.
    """
    left = ""
    for start in range(0, len(text), step):
        left += text[start : start + step].translate(_TO_STANDARD)
        digits = left.rstrip("=")
        if "=" in digits:
            raise ValueError("padding within the text")
        if len(left) - len(digits) > _MOST_PADDING:
            raise ValueError("more than two characters of padding")
        if start + step < len(text):
            whole = len(digits) - len(digits) % 4
        else:
            left = digits + "=" * (-len(digits) % 4)
            whole = len(left)
        yield base64.b64decode(left[:whole], validate=True)
        left = left[whole:]


def decoded(text: str) -> bytes:
    """Decode base64 at once; see ``message_decoding``."""
    return b"".join(decoding(text, max(1, len(text))))
