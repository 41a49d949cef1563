"""Whoever chooses what is downloaded, or serves it, gets at nothing else, and costs what the limits say."""

from __future__ import annotations

import gzip
import os
import socket
import ssl
import threading
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from headrace.archive.operations.open_archive import open_embedder
from headrace.net.content_failures import Failure
from headrace.net.deadline_connection import Resolve, system_addresses
from tests.certificates import Authority
from tests.hostile_images import HostileServer, answer, redirect
from tests.image_encoder import picture, write_encoder

RED = picture()
PATIENCE_SECONDS, TIMEOUT_SECONDS = 30.0, 1.5
"""What a download may take where that is not what a test is about, and where it is."""


@pytest.fixture
def server() -> Iterator[HostileServer]:
    with HostileServer({"/red.png": answer(RED)}) as made:
        yield made


class Door:
    """An embedder that may ask any host on a server's port, but nothing private unless that is allowed."""

    def __init__(self, directory: Path, port: int) -> None:
        """Write the encoder."""
        write_encoder(directory)
        self._directory = directory
        self._table: dict[str, object] = {
            "kind": "image",
            "model": "means.onnx",
            "hosts": ["*"],
            "ports": [port],
            "timeout_seconds": PATIENCE_SECONDS,
            "max_bytes": 100_000,
        }

    def failures(
        self, contents: Sequence[str | bytes], resolve: Resolve = system_addresses, **settings: object
    ) -> list[Failure | None]:
        """What comes of contents; None for a vector."""
        embedder = open_embedder("covers", self._table | settings, self._directory, resolve=resolve)
        try:
            made = embedder.embed([one.encode() if isinstance(one, str) else one for one in contents])
        finally:
            embedder.close()
        return [made.failures.get(place) for place in range(len(contents))]

    def allowed(self, content: str, **settings: object) -> Failure | None:
        """The same for one, where this machine may be asked."""
        return self.failures([content], **{"allow_networks": ["127.0.0.0/8"], **settings})[0]


@pytest.fixture
def door(tmp_path: Path, server: HostileServer) -> Door:
    return Door(tmp_path, server.port)


FORBIDDEN_HOSTS = [
    *("127.0.0.1", "localhost", "LOCALHOST.", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0x7f.1"),
    *("0", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[0:0:0:0:0:ffff:127.0.0.1]"),
    *("[::127.0.0.1]", "[64:ff9b::127.0.0.1]", "[2002:7f00:1::]", "[2001::1]", "[fe80::1]", "[fd00::1]"),
    *("169.254.169.254", "[::ffff:169.254.169.254]", "10.0.0.1", "192.168.0.1", "172.16.0.1", "100.64.0.1"),
    *("224.0.0.1", "255.255.255.255", "[ff02::1]", "127.0.0.1.", "017700000001"),
]


def test_no_form_of_a_private_address_is_connected_to(door: Door, server: HostileServer) -> None:
    found = door.failures([f"http://{host}:{server.port}/red.png" for host in FORBIDDEN_HOSTS])
    for host, failure in zip(FORBIDDEN_HOSTS, found, strict=True):
        assert failure is not None, host
        assert failure.is_final or "cannot resolve" in failure.reason, (host, failure)
    assert server.asked == []


def test_a_name_counts_for_nothing_its_address_counts(door: Door, server: HostileServer) -> None:
    for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.169.254", "10.0.0.1"):
        (failure,) = door.failures(
            [f"http://images.example:{server.port}/red.png"], lambda host, port, found=address: [found]
        )
        assert failure is not None
        assert failure.is_final
        assert f"'images.example' resolves to {address}, " in failure.reason
    assert server.asked == []


def test_the_address_that_is_checked_is_the_one_that_is_connected_to(
    door: Door, server: HostileServer
) -> None:
    """A name that leads elsewhere when it is asked a second time: it is asked once for each connection."""
    asked = []

    def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]

    url = f"http://images.example:{server.port}/red.png"
    assert door.failures([url], rebinding, allow_networks=["127.0.0.1"]) == [None]
    assert asked == ["images.example"]
    (failure,) = door.failures([url], rebinding, allow_networks=["127.0.0.1"])
    assert failure is not None
    assert failure.is_final
    assert server.asked == ["/red.png"]


def test_of_several_addresses_only_those_that_may_be_are_tried(door: Door, server: HostileServer) -> None:
    url = f"http://images.example:{server.port}/red.png"
    answers = ["10.0.0.1", "127.0.0.9", "127.0.0.1"]  # nothing listens on 127.0.0.9
    assert door.failures([url], lambda host, port: answers, allow_networks=["127.0.0.0/8"]) == [None]
    assert server.asked == ["/red.png"]


def test_every_redirect_is_checked_again(door: Door, server: HostileServer) -> None:
    away = {
        "/host": f"http://other.example:{server.port}/red.png",
        "/port": "http://images.example:22/red.png",
        "/scheme": "file:///etc/passwd",
        "/gopher": "gopher://images.example/_",
        "/user": f"http://images.example@other.example:{server.port}/red.png",
        "/slashes": f"//other.example:{server.port}/red.png",
        "/backslash": f"http:\\\\other.example:{server.port}\\red.png",
        "/private": f"http://private.images.example:{server.port}/red.png",
        "/loop": "/loop",
        "/good": "../red.png",
    }
    server.handlers |= {path: redirect(where) for path, where in away.items()}
    addresses = {"images.example": "127.0.0.1", "private.images.example": "10.0.0.1"}
    found = door.failures(
        [f"http://images.example:{server.port}{path}" for path in away],
        lambda host, port: [addresses[host]],
        hosts=["images.example", "*.images.example"],
        allow_networks=["127.0.0.1"],
    )
    told = dict(zip(away, found, strict=True))
    assert told.pop("/good") is None
    for path, failure in told.items():
        assert failure is not None, path
        assert failure.is_final, (path, failure)
    assert "more than 3 redirects" in str(told["/loop"])
    assert "'private.images.example' resolves to 10.0.0.1, a private address" in str(told["/private"])
    assert server.asked.count("/red.png") == 1
    assert server.asked.count("/loop") == 4


def test_no_redirect_leads_from_https_to_http(tmp_path: Path, server: HostileServer) -> None:
    authority = Authority(tmp_path)
    authority.write_server()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(authority.path("server.pem"), authority.path("server.key"))
    handlers = {"/away": redirect(server.url("/red.png")), "/red.png": answer(RED)}
    with HostileServer(handlers, tls) as secure:
        door, ports = Door(tmp_path, secure.port), [secure.port, server.port]
        away, red = (secure.url(path, scheme="https") for path in handlers)
        assert door.allowed(red, ports=ports, ca_file="ca.pem") is None
        failure = door.allowed(away, ports=ports, ca_file="ca.pem")
    assert failure is not None
    assert failure.is_final
    assert "redirects from https to http" in failure.reason
    assert server.asked == []


def test_nothing_but_the_request_is_sent(door: Door, server: HostileServer) -> None:
    assert door.allowed(server.url("/%0d%0aX:%20y?a=\u00fc%00")) is not None
    (head,) = server.heads
    lines = head.removesuffix("\r\n\r\n").split("\r\n")
    assert lines[0] == "GET /%0d%0aX:%20y?a=%C3%BC%00 HTTP/1.1"
    assert [line.split(":")[0] for line in lines[1:]] == [
        *("Host", "User-Agent", "Accept", "Accept-Encoding", "Connection")
    ]


def endless(connection: socket.socket, head: bytes, piece: bytes) -> int:
    connection.sendall(head)
    sent = 0
    try:
        while sent < 10 * 2**30:
            connection.sendall(piece)
            sent += len(piece)
    except OSError:
        pass
    return sent


def test_ten_gigabytes_without_a_length_end_at_the_limit(door: Door, server: HostileServer) -> None:
    sent: dict[str, int] = {}

    def plain(connection: socket.socket, head: str) -> None:
        sent["plain"] = endless(connection, b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536)

    def chunked(connection: socket.socket, head: str) -> None:
        begin = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        sent["chunked"] = endless(connection, begin, b"10000\r\n" + b"x" * 65536 + b"\r\n")

    def headers(connection: socket.socket, head: str) -> None:
        sent["headers"] = endless(connection, b"HTTP/1.1 200 OK\r\n", b"X: " + b"y" * 60_000 + b"\r\n")

    def one_header(connection: socket.socket, head: str) -> None:
        sent["one header"] = endless(connection, b"HTTP/1.1 200 OK\r\nX: ", b"y" * 65536)

    def chunk_size(connection: socket.socket, head: str) -> None:
        begin = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        sent["chunk size"] = endless(connection, begin, b"0" * 65536)

    tricks = {
        "/plain": plain,
        "/chunked": chunked,
        "/headers": headers,
        "/one": one_header,
        "/size": chunk_size,
    }
    server.handlers |= tricks
    tracemalloc.start()
    found = door.failures([server.url(path) for path in tricks], allow_networks=["127.0.0.1"])
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert all(failure is not None for failure in found)
    assert "too large: expected at most max_bytes = 100000 bytes" in str(found[0])
    assert "too large" in str(found[1])
    until = time.monotonic() + PATIENCE_SECONDS
    while len(sent) < len(tricks):  # until the other side has noticed
        assert time.monotonic() < until, sent
        time.sleep(0.05)
    assert max(sent.values()) < 20 * 2**20  # what sockets hold, besides
    assert most_bytes < 50 * 2**20  # of both sides


def test_a_length_that_is_too_large_is_refused_before_the_body(door: Door, server: HostileServer) -> None:
    def declared(connection: socket.socket, head: str) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10737418240\r\n\r\n")
        server.ended.wait(120)

    server.handlers["/large"] = declared
    failure = door.allowed(server.url("/large"))
    assert failure is not None
    assert failure.is_final
    assert "got 10737418240" in failure.reason  # of which not one byte had come


def drip(server: HostileServer, begin: bytes, piece: bytes) -> object:
    def handle(connection: socket.socket, head: str) -> None:
        connection.sendall(begin)
        while not server.ended.wait(0.02):
            connection.sendall(piece)

    return handle


def test_a_slow_drip_ends_at_the_time_limit(door: Door, server: HostileServer) -> None:
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n\r\n"
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    server.handlers |= {
        "/silent": lambda connection, head: server.ended.wait(120),
        "/status": drip(server, b"HTTP/1.1 ", b"2"),
        "/header": drip(server, b"HTTP/1.1 200 OK\r\nX: ", b"y"),
        "/headers": drip(server, b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
        "/continue": drip(server, b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        "/body": drip(server, whole, b"x"),
        "/chunks": drip(server, chunked, b"1\r\nx\r\n"),
        "/trailer": drip(server, chunked + b"0\r\n", b"X: y\r\n"),
    }
    paths = ["/silent", "/status", "/header", "/headers", "/continue", "/body", "/chunks", "/trailer"]
    found = door.failures(
        [server.url(path) for path in paths], allow_networks=["127.0.0.1"], timeout_seconds=TIMEOUT_SECONDS
    )
    for path, failure in zip(paths, found, strict=True):
        assert failure is not None, path
        assert not failure.is_final, (path, failure)
        assert "closed the connection" not in failure.reason, (path, failure)


def test_a_drip_of_redirects_has_one_time_limit(door: Door, server: HostileServer) -> None:
    def slowly(connection: socket.socket, head: str) -> None:
        server.ended.wait(TIMEOUT_SECONDS / 2)
        redirect("/slow")(connection, head)

    server.handlers["/slow"] = slowly
    failure = door.allowed(server.url("/slow"), max_redirects=20, timeout_seconds=TIMEOUT_SECONDS)
    assert failure is not None
    assert not failure.is_final, "and not ended by the number of redirects"


@pytest.mark.rest
def test_a_resolver_that_hangs_ends_at_the_time_limit(door: Door, server: HostileServer) -> None:
    ended = threading.Event()
    asked: list[str] = []

    def hanging(host: str, port: int) -> list[str]:
        asked.append(host)
        ended.wait(120)
        return []

    try:
        urls = [server.url("/red.png", f"h{n}.example") for n in range(12)]
        found = door.failures(urls, hanging, connections=3, timeout_seconds=TIMEOUT_SECONDS)
        assert all(failure is not None and not failure.is_final for failure in found)
        assert len(asked) <= 6  # hang together: twice the connections, and no more
    finally:
        ended.set()
    (failure,) = door.failures(["http://h.example/"], lambda host, port: 1 / 0, ports=[80])  # type: ignore[return-value]
    assert failure is not None
    assert "ZeroDivisionError" in failure.reason


def test_compressed_bodies_are_not_opened(door: Door, server: HostileServer) -> None:
    bomb = gzip.compress(b"\0" * 50_000_000)
    for encoding in ("gzip", "deflate", "br", "zstd", "gzip, gzip", "x"):
        server.handlers[f"/{encoding[:3]}"] = answer(bomb, "200 OK", f"Content-Encoding: {encoding}")
        failure = door.allowed(server.url(f"/{encoding[:3]}"))
        assert failure is not None
        assert failure.is_final
        assert "which was not requested" in failure.reason


def test_responses_that_are_not_http_become_dead_letters_with_a_reason(
    door: Door, server: HostileServer
) -> None:
    answers = {
        "/nothing": b"",
        "/noise": os.urandom(1000),
        "/old": b"<html>HTTP/0.9</html>",
        "/chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n",
        "/huge": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\nhello",
        "/short": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + RED,
        "/where": b"HTTP/1.1 302 Found\r\nLocation: http://[::1\r\n\r\n",
        "/negative": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    }

    def raw(content: bytes) -> object:
        return lambda connection, head: connection.sendall(content)

    server.handlers |= {path: raw(content) for path, content in answers.items()}
    found = door.failures([server.url(path) for path in answers], allow_networks=["127.0.0.1"])
    for path, failure in zip(answers, found, strict=True):
        assert failure is not None, path
    assert "closed the connection" in str(found[list(answers).index("/short")])


def test_paths_stay_below_their_directory(door: Door, tmp_path: Path) -> None:
    inside, outside = tmp_path / "covers", tmp_path / "secret.png"
    inside.mkdir()
    outside.write_bytes(RED)
    (inside / "red.png").write_bytes(RED)
    (inside / "link.png").symlink_to(outside)
    (inside / "loop").symlink_to(inside / "loop")
    os.mkfifo(inside / "pipe")
    tricks = [
        *("../secret.png", "./../secret.png", str(outside), "link.png", "loop", "pipe", ".", "", "a\0b"),
        *(
            "/dev/zero",
            "/etc/passwd",
            "file:///etc/passwd",
            "~/secret.png",
            "x" * 300,
            "y" * 9000,
        ),
        *("/proc/self/mem", "\\..\\secret.png", "%2e%2e/secret.png", "covers\n", b"\xff\xfe"),
    ]
    found = door.failures([*tricks, "red.png", "./red.png", str(inside / "red.png")], directory="covers")
    for trick, failure in zip(tricks, found, strict=False):
        assert failure is not None, trick
        assert failure.is_final, (trick, failure)
    assert found[-3:] == [None, None, None]
    assert door.failures(["red.png"], directory="")[0] is not None


LARGE = [
    b"http://" + b"a" * 1_000_000,
    b"http://images.example/" + b"%00" * 330_000,
    b"data:image/png;base64," + b"A" * 1_000_000,
    b"data:" + b"%41" * 330_000,
    b"../" * 330_000,
    b"\0" * 1_000_000,
    b"\x89PNG\r\n\x1a\n" + b"\0" * 1_000_000,
    b"\xed\xa0\x80" * 330_000,
]


@pytest.mark.timing
def test_a_content_of_a_megabyte_costs_little(door: Door) -> None:
    began = time.process_time()  # a pool's threads do the work
    door.failures(LARGE, directory=".")
    assert time.process_time() - began < 5


def test_a_content_of_a_megabyte_is_refused_in_few_words(door: Door) -> None:
    found = door.failures(LARGE, directory=".")
    assert all(failure is not None and failure.is_final for failure in found)
    assert max(len(str(failure)) for failure in found) < 1000
