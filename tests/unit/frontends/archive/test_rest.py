"""The archive over REST: bodies to lookups, answers as JSON, and what is wrong with a body by its name."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import FailedPrecondition, InvalidRequest, NotFound, TooLarge
from headrace.config import Limits
from tests.unit.frontends.archive.doors import DIMENSION, a_door, error_of, post

ONE = [0.5, -1.25, 3.0, 0.0]
NOTHING = [0.0] * DIMENSION


def test_what_was_put_is_found_and_what_was_not_is_flagged() -> None:
    with a_door() as service:
        assert post(service, "items:put", {"keys": ["a"], "vectors": [ONE]}) == {}
        assert post(service, "items:lookup", {"keys": ["b", "a", "a"]}) == {
            "vectors": [NOTHING, ONE, ONE],
            "found": [False, True, True],
            "version": 1,
        }


def test_when_vectors_were_written_is_said_on_request() -> None:
    with a_door() as service:
        post(service, "items:put", {"keys": ["a"], "vectors": [ONE]})
        written = post(service, "items:lookup", {"keys": ["a", "b"], "written": True})["written"]
        assert written[0] > 1e12
        assert written[1] == 0


def test_no_keys_are_no_vectors() -> None:
    with a_door() as service:
        assert post(service, "items:lookup", {"keys": []}) == {"vectors": [], "found": [], "version": 1}


@pytest.mark.parametrize("space", ["items", "halves", "wide"])
def test_long_answers_are_printed_as_short_ones_are(space: str) -> None:
    """In slices, of rows or of parts of one."""
    with a_door() as service:
        dimension = service.archive.reader(space).version.dimension
        keys = [f"key {number}" for number in range(9 if space == "wide" else 3000)]
        vectors = np.random.default_rng(1).standard_normal((len(keys), dimension)).astype(np.float16)
        service.archive.put(space, keys, vectors)
        answer = post(service, f"{space}:lookup", {"keys": keys})
        assert np.array_equal(np.array(answer["vectors"]), vectors)
        assert answer["found"] == [True] * len(keys)


def test_large_bodies_are_taken_in_slices() -> None:
    with a_door() as service:
        keys = [f"key {number:0100}" for number in range(5000)]
        vectors = [[float(number)] * DIMENSION for number in range(len(keys))]
        assert post(service, "items:put", {"keys": keys, "vectors": vectors}) == {}
        assert post(service, "items:lookup", {"keys": keys})["vectors"] == vectors


KEYS = ["ok"]
WRONG: dict[str, tuple[object, str]] = {
    "nothing": (b"", "body: expected an object"),
    "no JSON": (b"{", "body: expected JSON"),
    "a list": ([], "body: expected an object"),
    "no keys": ({}, "keys: expected a list of texts, got none"),
    "one text": ({"keys": "a"}, "keys: expected a list of texts, got a text"),
    "a number": ({"keys": ["a", 3]}, "keys[1]: expected a text, got int"),
    "null": ({"keys": [None]}, "keys[0]: expected a text, got NoneType"),
    "an empty key": ({"keys": ["a", "b", ""]}, "keys[2]: expected 1 to 8192 bytes of UTF-8, got 0"),
    "a long key": ({"keys": ["k" * 8193]}, "keys[0]: expected 1 to 8192 bytes of UTF-8, got 8193"),
    "half a character": (b'{"keys": ["a\\ud800"]}', "body: expected JSON"),
    "no UTF-8": (b'{"keys": ["\xff"]}', "body: expected"),
    "a wrong version": ({"keys": KEYS, "version": "1"}, "version: expected a whole number"),
    "a version below 0": ({"keys": KEYS, "version": -1}, "version: expected a whole number"),
    "no time": ({"keys": KEYS, "timeout_seconds": 0}, "timeout_seconds: expected seconds"),
    "for ever": (b'{"keys": ["a"], "timeout_seconds": Infinity}', "timeout_seconds: expected seconds"),
    "no switch": ({"keys": KEYS, "written": 1}, "written: expected true or false, got 1"),
    "an unknown member": ({"keys": KEYS, "key": 1}, "key: unknown; expected one of"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_a_lookup_is_named(case: str) -> None:
    body, said = WRONG[case]
    with a_door() as service:
        error = error_of(lambda: post(service, "items:lookup", body))
        assert isinstance(error, InvalidRequest)
        assert error.message.startswith(said), error.message


def test_the_place_of_a_wrong_key_is_told_in_long_lookups_too() -> None:
    with a_door() as service:
        keys: list[Any] = [f"k{number}" for number in range(3000)]
        keys[2345] = 7
        error = error_of(lambda: post(service, "items:lookup", {"keys": keys}))
        assert error.message == "keys[2345]: expected a text, got int"


WRONG_PUTS: dict[str, tuple[dict[str, object], str]] = {
    "columns for vectors": (
        {"keys": KEYS, "columns": {"age": [1]}},
        "vectors: expected a list of 1 vectors, one per key, got columns, which only feature tables have",
    ),
    "no vectors": ({"keys": KEYS}, "vectors: expected a list of 1 vectors, one per key, got null"),
    "too few": (
        {"keys": KEYS, "vectors": []},
        "vectors: expected a list of 1 vectors, one per key, got a list of 0",
    ),
    "no list": ({"keys": KEYS, "vectors": [1]}, "vectors[0]: expected a list of numbers, got 1"),
    "other lengths": ({"keys": ["a", "b"], "vectors": [ONE, [1]]}, "vectors[1]: expected 4 numbers, got 1"),
    "the wrong length": ({"keys": KEYS, "vectors": [[1, 2]]}, "vectors[0]: expected 4 numbers, got 2"),
    "a long first one": (
        {"keys": KEYS * 10_000, "vectors": [[0] * 300_000, *[[]] * 9999]},
        "vectors[0]: expected 4 numbers, got 300000",
    ),
    "a text": ({"keys": KEYS, "vectors": [[1, 2, 3, "x"]]}, "vectors[0][3]: expected a number, got a text"),
    "true": ({"keys": KEYS, "vectors": [[1, 2, 3, True]]}, "vectors[0][3]: expected a number, got true"),
    "too large": ({"keys": KEYS, "vectors": [[1, 2, 3, 1e99]]}, "vectors[0]: expected finite numbers"),
    "far too large": ({"keys": KEYS, "vectors": [[1, 2, 3, 10**400]]}, "vectors[0]: a number is too large"),
    "no keys": ({"keys": [], "vectors": []}, "keys: expected at least one key"),
}


@pytest.mark.parametrize("case", WRONG_PUTS)
def test_what_is_wrong_with_a_put_is_named(case: str) -> None:
    body, said = WRONG_PUTS[case]
    with a_door() as service:
        error = error_of(lambda: post(service, "items:put", body))
        assert isinstance(error, InvalidRequest)
        assert error.message.startswith(said), error.message


def test_not_a_number_is_not_stored() -> None:
    with a_door() as service:
        error = error_of(lambda: post(service, "items:put", b'{"keys": ["a"], "vectors": [[1, 2, 3, NaN]]}'))
        assert error.message == "vectors[0]: expected finite numbers of float32"


def test_limits_of_a_space_and_of_the_server() -> None:
    with a_door(limits=Limits(max_expanded_bytes=200_000)) as service:
        error = error_of(lambda: post(service, "few:lookup", {"keys": ["a", "b", "c", "d"]}))
        assert isinstance(error, TooLarge)
        assert error.message == "keys: expected at most 3 keys, got 4; split the request"
        error = error_of(lambda: post(service, "few:lookup", {"keys": ["ä" * 6]}))
        assert error.message == "keys[0]: expected 1 to 10 bytes of UTF-8, got 12"
        error = error_of(lambda: post(service, "wide:lookup", {"keys": ["a"] * 9}))
        assert isinstance(error, TooLarge)
        assert "limits.max_expanded_bytes" in error.message


def test_a_put_of_too_many_keys_is_refused_before_there_is_room_for_them() -> None:
    with a_door() as service:
        body = {"keys": ["k"] * 4, "vectors": [[0] * 300_000, [], [], []]}
        error = error_of(lambda: post(service, "few:put", body))
        assert isinstance(error, TooLarge)
        assert error.message == "keys: expected at most 3 keys, got 4; split the request"


def test_forgetting_wants_an_administrator() -> None:
    with a_door() as service:
        for verb in ("invalidate", "forget"):
            error = error_of(lambda verb=verb: post(service, f"items:{verb}", {"keys": ["a"]}))
            assert isinstance(error, FailedPrecondition)
    with a_door(is_admin=True) as service:
        for verb in ("invalidate", "forget"):
            post(service, "items:put", {"keys": ["a", "b"], "vectors": [ONE, ONE]})
            assert post(service, f"items:{verb}", {"keys": ["a"]}) == {}
            assert post(service, "items:lookup", {"keys": ["a", "b"]})["found"] == [False, True]


def test_unknown_spaces_and_versions_are_not_found() -> None:
    with a_door() as service:
        assert isinstance(error_of(lambda: post(service, "nope:lookup", {"keys": ["a"]})), NotFound)
        error = error_of(lambda: post(service, "items:lookup", {"keys": ["a"], "version": 7}))
        assert error.message == "no version 7 of the space 'items'; it has version 1"


@pytest.mark.parametrize("key", ["a\0b", "../../etc/passwd", "\N{GRINNING FACE}" * 100, " ", "a\nb", "%00"])
def test_keys_are_opaque(key: str) -> None:
    with a_door() as service:
        post(service, "items:put", {"keys": [key], "vectors": [ONE]})
        found = post(service, "items:lookup", json.dumps({"keys": [key, key + "x"]}).encode())["found"]
        assert found == [True, False]
