"""API keys: 256 random bits with a public id in front; the server keeps only a digest.

``hrk_`` ID ``_`` SECRET: the prefix lets scanners find keys that were published by mistake. The id finds the
entry without comparing a secret; then the digest of the whole key is compared in constant time.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from typing import NamedTuple

PREFIX = "hrk_"
_ID_BYTES, _SECRET_BYTES = 6, 32
_ID = rf"[0-9a-f]{{{2 * _ID_BYTES}}}"
_FORM = re.compile(rf"{PREFIX}({_ID})_[A-Za-z0-9_-]{{43}}".encode())
_IDS = re.compile(_ID)
_DIGESTS = re.compile(r"sha256:[0-9a-f]{64}")
KEY_BYTES = len(PREFIX) + 2 * _ID_BYTES + 1 + 43
"""Length of every key in bytes."""


class NewKey(NamedTuple):
    """A newly generated key, whose text cannot be recovered later.

    Attributes:
        id: Public id.
        text: The key itself, for its owner.
        digest: Digest kept by the server: ``sha256:`` and 64 hexadecimal digits.
    """

    id: str
    text: str
    digest: str


def draw() -> NewKey:
    """Generate a key."""
    public = secrets.token_hex(_ID_BYTES)
    secret = base64.urlsafe_b64encode(secrets.token_bytes(_SECRET_BYTES)).rstrip(b"=").decode()
    text = f"{PREFIX}{public}_{secret}"
    return NewKey(public, text, digest_of(text.encode()))


def digest_of(key: bytes) -> str:
    """Return the digest that is kept of a key.

    It is a plain SHA-256: 256 random bits cannot be guessed, so a slow hash would protect nothing, and every
    request would pay for it.
    """
    return f"sha256:{hashlib.sha256(key).hexdigest()}"


def id_of(key: bytes) -> str | None:
    """Return the public id of a key; None for bytes that do not have the form of a key."""
    if len(key) != KEY_BYTES:
        return None
    found = _FORM.fullmatch(key)
    return found[1].decode() if found else None


def is_key(key: bytes, digest: str) -> bool:
    """Return whether a digest is that of a key; the comparison takes constant time."""
    return hmac.compare_digest(digest_of(key), digest)


def is_id(text: str) -> bool:
    """Return whether a text has the form of a public id."""
    return _IDS.fullmatch(text) is not None


def is_digest(text: str) -> bool:
    """Return whether a text has the form of a key's digest."""
    return _DIGESTS.fullmatch(text) is not None
