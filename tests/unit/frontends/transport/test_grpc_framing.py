"""gRPC's framing: whatever arrives in whatever pieces, the same messages or the same error."""

from __future__ import annotations

import gzip
import zlib
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.base.errors import HeadraceError, InvalidRequest, NotFound, Overloaded, TooLarge, Unsupported
from headrace.config import Limits
from headrace.frontends.transport.grpc_framing import (
    PREFIX_BYTES,
    MessageReader,
    announced_size,
    error_headers,
    frame,
    opened,
    plain_message,
    short_message,
    take_prefix,
    timeout_seconds,
)
from headrace.frontends.wire.time_slicer import run
from tests.unit.frontends.transport.wire import message

MOST = 100
LIMITS = Limits(max_message_bytes=MOST)


def cut(body: bytes, sizes: list[int]) -> list[bytes | memoryview]:
    """The body in pieces of these sizes, and one that has the rest."""
    pieces: list[bytes | memoryview] = []
    for size in sizes:
        pieces.append(body[:size])
        body = body[size:]
    return [*pieces, body]


def one_message(body: bytes, encoding: bytes, limits: Limits) -> bytes:
    """The message of a unary call, which is the same however its body is cut."""
    chunks = cut(body, [])
    compressed = take_prefix(chunks)
    return run(opened(b"".join(chunks), encoding, limits, compressed=compressed))


@given(st.binary(max_size=MOST))
def test_what_is_framed_is_one_message(payload: bytes) -> None:
    assert one_message(frame(payload), b"", LIMITS) == payload


@given(st.binary(max_size=MOST), st.booleans(), st.lists(st.integers(0, 9)))
@example(b"abc", False, [3])
@example(b"abc", False, [5])
@example(b"abc", True, [1] * 8)
@example(b"", False, [0, 2])
def test_the_prefix_is_taken_off_however_the_body_is_cut(
    payload: bytes, compressed: bool, sizes: list[int]
) -> None:
    chunks = cut(message(payload, compressed=compressed), sizes)
    assert take_prefix(chunks) == compressed
    assert b"".join(chunks) == message(payload, compressed=compressed)[PREFIX_BYTES:]


def test_taking_the_prefix_off_copies_no_message() -> None:
    body = message(b"abc")
    chunks: list[bytes | memoryview] = [body[:3], body[3:], b"never looked at"[:0]]
    take_prefix(chunks)
    assert [type(chunk) for chunk in chunks] == [memoryview, bytes]
    whole: list[bytes | memoryview] = [body]
    take_prefix(whole)
    (view,) = whole
    assert isinstance(view, memoryview)
    assert view.obj is body


@given(st.binary(max_size=12) | st.binary(max_size=MOST).map(frame))
def test_the_prefix_announces_the_size_of_the_body(body: bytes) -> None:
    announced = announced_size(body)
    if len(body) < PREFIX_BYTES:
        assert announced == -1
    else:
        assert announced == PREFIX_BYTES + int.from_bytes(body[1:PREFIX_BYTES], "big")


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate"])
def test_a_compressed_message_is_opened(encoding: bytes) -> None:
    payload = b"a" * MOST
    packed = gzip.compress(payload) if encoding == b"gzip" else zlib.compress(payload)
    body = b"\x01" + len(packed).to_bytes(4, "big") + packed
    assert one_message(body, encoding, LIMITS) == payload


def test_a_message_may_be_uncompressed_although_others_are_not() -> None:
    assert one_message(message(b"plain"), b"gzip", LIMITS) == b"plain"


@pytest.mark.parametrize(
    ("body", "encoding", "error"),
    [
        (b"", b"", InvalidRequest),
        (b"\x00\x00\x00", b"", InvalidRequest),
        (message(b"abc")[:-1], b"", InvalidRequest),
        (message(b"abc") + b"x", b"", InvalidRequest),
        (message(b"abc") * 2, b"", InvalidRequest),
        (message(b"a" * (MOST + 1), compressed=True), b"gzip", TooLarge),
        (message(b"abc", compressed=True), b"snappy", Unsupported),
        (message(b"abc", compressed=True), b"", Unsupported),
        (b"\x01\x00\x00\x00\x03abc", b"gzip", InvalidRequest),
    ],
    ids=[
        "nothing", "half a prefix", "cut short", "too long", "two messages", "a bomb",
        "unknown compression", "compression not named", "not compressed",
    ],
)  # fmt: skip
def test_what_is_not_one_message_is_refused(body: bytes, encoding: bytes, error: type[HeadraceError]) -> None:
    with pytest.raises(error):
        one_message(body, encoding, LIMITS)


@given(st.binary(max_size=12) | st.binary(max_size=MOST).map(frame))
def test_a_plain_message_is_what_reading_it_as_one_message_gives(body: bytes) -> None:
    found = plain_message(body)
    try:
        assert found in {one_message(body, b"", LIMITS), None}
        assert found is not None
    except Unsupported:  # compressed: for the longer way
        assert found is None
    except InvalidRequest:
        assert found is None


def read(chunks: list[bytes]) -> list[bytes | type[HeadraceError]]:
    """The messages of a stream, and the error that it ended in."""
    reader = MessageReader(b"gzip", LIMITS)
    found: list[bytes | type[HeadraceError]] = []
    try:
        for chunk in chunks:
            for one in reader.feed(chunk):
                found.append(run(one))
        reader.finish()
    except HeadraceError as error:
        found.append(type(error))
    return found


payloads = st.binary(max_size=MOST + 10)
wellformed = st.builds(lambda payload, packed: message(payload, compressed=packed), payloads, st.booleans())
streams = st.lists(wellformed | st.binary(max_size=12), max_size=6).map(b"".join)


@given(streams, st.lists(st.integers(1, 40)))
@example(message(b"good") + message(b"a" * (MOST + 1)), [])
@example(message(b"good") + message(b"cut short")[:-1], [])
def test_a_stream_is_the_same_however_it_is_cut(stream: bytes, sizes: list[int]) -> None:
    expected = read([stream])
    assert read([bytes(piece) for piece in cut(stream, sizes)]) == expected
    assert read([stream[index : index + 1] for index in range(len(stream))]) == expected


@given(st.lists(st.binary(max_size=MOST), max_size=6))
def test_a_stream_of_messages_gives_them_all(sent: list[bytes]) -> None:
    assert read([b"".join(map(frame, sent))]) == sent


def test_a_message_announced_too_large_is_not_waited_for() -> None:
    reader = MessageReader(b"", LIMITS)
    with pytest.raises(TooLarge):
        list(reader.feed(b"\x00" + (MOST + 1).to_bytes(4, "big")))


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(b"2H", 7200.0), (b"3M", 180.0), (b"4S", 4.0), (b"250m", 0.25), (b"50u", 5e-5), (b"99999999n", 0.1)],
)  # fmt: skip
def test_timeouts(value: bytes, seconds: float) -> None:
    assert timeout_seconds(value) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value", [b"", b"S", b"5", b"5s", b"-5S", b"1.5S", b" 5S", b"123456789S", b"\xb2S", b"0x1S"]
)
def test_what_is_not_a_timeout_is_refused_by_its_name(value: bytes) -> None:
    with pytest.raises(InvalidRequest, match="grpc-timeout"):
        timeout_seconds(value)


def test_an_error_becomes_trailers() -> None:
    assert error_headers(NotFound("no model m")) == [
        (b"grpc-status", b"5"),
        (b"grpc-message", b"no model m"),
    ]


def test_a_refusal_says_when_to_come_back() -> None:
    trailers = dict(error_headers(Overloaded("full", retry_after_seconds=0.0123)))
    assert trailers[b"grpc-retry-pushback-ms"] == b"13"
    assert dict(error_headers(Overloaded("full", retry_after_seconds=0.0)))[b"grpc-retry-pushback-ms"] == b"1"


@given(st.text(max_size=300) | st.text("模%\n\x00\ud800é", min_size=500, max_size=3000))
def test_any_message_becomes_a_header_that_clients_accept(text: str) -> None:
    encoded = dict(error_headers(NotFound(text)))[b"grpc-message"]
    assert len(encoded) <= 4096
    assert all(0x20 <= byte <= 0x7E for byte in encoded)
    said = unquote(encoded.decode())
    known = NotFound(text).message
    assert len(said) >= min(len(known), 300)
    if said != known:
        start, left_out, end = said.partition(f" … ({len(known)} characters in all) … ")
        assert left_out
        assert known.startswith(start)
        assert known.endswith(end)


def test_a_long_message_keeps_its_end_where_the_remedy_is() -> None:
    text = f"there is no model {'m' * 3000}; the models are a and b"
    assert short_message(NotFound(text)).endswith("; the models are a and b")
