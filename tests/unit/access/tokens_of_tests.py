"""An identity provider for tests: key pairs, drawn once, a JWKS file of them, and tokens."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from headrace.config.access import Jwt

ISSUER, AUDIENCE = "https://id.example", "headrace"
PAIRS = {
    "RS256": rsa.generate_private_key(65537, 2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
    "stranger": ed25519.Ed25519PrivateKey.generate(),
}
"""By algorithms, which are the names of these keys, too; one is not the provider's."""


def jwk(name: str, *, secret: bool = False, **more: object) -> dict[str, object]:
    """A key as a file has it."""
    algorithm = jwt.get_algorithm_by_name("EdDSA" if name == "stranger" else name)
    pair = PAIRS[name]
    found = algorithm.to_jwk(pair if secret else pair.public_key(), as_dict=True)  # type: ignore[attr-defined]
    return {**found, "kid": name, **more}


def jwks(file: Path, *keys: Mapping[str, object]) -> Path:
    """A file of some keys; of the provider's if none is named."""
    listed = keys or [jwk(name) for name in PAIRS if name != "stranger"]
    made = file.with_suffix(".new")
    made.write_text(json.dumps({"keys": listed}))
    return made.rename(file)


def settings(file: Path) -> Jwt:
    """What a server is told of the provider."""
    return Jwt(keys=file, issuer=ISSUER, audience=AUDIENCE)


def claims(**more: object) -> dict[str, object]:
    """What a good token says, and more, or something else; without what is None.

    Spans of time are from now, which is when this is called: tests may run long after they are collected.
    """
    now = int(time.time())  # noqa: TID251 - tokens tell the time of day
    good = {"sub": "ann", "iss": ISSUER, "aud": AUDIENCE, "exp": now + 300, "headrace_verbs": ["predict"]}
    said = {name: value for name, value in {**good, **more}.items() if value is not None}
    return {
        name: now + int(value.total_seconds()) if isinstance(value, timedelta) else value
        for name, value in said.items()
    }


def token(name: str = "EdDSA", header: Mapping[str, object] | None = None, **more: object) -> bytes:
    """A token that the provider has signed with one of its keys."""
    headers = {"kid": name, **(header or {})}
    algorithm = "EdDSA" if name == "stranger" else name
    return jwt.encode(claims(**more), PAIRS[name], algorithm, headers=headers).encode()  # type: ignore[arg-type]


def signed(header: bytes, payload: bytes) -> bytes:
    """A token of exactly these bytes, with a good signature of EdDSA."""
    begin = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in (header, payload))
    signature = PAIRS["EdDSA"].sign(begin)  # type: ignore[union-attr,call-arg]
    return begin + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")
