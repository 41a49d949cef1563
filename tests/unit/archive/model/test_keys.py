"""Keys as callers have them, and as stores have them."""

from __future__ import annotations

import pytest

from headrace.archive.model.keys import all_stored, checked, is_digest, stored
from headrace.base.errors import InvalidRequest, TooLarge
from headrace.storage.stores.store import LONGEST_KEY_BYTES


def test_a_short_key_is_stored_as_it_is() -> None:
    assert stored(b"film/7") == b"film/7"
    assert all_stored(["film/7", "Ç\0"]) == [b"film/7", "Ç\0".encode()]


def test_a_long_key_goes_by_its_beginning_and_a_digest() -> None:
    one, other = b"x" * 5000 + b"1", b"x" * 5000 + b"2"
    assert len(stored(one)) == len(stored(other)) == LONGEST_KEY_BYTES
    assert stored(one) != stored(other)
    assert all_stored(["a", one.decode()]) == [b"a", stored(one)]


def test_no_short_key_can_be_taken_for_a_digest() -> None:
    longest_short = b"k" * (LONGEST_KEY_BYTES - 1)
    assert stored(longest_short) == longest_short
    assert not is_digest(stored(longest_short))
    as_if_digest = stored(b"k" * 1000)  # somebody sends the digest of another key as a key
    assert is_digest(stored(as_if_digest))
    assert stored(as_if_digest) != as_if_digest


def test_more_keys_than_allowed_are_refused() -> None:
    with pytest.raises(TooLarge, match="keys: expected at most 3 keys, got 4; split the request"):
        checked(["a"] * 4, 3)


@pytest.mark.parametrize("one", ["film", b"film"])
def test_one_key_in_place_of_a_list_is_refused(one: str | bytes) -> None:
    with pytest.raises(InvalidRequest, match="keys: expected a list of texts, got a single text"):
        checked(one, 3)  # type: ignore[arg-type]
