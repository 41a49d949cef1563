"""API keys: 256 random bits with a public name in front, of which the server keeps a digest only.

``hrk_`` ID ``_`` SECRET: the prefix lets scanners find keys that were published by mistake, the id finds the
entry without a secret being compared, and the digest of the whole is then compared in constant time.
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
"""How long every key is."""


class NewKey(NamedTuple):
    """A key, when it has just been drawn; nobody has it again later.

    Attributes:
        id: Its public name.
        text: The key itself, for its owner.
        digest: What the server keeps, as ``sha256:`` and 64 hexadecimal digits.
    """

    id: str
    text: str
    digest: str


def draw() -> NewKey:
    """Draw a key."""
    public = secrets.token_hex(_ID_BYTES)
    secret = base64.urlsafe_b64encode(secrets.token_bytes(_SECRET_BYTES)).rstrip(b"=").decode()
    text = f"{PREFIX}{public}_{secret}"
    return NewKey(public, text, digest_of(text.encode()))


def digest_of(key: bytes) -> str:
    """What is kept of a key.

    One plain SHA-256: there is nothing to guess in 256 random bits, so slowness would protect nothing, and
    every request would pay for it.
    """
    return f"sha256:{hashlib.sha256(key).hexdigest()}"


def id_of(key: bytes) -> str | None:
    """The public name of what looks like a key; None for what does not."""
    if len(key) != KEY_BYTES:
        return None
    found = _FORM.fullmatch(key)
    return found[1].decode() if found else None


def is_key(key: bytes, digest: str) -> bool:
    """Whether a digest is this key's; the time that takes says nothing of either."""
    return hmac.compare_digest(digest_of(key), digest)


def is_id(text: str) -> bool:
    """Whether a text can be the public name of a key."""
    return _IDS.fullmatch(text) is not None


def is_digest(text: str) -> bool:
    """Whether a text can be what is kept of a key."""
    return _DIGESTS.fullmatch(text) is not None
