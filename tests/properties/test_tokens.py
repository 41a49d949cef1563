"""Laws of tokens: whatever is changed in one, it lets nobody in, and nothing but that error is raised."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.access.tokens import Tokens, read_token_keys
from headrace.base.errors import Unauthenticated
from tests.unit.access.tokens_of_tests import jwks, settings, signed, token


@cache
def issued() -> tuple[Tokens, bytes]:
    """A server's view of an issuer, and a token that it lets in."""
    with tempfile.TemporaryDirectory() as directory:
        file = jwks(Path(directory) / "jwks.json")
        tokens = Tokens(settings(file), read_token_keys(file))
    good = token(headrace_models=["*"])
    assert tokens.caller(good, good).name == "jwt:ann"
    return tokens, good


def is_refused(sent: bytes) -> None:
    with pytest.raises(Unauthenticated):
        issued()[0].caller(sent, sent)


@given(place=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_token_with_another_byte_is_refused(place: int, byte: int) -> None:
    good = issued()[1]
    place %= len(good)
    changed = good[:place] + bytes([byte]) + good[place + 1 :]
    if changed != good:
        is_refused(changed)


@given(begin=st.integers(0, 10_000), more=st.binary(max_size=20), cut=st.integers(0, 50))
def test_a_token_with_more_or_less_in_it_is_refused(begin: int, more: bytes, cut: int) -> None:
    good = issued()[1]
    begin %= len(good) + 1
    changed = good[:begin] + more + good[begin + cut :]
    if changed != good:
        is_refused(changed)


@given(sent=st.binary(max_size=200))
def test_bytes_are_no_token(sent: bytes) -> None:
    is_refused(sent)


@given(header=st.binary(max_size=60), claims=st.binary(max_size=60))
def test_what_is_signed_and_says_nothing_that_is_known_is_refused(header: bytes, claims: bytes) -> None:
    is_refused(signed(b'{"alg":"EdDSA","kid":"EdDSA"}', claims))
    is_refused(signed(header, claims))
