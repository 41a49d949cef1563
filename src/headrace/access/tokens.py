"""Tokens of an identity provider (JWT), and whose they are.

What a token says of itself decides nothing: the algorithms are those of the settings, each key has the one
that it is for, and keys are looked up in a file by name. No address in a token is followed.
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
from headrace.access.globs import Globs
from headrace.access.key_file import A_NAME, NAME, check_globs
from headrace.access.limits import CallerLimits
from headrace.access.token_keys import TokenKey, TokenKeys, library
from headrace.access.verbs import VERBS, bits
from headrace.config.access import Jwt
from headrace.errors import ConfigError, Unauthenticated

LARGEST_TOKEN_BYTES = 8192
"""Larger ones are not looked at."""

REMEMBERED_TOKENS = 4096
"""How many tokens need not be verified again."""

REMEMBERED_OF_ONE = 256
"""How many of these can be one caller's: who has more of them does not have others' forgotten."""

MOST_PATTERNS = 50
"""How many patterns of models a token can have, and of spaces."""

COUNTED_NAMES = 1000
"""How many callers metrics tell apart by name; issuers may know millions."""

OTHERS = "other tokens"
"""What metrics call the rest."""

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
    """Says whose a token is. Serving thread only."""

    def __init__(self, config: Jwt, keys: TokenKeys) -> None:
        """Know an issuer.

        Args:
            config: What tokens must be like.
            keys: What they may be signed with.

        Raises:
            ConfigError: The extra ``jwt`` is not installed.
        """
        self._jwt = library()
        self._config = config
        limits = CallerLimits.of(config)
        self._limits = limits if limits.any else None
        self._known: OrderedDict[bytes, Caller] = OrderedDict()
        self._known_of: dict[str, dict[bytes, None]] = {}  # of each caller, the oldest first
        self._names: set[str] = set()
        self.take(keys)

    def take(self, keys: TokenKeys) -> None:
        """From now on tokens must be signed with these keys, also those that were verified before."""
        self._keys = keys
        self._thumbprints = {key.thumbprint for key in keys.values()}
        self._known.clear()
        self._known_of.clear()

    def remembered(self, shown: bytes) -> Caller | None:
        """Whose a token is that was verified before; None if it was not, or is forgotten.

        Args:
            shown: The digest of what was shown, as ``caller`` was given it.

        Raises:
            Unauthenticated: It does not let anybody in any more.
        """
        caller = self._known.get(shown)
        if caller is not None:
            self._known.move_to_end(shown)
            self.check(caller)
        return caller

    def caller(self, token: bytes, shown: bytes) -> Caller:
        """Verify a token, and remember whose it is.

        Args:
            token: The token.
            shown: The digest by which it is remembered.

        Raises:
            Unauthenticated: It does not let anybody in.
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
        """Whether a token has let a caller in, not a key."""
        return caller.name.startswith(OF_TOKENS)

    def check(self, caller: Caller) -> None:
        """Ask whether a token that was verified before still holds.

        Raises:
            Unauthenticated: It has ended, or its key is not in force any more.
        """
        if caller.is_over():
            raise Unauthenticated("the token has expired")
        if caller.proof not in self._thumbprints:
            raise Unauthenticated("the token is not valid here any more")

    def _verified(self, token: bytes) -> Caller:
        header, claims = _parts(token)
        key = self._keys.get(header.kid)
        if not header.kid and len(self._keys) == 1:
            key = next(iter(self._keys.values()))
        is_known = key is not None and header.alg == key.algorithm and header.alg in self._config.algorithms
        if key is None or not is_known or header.crit is not None:
            raise Unauthenticated("the token is not signed with a key that is known here")
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
            raise Unauthenticated("the token is not of the issuer that this server trusts (iss)") from None
        except jwt.MissingRequiredClaimError as error:
            raise Unauthenticated(f"the token lacks {error.claim}") from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            raise Unauthenticated("the token is not signed with a key that is known here") from None

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
            "the token cannot be read: expected JSON objects, each name once, with sub and exp, and claims "
            "of the types that are documented"
        ) from None


def _object(part: bytes) -> object:
    text = base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))
    return json.loads(text, object_pairs_hook=_each_once, parse_constant=_no_number)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no JSON")


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
    """What a token permits: what is named for headrace wins over the scope, which others read as well."""
    named = claims.headrace_verbs
    if named is None:
        words = [word.removeprefix(_SCOPE) for word in claims.scope.split() if word.startswith(_SCOPE)]
    else:
        words = named.split() if isinstance(named, str) else named
    return bits(verb for verb in VERBS if verb in words)
