"""The archive over gRPC: raw bytes in and out, messages of a stream fail alone, large ones in slices."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.base.errors import InvalidRequest, NotFound, TooLarge
from headrace.frontends.archive.grpc import is_light, parsed, parsing
from headrace.frontends.wire import protos
from headrace.frontends.wire.time_slicer import run
from tests.unit.frontends.archive.doors import DIMENSION, SPACES, a_door, ask, error_of, sent, stream

Request = protos.message("headrace.archive.v1.LookupRequest")
PutRequest = protos.message("headrace.archive.v1.PutRequest")


def vectors(count: int, dtype: str = "<f4") -> np.ndarray:
    return np.random.default_rng(count).standard_normal((count, DIMENSION)).astype(dtype)


@pytest.mark.parametrize(("space", "dtype"), [("items", "float32"), ("halves", "float16")])
@pytest.mark.parametrize("count", [1, 256, 257, 5000])
def test_what_was_put_comes_back_as_raw_bytes(space: str, dtype: str, count: int) -> None:
    keys, given = [f"key {number:040}" for number in range(count)], vectors(count, "<f2")
    with a_door() as service:
        ask(service, "Put", space=space, keys=keys, vectors=given.tobytes(), dtype="float16")
        answer = ask(service, "Lookup", space=space, keys=[*keys, "new"], written=True)
    assert (answer.dtype, answer.dimension, answer.version) == (dtype, DIMENSION, 1)
    found = np.frombuffer(answer.vectors, dtype).reshape(-1, DIMENSION)
    assert np.array_equal(found[:-1], given)
    assert not found[-1].any()
    assert answer.found == b"\1" * count + b"\0"
    assert [bool(one) for one in answer.written] == [True] * count + [False]


def test_when_vectors_were_written_is_left_out_otherwise() -> None:
    with a_door() as service:
        assert not ask(service, "Lookup", space="items", keys=["a"]).written


def test_no_keys_are_no_vectors() -> None:
    with a_door() as service:
        answer = ask(service, "Lookup", space="items")
        assert (answer.vectors, answer.found, answer.dimension) == (b"", b"", DIMENSION)


def test_messages_of_a_stream_are_answered_in_order_and_fail_alone() -> None:
    with a_door() as service:
        ask(service, "Put", space="items", keys=["a"], vectors=vectors(1).tobytes())
        answers = stream(
            service,
            Request(space="items", keys=["a"]).SerializeToString(),
            Request(space="nope", keys=["a"]).SerializeToString(),
            b"\xff\xff",
            Request(space="items", keys=["b", "a"]).SerializeToString(),
        )
    assert [one.WhichOneof("result") for one in answers] == ["response", "error", "error", "response"]
    assert (answers[0].response.found, answers[3].response.found) == (b"\1", b"\0\1")
    assert answers[1].error.code == 5
    assert "no space 'nope'" in answers[1].error.message


def test_a_large_message_is_parsed_as_a_small_one_is() -> None:
    message = PutRequest(
        space="items", keys=["a", "ü", "b"], vectors=vectors(3).tobytes(), dtype="float32", version=3
    ).SerializeToString()
    at_once, in_steps = parsed(message, PutRequest), run(parsing(message, PutRequest, 10, 100))
    for name in ("space", "keys", "version", "dtype"):
        assert getattr(at_once, name) == getattr(in_steps, name)
    assert bytes(in_steps.vectors) == at_once.vectors


def test_a_message_with_the_tag_of_keys_all_over_is_parsed_in_steps() -> None:
    """It is not light, however few keys it has."""
    keys = ["\x12" * 5000 for _ in range(20)]
    message = Request(space="items", keys=keys).SerializeToString()
    assert not is_light(message)
    with a_door() as service:
        assert ask(service, "Lookup", space="items", keys=keys).found == bytes(20)


def test_more_keys_than_any_space_takes_are_refused_before_they_are_made() -> None:
    message = Request(space="items", keys=["k" * 20] * 10_001).SerializeToString()
    with a_door() as service:
        error = error_of(lambda: sent(service, "Lookup", message))
        assert isinstance(error, TooLarge)
        assert error.message.startswith("keys: expected at most 10000 keys")


@pytest.mark.parametrize("field", [b"\x4a\x00", b"\x0a\x00"], ids=["unknown", "the space again and again"])
def test_more_fields_than_any_message_has_are_refused_before_they_are_walked(field: bytes) -> None:
    message = Request(space="items", keys=["a"]).SerializeToString() + field * 100_000
    error = error_of(lambda: run(parsing(message, Request, 1000, 8192)))
    assert isinstance(error, TooLarge)
    assert error.message == "message: expected at most 3000 fields in the message, got more"
    with a_door() as service:
        assert isinstance(error_of(lambda: sent(service, "Lookup", message + field * 500_000)), TooLarge)


def test_what_is_wrong_is_named() -> None:
    good = {"space": "items", "keys": ["a", "b"]}
    with a_door() as service:
        assert isinstance(
            error_of(lambda: ask(service, "Lookup", space="items", keys=["a"], version=9)), NotFound
        )
        error = error_of(lambda: ask(service, "Lookup", space="items", keys=["a", ""]))
        assert error.message.startswith("keys[1]: expected 1 to 8192 bytes")
        error = error_of(lambda: ask(service, "Put", **good, vectors=b"123"))
        assert (
            error.message
            == "vectors: expected 2 vectors of float32, one per key, all of one length, got 3 bytes"
        )
        error = error_of(lambda: ask(service, "Put", **good, dtype="int8", vectors=b"12"))
        assert error.message == "dtype: expected float32 or float16, or row for a table, got 'int8'"
        error = error_of(lambda: ask(service, "Put", **good, vectors=bytes(8)))
        assert error.message == "vectors: expected numbers [2, 4], got float32, [2, 1]"
        error = error_of(lambda: sent(service, "Put", b"\x12\x02\xff\xff"))
        assert isinstance(error, InvalidRequest)


def test_text_that_is_none_is_named_in_large_messages() -> None:
    message = Request(space="items", keys=["k" * 100] * 900).SerializeToString() + b"\x12\x02\xff\xff"
    with a_door() as service:
        error = error_of(lambda: sent(service, "Lookup", message))
        assert error.message.startswith("keys[900]: expected UTF-8")


def test_large_keys_are_taken_step_by_step_and_what_is_too_long_not_at_all() -> None:
    message = Request(space="items", keys=["k" * 8000] * 200).SerializeToString()
    assert sum(1 for _ in parsing(message, Request, 1000, 8192)) > 4
    message = Request(keys=["a", "k" * 8193]).SerializeToString()
    error = error_of(lambda: run(parsing(message, Request, 1000, 8192)))
    assert error.message == "keys[1]: expected 1 to 8192 bytes of UTF-8, got 8193"
    message = Request(space="s" * 100_000).SerializeToString()
    error = error_of(lambda: run(parsing(message, Request, 1000, 8192)))
    assert error.message.startswith("space: expected a name")


def test_a_large_message_that_is_cut_is_refused() -> None:
    message = Request(space="items", keys=["k" * 100] * 900).SerializeToString()[:-1]
    with a_door() as service:
        error = error_of(lambda: sent(service, "Lookup", message))
        assert isinstance(error, InvalidRequest)


def test_spaces_are_described() -> None:
    with a_door() as service:
        ask(service, "Lookup", space="halves", keys=["a", "b"])
        (space,) = ask(service, "Describe", space="halves").spaces
        assert len(ask(service, "Describe").spaces) == len(SPACES)
    (version,) = space.versions
    assert (version.dimension, version.dtype, version.answered) == (DIMENSION, "float16", "float16")
    assert (space.default_version, space.max_keys, space.counts.missing) == (1, 10_000, 2)
