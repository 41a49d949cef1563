"""Whose a header is, is remembered; what a key permits and when it ends is not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

import headrace.access.gate
from headrace.access.keys import KeyFile, as_keys
from headrace.access.permissions import PREDICT
from headrace.base.errors import PermissionDenied, Unauthenticated
from tests.unit.access.keys_of_tests import bearer, entry, gate_of


def test_a_key_that_is_remembered_is_revoked_with_the_file() -> None:
    gate = gate_of(entry("one"), entry("two"))
    for _ in range(2):
        assert gate.admit([bearer("one")], PREDICT).name == "one"
    gate.keys = as_keys(KeyFile(key=(entry("two"),)), gate.keys)
    with pytest.raises(Unauthenticated):
        gate.admit([bearer("one")], PREDICT)
    assert gate.admit([bearer("two")], PREDICT).name == "two"


def test_a_key_that_is_remembered_has_the_verbs_of_the_newest_file() -> None:
    gate = gate_of(entry("one"))
    before = gate.admit([bearer("one")], PREDICT)
    gate.keys = as_keys(KeyFile(key=(entry("one", ["metrics"]),)), gate.keys)
    for _ in range(2):
        with pytest.raises(PermissionDenied):
            gate.admit([bearer("one")], PREDICT)
    assert before.verbs & PREDICT


def test_a_key_that_is_remembered_ends_at_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = gate_of(msgspec.structs.replace(entry("one"), expires=datetime.now(UTC) + timedelta(hours=1)))
    caller = gate.admit([bearer("one")], PREDICT)
    caller.expires = datetime.now(UTC) - timedelta(seconds=1)
    with pytest.raises(Unauthenticated, match="expired at"):
        gate.admit([bearer("one")], PREDICT)


def test_a_header_is_remembered_under_its_name() -> None:
    gate = gate_of(entry("one"))
    _, value = bearer("one")
    gate.admit([(b"authorization", value)], PREDICT)
    with pytest.raises(Unauthenticated):
        gate.admit([(b"x-api-key", value)], PREDICT)
    with pytest.raises(Unauthenticated, match="expected one key, got 2"):
        gate.admit([bearer("one"), bearer("one")], PREDICT)


def test_the_cache_of_credentials_is_bounded_and_holds_digests_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headrace.access.gate, "_REMEMBERED", 10)
    gate = gate_of(entry("one"))
    name, value = bearer("one")
    for spaces in range(100):
        assert gate.admit([(name, value + b" " * spaces)], PREDICT).name == "one"
        with pytest.raises(Unauthenticated):
            gate.admit([(name, value[:-1] + b"!" * (spaces + 1))], PREDICT)
    assert len(gate._remembered) <= 10
    assert all(len(digest) == 16 for digest in gate._remembered)
