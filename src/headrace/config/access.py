"""Access control: ``[access]`` of a server's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from headrace.config.checks import DAY, LARGEST_RATE, MINUTE, seconds, whole, wrong

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Signature algorithms for tokens: key pairs only, because with a shared secret every verifier can sign."""


class CallerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Quotas of a caller.

    Attributes:
        requests_per_second: Maximum calls per second over all keys or tokens of the caller; 0 for no limit.
        rows_per_second: Maximum rows of predictions per second; 0 for no limit.
        burst_seconds: Size of a burst for both rates: what the rate allows in this many seconds.
        concurrent_requests: Maximum number of calls in flight; 0 for no limit.
    """

    requests_per_second: float = 0.0
    rows_per_second: float = 0.0
    burst_seconds: float = 1.0
    concurrent_requests: int = 0

    def check_limits(self, prefix: str = "") -> None:
        """Check the quotas; errors put the prefix before the names."""
        for name in ("requests_per_second", "rows_per_second"):
            if not 0 <= getattr(self, name) <= LARGEST_RATE:
                raise wrong(prefix + name, f"a number from 0 to {LARGEST_RATE:g}", getattr(self, name))
        seconds(f"{prefix}burst_seconds", self.burst_seconds, most=DAY)
        whole(f"{prefix}concurrent_requests", self.concurrent_requests, most=2**31)


class Jwt(CallerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Accepted tokens of an identity provider, and the quotas of each ``sub``.

    Attributes:
        keys: A JWKS file of the public keys that may sign tokens; None if tokens are not accepted.
        issuer: The ``iss`` that a token must have.
        audience: An ``aud`` that a token must have: it names this server among those of the provider.
        algorithms: The accepted signature algorithms.
        leeway_seconds: Tolerated clock difference in seconds.
    """

    keys: Path | None = None
    issuer: str | None = None
    audience: str | None = None
    algorithms: tuple[Algorithm, ...] = ("RS256", "ES256", "EdDSA")
    leeway_seconds: float = 30.0

    def __post_init__(self) -> None:
        """Check each setting, and that none is missing."""
        seconds("access.jwt.leeway_seconds", self.leeway_seconds, most=10 * MINUTE)
        self.check_limits("access.jwt.")
        if self.keys is None:
            if self.issuer or self.audience:
                raise wrong("access.jwt.keys", "a JWKS file of the issuer's public keys", None)
            return
        for name in ("issuer", "audience"):
            if not getattr(self, name):
                expected = "the one that tokens must have, because the provider issues others, too"
                raise wrong(f"access.jwt.{name}", expected, getattr(self, name))
        if not self.algorithms:
            raise wrong("access.jwt.algorithms", "at least one", "none")


class AccessConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Access control of a server.

    Attributes:
        file: The file of keys; None without one.
        open: The verbs that need no key.
        jwt: The tokens accepted instead of a key.
    """

    file: Path | None = None
    open: tuple[Literal["health", "metrics"], ...] = ("health",)
    jwt: Jwt = msgspec.field(default_factory=Jwt)

    def below(self, base: Path) -> AccessConfig:
        """Return a copy with relative files resolved against a directory."""
        replace, keys = msgspec.structs.replace, self.jwt.keys
        return replace(
            self,
            file=None if self.file is None else base / self.file,
            jwt=self.jwt if keys is None else replace(self.jwt, keys=base / keys),
        )

    @property
    def is_on(self) -> bool:
        """Whether callers must authenticate."""
        return self.file is not None or self.jwt.keys is not None
