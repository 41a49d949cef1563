"""The public keys of an identity provider, from a JWKS file; never fetched. Needs the extra ``jwt``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from headrace.base.errors import ConfigError, needs_extra
from headrace.base.files import read_text
from headrace.config.checks import wrong

MOST_TOKEN_KEYS = 100
_LARGEST_FILE_BYTES = 2**20
_PRIVATE, _SECRET = "d", "oct"


class TokenKey(NamedTuple):
    """A key that verifies signatures of tokens.

    Attributes:
        algorithm: Signature algorithm of the key.
        thumbprint: Digest of the key's JWK; a change of any member, such as ``kid``, changes it.
        jwk: The key as a PyJWT object.
    """

    algorithm: str
    thumbprint: str
    jwk: Any


TokenKeys = Mapping[str, TokenKey]
"""Keys by key id (``kid``); "" for a single key without one."""


def library() -> ModuleType:
    """Return PyJWT, which the extra ``jwt`` installs.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        import cryptography  # noqa: F401, PLC0415 - an extra
        import jwt  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise needs_extra("access.jwt", "jwt", error) from error
    return jwt


def read_token_keys(file: Path) -> TokenKeys:
    """Read a JWKS file.

    Keys for encryption, and those of unsupported kinds, are skipped.

    Raises:
        ConfigError: It cannot be read, is not JWKS, or contains what it must not, above all secrets.
    """
    try:
        content = json.loads(read_text(file, _LARGEST_FILE_BYTES))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not JSON: {error}") from error
    listed = content.get("keys") if isinstance(content, dict) else None
    if not isinstance(listed, list) or len(listed) > MOST_TOKEN_KEYS:
        got = f"{len(listed)}" if isinstance(listed, list) else type(listed).__name__
        raise ConfigError(f"{file}: {wrong('keys', f'a list of at most {MOST_TOKEN_KEYS} keys', got)}")
    found: dict[str, TokenKey] = {}
    for place, one in enumerate(listed):
        key = _token_key(one, f"{file}: keys[{place}]")
        if key is None:
            continue
        name = one.get("kid", "")
        if not isinstance(name, str) or name in found:
            raise ConfigError(f"{file}: keys[{place}].kid: expected a unique text, got {name!r:.200}")
        found[name] = key
    if not found or ("" in found and len(found) > 1):
        raise ConfigError(f"{file}: expected keys for signatures, each with a kid, got {len(found)}")
    return found


def _token_key(one: object, where: str) -> TokenKey | None:
    jwt = library()
    if not isinstance(one, dict):
        raise ConfigError(f"{where}: expected a key, got {type(one).__name__}")
    if one.get("kty") == _SECRET or _PRIVATE in one:
        raise ConfigError(f"{where}: expected a public key, got a secret one, which only the issuer may have")
    if one.get("use", "sig") != "sig":
        return None
    try:
        jwk = jwt.PyJWK(one)
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    too_short = jwk.Algorithm.check_key_length(jwk.key)
    if too_short:
        raise ConfigError(f"{where}: {too_short}")
    digest = hashlib.sha256(json.dumps(one, sort_keys=True).encode()).hexdigest()
    return TokenKey(jwk.algorithm_name, digest, jwk)
