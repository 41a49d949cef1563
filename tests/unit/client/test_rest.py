"""Requests to another server, as a real one gets them, and what its refusals say."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from headrace.base.errors import ConfigError, TooLarge, Unavailable
from headrace.client import rest
from headrace.client.rest import Address, RestClient, read_address
from headrace.net import deadline_connection


class Busy(http.server.BaseHTTPRequestHandler):
    """Refuses each request: its path is the body, and its query the header ``Retry-After``."""

    def do_GET(self) -> None:
        path, _, wait = self.path.partition("?")
        self.send_response(503)
        self.send_header("Retry-After", wait)
        self.send_header("Content-Length", str(len(path)))
        self.end_headers()
        self.wfile.write(path.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def refusal(url: str, path: str) -> Unavailable:
    client = RestClient(read_address(url), "", "")
    try:
        with pytest.raises(Unavailable) as caught:
            client.ask(path, b"", {}, 30.0, 1000)
    finally:
        client.close()
    return caught.value


def test_a_path_of_other_letters_is_sent_as_urls_are(url: str) -> None:
    assert "/%C3%A4%20b/c%2Fd/v2" in refusal(f"{url}/ä b/c%2Fd", "/v2").message


def test_a_host_of_other_letters_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"url: expected .*got 'http://bücher\.example'.*xn--"):
        read_address("http://bücher.example")


@pytest.mark.parametrize(
    ("told", "seconds"), [("7", 7.0), ("nan", 1.0), ("inf", 300.0), ("-1", 0.0), ("tomorrow", 1.0)]
)
def test_the_time_to_wait_is_always_a_number(url: str, told: str, seconds: float) -> None:
    assert refusal(url, f"/v2?{told}").retry_after_seconds == seconds


@pytest.mark.parametrize(
    "url", ["http://host:0", "http://host/#x", "http://host/?x", "ftp://host", "http://"]
)
def test_a_url_that_is_not_the_address_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="url: expected http://HOST:PORT or https://HOST:PORT, got "):
        read_address(url)


def test_ports_are_optional() -> None:
    assert read_address("https://host/v1/") == Address("host", 443, "/v1", is_secure=True)
    assert read_address("http://host:8501") == Address("host", 8501, "", is_secure=False)


@pytest.mark.parametrize("url", ["http://ann:secret@host", "http://ann:secret@host:x", "ann:secret@host"])
def test_a_password_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match=r"url: .*token_file") as caught:
        read_address(url)
    assert "secret" not in str(caught.value)


def test_a_call_over_several_addresses_ends_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock moves only while an address is waited for, as long as the socket allows."""
    now, waits = [100.0], []

    class Silent:
        def __init__(self, *_: object) -> None:
            self.seconds = 0.0

        def settimeout(self, seconds: float) -> None:
            self.seconds = seconds

        def connect(self, address: tuple[str, int]) -> None:
            waits.append((address[0], self.seconds))
            now[0] += self.seconds
            raise TimeoutError("timed out")

        def close(self) -> None:
            pass

    found = [(0, 0, 0, "", ("192.0.2.1", 80)), (0, 0, 0, "", ("2001:db8::1", 80, 0, 0))]
    sockets = {"socket": Silent, "getaddrinfo": lambda *_, **__: found}
    kinds = {name: getattr(socket, name) for name in ("AF_INET", "AF_INET6", "SOCK_STREAM")}
    monkeypatch.setattr(deadline_connection, "socket", SimpleNamespace(**sockets, **kinds))
    for module in (deadline_connection, rest):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with pytest.raises(Unavailable, match=r"two\.example:80 did not answer within 30 s"):
        RestClient(read_address("http://two.example"), "", "").ask("/", b"", {}, 30.0, 1000)
    assert waits == [("192.0.2.1", 15.0), ("2001:db8::1", 15.0)]


def test_a_call_does_not_wait_for_a_resolver_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: ended.wait() and [])
    try:
        with pytest.raises(Unavailable, match=r"lost\.example:80 did not answer within 0\.1 s"):
            RestClient(read_address("http://lost.example"), "", "").ask("/", b"", {}, 0.1, 1000)
    finally:
        ended.set()


def test_a_refusal_that_comes_before_the_body_has_been_sent_is_read() -> None:
    """By a balancer, which closes the connection without reading the rest."""
    body, requests = b"x" * 32 * 2**20, list[bytes]()

    def serve(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            for _ in range(2):
                requests.append(connection.recv(1000))
                is_small = b"Content-Length" not in requests[-1]
                status = b"200 OK" if is_small else b"413 Content Too Large"
                connection.sendall(b"HTTP/1.1 %b\r\nContent-Length: 5\r\n\r\nlarge" % status)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = threading.Thread(target=serve, args=(listening,))
        server.start()
        client = RestClient(read_address(f"http://127.0.0.1:{listening.getsockname()[1]}"), "", "")
        assert client.ask("/", b"", {}, 30.0, 1000).body == b"large"
        with pytest.raises(TooLarge, match="the server answered 413: 'large'"):
            client.ask("/", body, {}, 30.0, 1000)
        client.close()
        server.join()
    assert len(requests) == 2


def test_a_kept_connection_with_unasked_data_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A balancer that closes an idle connection may say so with a response of its own."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d"
    pairs = [socket.socketpair() for _ in range(2)]
    with ExitStack() as stack:
        for one in (end for pair in pairs for end in pair):
            stack.enter_context(one)
        client = RestClient(read_address("http://host"), "", "")
        connections = iter([ours for ours, _ in pairs])
        monkeypatch.setattr(client, "_connected", lambda _: next(connections))
        for index, (_, theirs) in enumerate(pairs):
            theirs.sendall(answer % index)
            assert client.ask("/", b"", {}, 30.0, 1000).body == b"%d" % index
            theirs.sendall(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
        client.close()


def test_a_call_that_ends_after_close_keeps_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        client = RestClient(read_address("http://host"), "", "")
        monkeypatch.setattr(client, "_connected", lambda _: ours)
        theirs.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        client.close()
        assert client.ask("/", b"", {}, 30.0, 1000).body == b"{}"
        assert ours.fileno() == -1
