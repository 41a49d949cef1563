"""Tokens of an identity provider (JWT), the public keys that verify them, and the callers that they identify.

A token does not decide how it is verified: the allowed algorithms are those of the settings, each key has its
own algorithm, and keys are looked up in a file by name. No address in a token is followed. The file (JWKS) is
never fetched. Reading the keys needs the extra ``jwt``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, NamedTuple

import msgspec

from headrace.access.caller import OF_TOKENS, Caller, CallerLimits, Globs
from headrace.access.keys import A_NAME, NAME, check_globs
from headrace.access.permissions import VERBS, bits
from headrace.base.errors import ConfigError, Unauthenticated, needs_extra
from headrace.base.files import read_text
from headrace.config.access import Jwt
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
        ConfigError: It cannot be read, is not JWKS, or contains a secret key or one that is too short.
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


LARGEST_TOKEN_BYTES = 8192
"""Size above which a token is refused unread."""

REMEMBERED_TOKENS = 4096
"""Number of verified tokens that are cached."""

REMEMBERED_OF_ONE = 256
"""Number of cached tokens per caller, so that a caller with many of them does not evict others'."""

MOST_PATTERNS = 50
"""Largest number of model patterns in a token, and of space patterns."""

COUNTED_NAMES = 1000
"""Number of callers that metrics tell apart by name; issuers may know millions."""

OTHERS = "other tokens"
"""Name in metrics of all other callers with tokens."""

_SCOPE = "headrace:"
_FORM = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_LATEST = 253_000_000_000  # in the year 9987; datetime ends with 9999
_Time = Annotated[float, msgspec.Meta(ge=0, le=_LATEST)]


class _Header(msgspec.Struct):
    alg: str
    kid: str = ""
    crit: object = None


class _Claims(msgspec.Struct):
    sub: str
    exp: _Time
    headrace_verbs: str | list[str] | None = None
    scope: str = ""
    headrace_models: list[str] = []
    headrace_spaces: list[str] = []
    nbf: _Time = 0.0
    iat: _Time = 0.0


class Tokens:
    """Identifies callers by their tokens. Serving thread only."""

    def __init__(self, config: Jwt, keys: TokenKeys) -> None:
        """Accept the tokens of an issuer.

        Args:
            config: Requirements on tokens.
            keys: Keys that verify their signatures.

        Raises:
            ConfigError: The extra ``jwt`` is not installed.
        """
        self._jwt = library()
        self._config = config
        limits = CallerLimits.of(config)
        self._limits = limits if limits.any else None
        self._known: OrderedDict[bytes, Caller] = OrderedDict()
        self._known_of: dict[str, dict[bytes, None]] = {}  # by caller, oldest first
        self._names: set[str] = set()
        self.take(keys)

    def take(self, keys: TokenKeys) -> None:
        """Replace the keys; tokens that were verified before are verified again."""
        self._keys = keys
        self._thumbprints = {key.thumbprint for key in keys.values()}
        self._known.clear()
        self._known_of.clear()

    def remembered(self, shown: bytes) -> Caller | None:
        """Return the caller of a token that was verified before; None if it is not cached.

        Args:
            shown: Digest of the credentials, as passed to ``caller``.

        Raises:
            Unauthenticated: The token is not valid any more.
        """
        caller = self._known.get(shown)
        if caller is not None:
            self._known.move_to_end(shown)
            self.check(caller)
        return caller

    def caller(self, token: bytes, shown: bytes) -> Caller:
        """Verify a token, cache it, and return its caller.

        Args:
            token: The token.
            shown: Digest under which it is cached.

        Raises:
            Unauthenticated: The token is not valid.
        """
        if len(token) > LARGEST_TOKEN_BYTES:
            raise Unauthenticated(f"the token has {len(token)} bytes; expected at most {LARGEST_TOKEN_BYTES}")
        caller = self._verified(token)
        self._remember(shown, caller)
        return caller

    def _remember(self, shown: bytes, caller: Caller) -> None:
        own = self._known_of.get(caller.name, ())
        if len(own) >= REMEMBERED_OF_ONE:
            self._forget(next(iter(own)))
        elif len(self._known) >= REMEMBERED_TOKENS:
            self._forget(next(iter(self._known)))
        self._known[shown] = caller
        self._known_of.setdefault(caller.name, {})[shown] = None

    def _forget(self, shown: bytes) -> None:
        name = self._known.pop(shown).name
        del self._known_of[name][shown]
        if not self._known_of[name]:
            del self._known_of[name]

    @staticmethod
    def has(caller: Caller) -> bool:
        """Return whether a caller was admitted by a token, not a key."""
        return caller.name.startswith(OF_TOKENS)

    def check(self, caller: Caller) -> None:
        """Check that a token that was verified before is still valid.

        Raises:
            Unauthenticated: It has expired, or its key is not in force any more.
        """
        if caller.is_over():
            raise Unauthenticated("the token has expired")
        if caller.proof not in self._thumbprints:
            raise Unauthenticated("the key that signed the token is no longer accepted")

    def _verified(self, token: bytes) -> Caller:
        header, claims = _parts(token)
        key = self._keys.get(header.kid)
        if not header.kid and len(self._keys) == 1:
            key = next(iter(self._keys.values()))
        is_known = key is not None and header.alg == key.algorithm and header.alg in self._config.algorithms
        if key is None or not is_known or header.crit is not None:
            raise Unauthenticated("the token is not signed with a key that this server trusts")
        self._decode(token, key)
        expires = datetime.fromtimestamp(claims.exp + self._config.leeway_seconds, UTC)
        made = _caller_of(claims, expires, key.thumbprint)
        made.counted_as = self._counted_as(made.name)
        made.limits = self._limits
        return made

    def _decode(self, token: bytes, key: TokenKey) -> None:
        jwt, config = self._jwt, self._config
        try:
            jwt.decode(
                token,
                key.jwk,
                algorithms=[key.algorithm],
                audience=config.audience,
                issuer=config.issuer,
                leeway=config.leeway_seconds,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.ExpiredSignatureError:
            raise Unauthenticated("the token has expired") from None
        except (jwt.ImmatureSignatureError, jwt.InvalidIssuedAtError):
            raise Unauthenticated("the token is not valid yet") from None
        except jwt.InvalidAudienceError:
            raise Unauthenticated("the token is not for this server (aud)") from None
        except jwt.InvalidIssuerError:
            raise Unauthenticated("the token is not from the issuer that this server trusts (iss)") from None
        except jwt.MissingRequiredClaimError as error:
            raise Unauthenticated(f"the token lacks {error.claim}") from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            raise Unauthenticated("the token is not signed with a key that this server trusts") from None

    def _counted_as(self, name: str) -> str:
        if name not in self._names and len(self._names) >= COUNTED_NAMES:
            return OTHERS
        self._names.add(name)
        return name


def _parts(token: bytes) -> tuple[_Header, _Claims]:
    if not _FORM.fullmatch(token):
        raise Unauthenticated("expected a key or a token (JWT), which has three parts in base64url")
    header, claims, _ = token.split(b".")
    try:
        return msgspec.convert(_object(header), _Header), msgspec.convert(_object(claims), _Claims)
    except (binascii.Error, ValueError, RecursionError):
        raise Unauthenticated(
            "the token cannot be read: expected JSON objects with unique names, with sub and exp, and claims "
            "of the documented types"
        ) from None


def _object(part: bytes) -> object:
    text = base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))
    return json.loads(text, object_pairs_hook=_each_once, parse_constant=_no_number)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate name")
    return found


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _caller_of(claims: _Claims, expires: datetime, proof: str) -> Caller:
    if not NAME.fullmatch(claims.sub):
        raise Unauthenticated(f"the token's sub cannot be a caller's name: expected {A_NAME}")
    try:
        check_globs("headrace_models", tuple(claims.headrace_models), MOST_PATTERNS)
        check_globs("headrace_spaces", tuple(claims.headrace_spaces), MOST_PATTERNS)
    except ConfigError as error:
        raise Unauthenticated(f"the token's {error.message}") from None
    return Caller(
        OF_TOKENS + claims.sub,
        _verbs(claims),
        models=Globs(claims.headrace_models),
        spaces=Globs(claims.headrace_spaces),
        expires=expires,
        proof=proof,
    )


def _verbs(claims: _Claims) -> int:
    """Return a token's verbs as bits; headrace's own claim overrides ``scope``, which services share."""
    named = claims.headrace_verbs
    if named is None:
        words = [word.removeprefix(_SCOPE) for word in claims.scope.split() if word.startswith(_SCOPE)]
    else:
        words = named.split() if isinstance(named, str) else named
    return bits(verb for verb in VERBS if verb in words)
