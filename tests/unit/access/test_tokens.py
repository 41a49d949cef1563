"""Tokens of an identity provider: whose they are, and those that somebody made who is not the provider."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from msgspec.structs import replace

from headrace.access.caller import Caller, CallerLimits
from headrace.access.gate import Gate
from headrace.access.permissions import PREDICT, named
from headrace.access.tokens import (
    COUNTED_NAMES,
    LARGEST_TOKEN_BYTES,
    MOST_PATTERNS,
    OTHERS,
    REMEMBERED_OF_ONE,
    REMEMBERED_TOKENS,
    Tokens,
    read_token_keys,
)
from headrace.base.errors import ConfigError, OverLimit, PermissionDenied, Unauthenticated
from headrace.config.access import Jwt
from tests.unit.access.tokens_of_tests import (
    AUDIENCE,
    ISSUER,
    PAIRS,
    claims,
    jwk,
    jwks,
    settings,
    signed,
    token,
)

HEADER = b'{"alg":"EdDSA","kid":"EdDSA"}'


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    file = jwks(tmp_path / "jwks.json")
    return Tokens(settings(file), read_token_keys(file))


def whose(tokens: Tokens, sent: bytes) -> Caller:
    return tokens.remembered(sent) or tokens.caller(sent, sent)


def refused(tokens: Tokens, sent: bytes) -> str:
    with pytest.raises(Unauthenticated) as raised:
        whose(tokens, sent)
    return raised.value.message


@pytest.mark.parametrize("name", ["RS256", "ES256", "EdDSA"])
def test_a_token_identifies_its_caller_and_its_permissions(tokens: Tokens, name: str) -> None:
    sent = token(name, headrace_models=["ctr*"], headrace_spaces=["titles"])
    caller = whose(tokens, sent)
    assert (caller.name, named(caller.verbs)) == ("jwt:ann", ("predict",))
    caller.check_model("ctr-1")
    caller.check_space("titles")
    with pytest.raises(PermissionDenied):
        caller.check_model("other")
    assert whose(tokens, sent) is caller  # not verified again


@pytest.mark.parametrize(
    ("said", "verbs"),
    [
        ({"headrace_verbs": "predict metrics"}, ("predict", "metrics")),
        ({"headrace_verbs": ["metrics", "fly"]}, ("metrics",)),
        ({"headrace_verbs": None}, ()),
        ({"headrace_verbs": None, "scope": "openid headrace:predict admin"}, ("predict",)),
        ({"headrace_verbs": [], "scope": "headrace:admin"}, ()),
        ({"aud": ["other", AUDIENCE]}, ("predict",)),
        ({"exp": timedelta(seconds=-20)}, ("predict",)),  # within the leeway
    ],
)
def test_a_token_permits_the_verbs_of_its_claims(
    tokens: Tokens, said: dict[str, object], verbs: tuple[str, ...]
) -> None:
    assert named(whose(tokens, token(**said)).verbs) == verbs


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"exp": timedelta(seconds=-60)}, "expired"),
        ({"exp": None}, "cannot be read"),
        ({"exp": "soon"}, "cannot be read"),
        ({"exp": True}, "cannot be read"),
        ({"exp": 1e300}, "cannot be read"),
        ({"exp": 10**400}, "cannot be read"),
        ({"nbf": timedelta(seconds=120)}, "not valid yet"),
        ({"nbf": [1]}, "cannot be read"),
        ({"iat": timedelta(seconds=120)}, "not valid yet"),
        ({"aud": "other"}, "not for this server"),
        ({"aud": None}, "lacks aud"),
        ({"aud": {"headrace": 1}}, "not for this server"),
        ({"aud": ["headrace", 1]}, "not for this server"),
        ({"iss": "https://evil.example"}, "issuer"),
        ({"iss": None}, "lacks iss"),
        ({"sub": None}, "cannot be read"),
        ({"sub": 7}, "cannot be read"),
        ({"sub": ""}, "sub"),
        ({"sub": "a\nb"}, "sub"),
        ({"sub": "x" * 65}, "sub"),
        ({"headrace_verbs": {"predict": 1}}, "cannot be read"),
        ({"headrace_verbs": [1]}, "cannot be read"),
        ({"scope": ["headrace:admin"]}, "cannot be read"),
        ({"headrace_models": "*"}, "cannot be read"),
        ({"headrace_models": ["a/b"]}, "headrace_models: expected patterns"),
        ({"headrace_spaces": ["a*"] * (MOST_PATTERNS + 1)}, "headrace_spaces: expected at most 50 patterns"),
    ],
)
def test_invalid_claims_are_refused_with_the_reason(
    tokens: Tokens, said: dict[str, object], told: str
) -> None:
    assert told in refused(tokens, token(**said))


def unsigned(header: dict[str, object], signature: bytes = b"") -> bytes:
    parts = [json.dumps(one).encode() for one in (header, claims())]
    return b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in (*parts, signature))


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", "", "HS256", "ES256", "EdDSA"])
def test_unsigned_tokens_are_refused(tokens: Tokens, algorithm: str) -> None:
    for name in ("RS256", "EdDSA"):
        header: dict[str, object] = {"alg": algorithm, "kid": name}
        refused(tokens, unsigned(header))
        refused(tokens, unsigned(header, b"x" * 64))
        refused(tokens, unsigned(header, b"\0" * 64))


@pytest.mark.parametrize("form", ["PEM", "DER"])
def test_a_public_key_is_no_shared_secret(tokens: Tokens, form: str) -> None:
    public = PAIRS["RS256"].public_key()
    for layout in (serialization.PublicFormat.SubjectPublicKeyInfo, serialization.PublicFormat.PKCS1):
        secret = public.public_bytes(getattr(serialization.Encoding, form), layout)
        begin = unsigned({"alg": "HS256", "kid": "RS256"}).rpartition(b".")[0]
        signature = base64.urlsafe_b64encode(hmac.new(secret, begin, hashlib.sha256).digest()).rstrip(b"=")
        assert "not signed with a key" in refused(tokens, begin + b"." + signature)


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("stranger", {}),
        ("stranger", {"kid": "EdDSA"}),
        ("EdDSA", {"kid": "RS256"}),
        ("EdDSA", {"kid": "../../etc/passwd"}),
        ("EdDSA", {"kid": "' or 1=1"}),
        ("EdDSA", {"kid": ""}),
        ("stranger", {"kid": "EdDSA", "jwk": jwk("stranger")}),
        ("stranger", {"kid": "EdDSA", "jku": "http://127.0.0.1:9/jwks.json"}),
        ("stranger", {"kid": "EdDSA", "x5u": "http://127.0.0.1:9/x.pem"}),
        ("EdDSA", {"crit": ["exp"]}),
    ],
)
def test_keys_are_those_of_the_file_by_their_names(
    tokens: Tokens, name: str, header: dict[str, object]
) -> None:
    assert "not signed with a key" in refused(tokens, token(name, header))


def test_an_algorithm_that_is_not_among_the_settings_is_refused(tmp_path: Path) -> None:
    file = jwks(tmp_path / "jwks.json")
    config = Jwt(keys=file, issuer=ISSUER, audience=AUDIENCE, algorithms=("ES256",))
    assert "not signed with a key" in refused(Tokens(config, read_token_keys(file)), token("EdDSA"))


DAY = timedelta(days=1)
GOOD = json.dumps(claims(exp=DAY)).encode()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b".",
        b"..",
        b"a.b",
        b"a.b.c.d",
        b"a.b.c",
        b"!!!!.????.####",
        token(exp=DAY)[:-1],
        token(exp=DAY) + b"=",
        token(exp=DAY) + b" ",
        token(exp=DAY).replace(b".", b".."),
        signed(HEADER, GOOD[:-1] + b',"sub":"root"}'),
        signed(HEADER, GOOD[:-1] + b',"headrace_verbs":["admin"]}'),
        signed(HEADER[:-1] + b',"alg":"none"}', GOOD),
        signed(HEADER, b"[" * 4000 + b"]" * 4000),
        signed(HEADER, GOOD[:-1] + b',"x":' + b"[" * 2500 + b"]" * 2500 + b"}"),
        signed(b'{"x":' + b"[" * 2500 + b"]" * 2500 + b"," + HEADER[1:], GOOD),
        signed(HEADER, GOOD[:-1] + b',"x":' + b"9" * 5000 + b"}"),
        signed(HEADER, GOOD[:-1] + b',"x":NaN}'),
        signed(HEADER, b"null"),
        signed(b"[]", GOOD),
        signed(HEADER, b"\xff\xfe"),
        signed(b'{"alg":["EdDSA"],"kid":"EdDSA"}', GOOD),
        signed(b'{"alg":"EdDSA","kid":{"EdDSA":1}}', GOOD),
        signed(b'{"alg":"EdDSA","kid":"EdDSA","b64":false,"crit":["b64"]}', GOOD),
    ],
)
def test_malformed_tokens_are_refused(tokens: Tokens, sent: bytes) -> None:
    refused(tokens, sent)


def test_a_huge_token_is_not_looked_at(tokens: Tokens) -> None:
    sent = token(more="x" * LARGEST_TOKEN_BYTES)
    assert f"expected at most {LARGEST_TOKEN_BYTES}" in refused(tokens, sent)
    assert whose(tokens, signed(HEADER, GOOD)).name == "jwt:ann"  # and those that these tests sign are good


def test_a_cached_token_expires(tokens: Tokens) -> None:
    caller = whose(tokens, sent := token())
    assert whose(tokens, sent) is caller
    caller.expires = datetime.now(UTC) - timedelta(seconds=1)
    assert "expired" in refused(tokens, sent)


def test_a_key_that_is_taken_out_lets_nobody_in_any_more(tokens: Tokens, tmp_path: Path) -> None:
    gate = Gate({})
    gate.tokens = tokens
    header = (b"authorization", b"Bearer " + token())
    caller = gate.admit([header], PREDICT)
    assert gate.again(caller) == 0.0
    tokens.take(read_token_keys(jwks(tmp_path / "jwks.json")))
    assert gate.again(caller) == 0.0  # the same keys
    tokens.take(read_token_keys(jwks(tmp_path / "jwks.json", jwk("stranger", kid="EdDSA"))))
    with pytest.raises(Unauthenticated, match="the key that signed the token is no longer accepted"):
        gate.again(caller)
    with pytest.raises(Unauthenticated, match="not signed with a key"):
        gate.admit([header], PREDICT)


def test_a_stream_that_waits_ends_when_its_key_does(tokens: Tokens, tmp_path: Path) -> None:
    gate = Gate({})
    gate.tokens = tokens
    caller = gate.admit([(b"authorization", b"Bearer " + token())], PREDICT)
    caller.limits = CallerLimits(requests_per_second=0.001)

    async def scenario() -> None:
        waits = asyncio.create_task(gate.in_turn(caller))
        await asyncio.sleep(0)
        tokens.take(read_token_keys(jwks(tmp_path / "jwks.json", jwk("stranger", kid="EdDSA"))))
        with pytest.raises(Unauthenticated, match="the key that signed the token is no longer accepted"):
            await asyncio.wait_for(waits, 120)

    gate.meters.next_message(caller.name, caller.limits)
    gate.meters.next_message(caller.name, caller.limits)
    asyncio.run(scenario())


def test_cached_tokens_and_counted_names_are_bounded(tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    assert REMEMBERED_TOKENS <= 2**16
    monkeypatch.setattr("headrace.access.tokens.REMEMBERED_TOKENS", 3)
    monkeypatch.setattr("headrace.access.tokens.COUNTED_NAMES", 4)
    assert COUNTED_NAMES <= 2**16
    found = [whose(tokens, token(sub=f"user{number}")) for number in range(6)]
    assert len(tokens._known) == 3
    assert [one.counted_as for one in found] == [
        *(f"jwt:user{number}" for number in range(4)),
        OTHERS,
        OTHERS,
    ]
    assert whose(tokens, token(sub="user0")).counted_as == "jwt:user0"


def test_a_caller_with_many_tokens_does_not_evict_those_of_others(
    tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 16 * REMEMBERED_OF_ONE <= REMEMBERED_TOKENS
    monkeypatch.setattr("headrace.access.tokens.REMEMBERED_OF_ONE", 3)
    monkeypatch.setattr("headrace.access.tokens.REMEMBERED_TOKENS", 5)
    bob = whose(tokens, sent := token(sub="bob"))
    his = [token(jti=str(number)) for number in range(6)]
    callers = [whose(tokens, one) for one in his]
    assert whose(tokens, sent) is bob
    assert [tokens.remembered(one) for one in his] == [None, None, None, *callers[3:]]
    for number in range(5):
        whose(tokens, token(sub=f"user{number}"))
    assert len(tokens._known) == sum(map(len, tokens._known_of.values())) == 5
    assert tokens._known_of.keys() == {f"jwt:user{number}" for number in range(5)}


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ([jwk("EdDSA", secret=True)], "expected a public key, got a secret one"),
        ([{"kty": "oct", "k": "c2VjcmV0", "kid": "a"}], "expected a public key, got a secret one"),
        ([jwk("EdDSA"), jwk("EdDSA")], "a unique text"),
        ([jwk("EdDSA", kid=7)], "a unique text"),
        ([jwk("EdDSA", use="enc")], "expected keys for signatures"),
        ([{"kty": "new"}], "expected keys for signatures"),
        (["x"], "expected a key, got str"),
        ([jwk("EdDSA")] * 101, "at most 100 keys"),
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path: Path, keys: list[object], told: str) -> None:
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": keys}))
    with pytest.raises(ConfigError, match=told):
        read_token_keys(file)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"keys": 1}', "[" * 100_000, '{"keys": []}'])
def test_a_file_that_is_not_jwks_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "jwks.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"jwks.json"):
        read_token_keys(file)


def test_all_tokens_of_one_sub_share_limits_and_others_have_their_own(
    tmp_path: Path,
) -> None:
    file = jwks(tmp_path / "jwks.json")
    gate = Gate({})
    limited = replace(settings(file), requests_per_second=0.5, concurrent_requests=2, rows_per_second=1.0)
    gate.tokens = Tokens(limited, read_token_keys(file))

    def asks(**said: object) -> Caller:
        return gate.admit([(b"authorization", b"Bearer " + token(**said))], PREDICT)

    ann = asks()
    gate.take_rows(ann, 100)
    with pytest.raises(OverLimit, match=r"'jwt:ann' has reached its limit of 0.5 requests per second"):
        asks(jti="another token of hers")
    with pytest.raises(OverLimit, match=r"'jwt:ann' has reached its limit of 1 rows per second"):
        gate.take_rows(ann, 1)
    assert gate.again(ann) > 0.5, "her stream is slowed down"
    bob = asks(sub="bob")
    gate.take_rows(bob, 1)
    assert gate.refused["OverLimit"] == 2
    gate.leave(ann)
    gate.leave(bob)


def test_calls_under_way_of_all_tokens_of_one_sub_are_counted_together(tmp_path: Path) -> None:
    file = jwks(tmp_path / "jwks.json")
    gate = Gate({})
    gate.tokens = Tokens(replace(settings(file), concurrent_requests=2), read_token_keys(file))
    sent = [(b"authorization", b"Bearer " + token(jti=str(one))) for one in range(3)]
    callers = [gate.admit([pair], PREDICT) for pair in sent[:2]]
    with pytest.raises(OverLimit, match="has 2 calls in progress"):
        gate.admit([sent[2]], PREDICT)
    gate.leave(callers[0])
    gate.admit([sent[2]], PREDICT)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("requests_per_second", -1.0),
        ("rows_per_second", 1e10),
        ("burst_seconds", -1.0),
        ("concurrent_requests", -1),
    ],
)
def test_limits_of_tokens_that_cannot_be_are_named(tmp_path: Path, name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"access.jwt.{name}: expected"):
        replace(settings(jwks(tmp_path / "jwks.json")), **{name: value})
