"""An archive is asked what nobody should ask: each gets its status, and others are answered."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator

import grpc
import numpy as np
import pytest

from headrace import example
from headrace.frontends.wire import protos
from headrace.frontends.wire.protobuf_fields import length_prefix
from tests.running_server import RunningServer

MEGABYTE = 2**20
MILLION = 1_000_000
SETTINGS = """
[spaces.items]
dimension = 3
max_new_keys_per_second = 5

[spaces.wide]
dimension = 65536
"""
BODIES: dict[str, tuple[bytes, int]] = {
    "a key of a megabyte": (b'{"keys": ["' + b"k" * MEGABYTE + b'"]}', 400),
    "a megabyte that is escaped": (b'{"keys": ["' + b"\\u0041" * (MEGABYTE // 6) + b'"]}', 400),
    "NUL and dots": (json.dumps({"keys": ["a\0b", "../../x", "/etc/passwd", "%2e%2e/"]}).encode(), 200),
    "a million keys": (b'{"keys": [' + b",".join([b'"k"'] * MILLION) + b"]}", 413),
    "a million empty lists": (b'{"keys": [' + b",".join([b"[]"] * MILLION) + b"]}", 413),
    "keys that are lists": (b'{"keys": [["a"], {}]}', 400),
    "half a character": (b'{"keys": ["\\ud800"]}', 400),
    "half a character, and slow numbers": (
        b'{"keys": ["\\ud800", ' + b",".join([b"1e-320"] * 9) + b"]}",
        400,
    ),
    "half a character in a large body": (b'{"keys": [' + b'"\\udfff",' * 30_000 + b'"a"]}', 400),
    "no UTF-8": (b'{"keys": ["\xff\xfe"]}', 400),
    "deep": (b"[" * 100_000, 400),
    "deep in an object": (b'{"keys": ' + b"[" * 1000 + b"]" * 1000 + b"}", 400),
    "the same member often": (b"{" + b'"keys": ["a"],' * 50_000 + b'"keys": []}', 200),
    "an answer of gigabytes": (b'{"keys": [' + b",".join([b'"k"'] * 9000) + b"]}", 413),
    "a huge version": (b'{"keys": ["a"], "version": ' + b"9" * 4000 + b"}", 400),
    "no member that is known": (b'{"' + b"x" * 5000 + b'": 1}', 400),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    place = tmp_path_factory.mktemp("hostile")
    (place / "archive.toml").write_text(SETTINGS)
    example.write(place / "models")
    with RunningServer(place / "models", "--archive", str(place / "archive.toml")) as running:
        yield running


def post(server: RunningServer, path: str, body: bytes) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    try:
        connection.request("POST", path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize("case", BODIES)
def test_each_body_gets_its_status_and_a_reason(server: RunningServer, case: str) -> None:
    body, expected = BODIES[case]
    space = "wide" if case == "an answer of gigabytes" else "items"
    status, answer = post(server, f"/v1/archive/{space}:lookup", body)
    assert status == expected, answer[:500]
    assert len(answer) < 8192
    if expected != 200:
        assert 0 < len(json.loads(answer)["error"]) <= 4000
    assert post(server, "/v1/archive/items:lookup", b'{"keys": ["a"]}')[0] == 200


def test_hostile_names_of_spaces_are_not_found(server: RunningServer) -> None:
    for space in ("..%2f..%2fetc", "%00", "a" * 5000, "items_v1", "ITEMS"):
        assert post(server, f"/v1/archive/{space}:lookup", b'{"keys": ["a"]}')[0] == 404


def test_messages_that_are_none_get_their_status(server: RunningServer) -> None:
    request = protos.message("headrace.archive.v1.LookupRequest")
    random = np.random.default_rng(3)
    messages = [
        *(random.bytes(size) for size in (1, 10, 1000, 100_000, 2 * MEGABYTE)),
        request(space="items", keys=["k" * MEGABYTE]).SerializeToString(),
        b"\x12\x00" * MILLION,  # a million empty keys
        b"\x12\x00" * 100_000,
        b"\x0b" * 100_000,  # groups in groups
        length_prefix(2, 2**40) + b"a",
        request(space="x" * MEGABYTE).SerializeToString(),
        request(space="items", keys=["a"], version=2**64 - 1).SerializeToString(),
    ]
    codes = grpc.StatusCode
    allowed = {codes.INVALID_ARGUMENT, codes.RESOURCE_EXHAUSTED, codes.NOT_FOUND, codes.FAILED_PRECONDITION}
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        for method in ("Lookup", "Put", "Invalidate", "Forget"):
            ask = channel.unary_unary(f"/headrace.archive.v1.Archive/{method}")
            for message in messages:
                with pytest.raises(grpc.RpcError) as refused:
                    pytest.fail(f"{method} answered {ask(message, timeout=60)!r:.100} to {message[:20]!r}")
                assert refused.value.code() in allowed, (method, message[:20], refused.value)
        ask = channel.unary_unary("/headrace.archive.v1.Archive/Lookup")
        assert ask(request(space="items", keys=["a\0b", "../x"]).SerializeToString(), timeout=60)


def test_others_are_answered_beside_the_largest_lookups(server: RunningServer) -> None:
    """None fails; benchmarks tell how long they wait."""
    stopping, statuses = threading.Event(), set[int]()
    large = json.dumps(
        {"keys": [f"https://images.example/{number}.jpg" for number in range(10_000)]}
    ).encode()

    def ask_for_many() -> None:
        while not stopping.is_set():
            statuses.add(post(server, "/v1/archive/items:lookup", large)[0])

    threads = [threading.Thread(target=ask_for_many) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(100):
            assert post(server, "/v1/models/half_plus_two:predict", b'{"instances": [1.0]}')[0] == 200
            assert post(server, "/v1/archive/items:lookup", b'{"keys": ["a"]}')[0] == 200
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
    assert statuses == {200}
