"""Tokens of an identity provider (JWT), and the callers that they identify.

A token does not decide how it is verified: the allowed algorithms are those of the settings, each key has its
own algorithm, and keys are looked up in a file by name. No address in a token is followed.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec

from headrace.access.caller import OF_TOKENS, Caller
from headrace.access.caller_limits import CallerLimits
from headrace.access.globs import Globs
from headrace.access.jwks import TokenKey, TokenKeys, library
from headrace.access.key_file import A_NAME, NAME, check_globs
from headrace.access.permissions import VERBS, bits
from headrace.base.errors import ConfigError, Unauthenticated
from headrace.config.access import Jwt

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
        his = self._known_of.get(caller.name, ())
        if len(his) >= REMEMBERED_OF_ONE:
            self._forget(next(iter(his)))
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
    """Return a token's verbs as bits; headrace's own claim overrides the scope, which others read as well."""
    named = claims.headrace_verbs
    if named is None:
        words = [word.removeprefix(_SCOPE) for word in claims.scope.split() if word.startswith(_SCOPE)]
    else:
        words = named.split() if isinstance(named, str) else named
    return bits(verb for verb in VERBS if verb in words)
