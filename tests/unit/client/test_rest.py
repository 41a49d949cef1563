"""Requests to another server, as a real one gets them, and what its refusals say."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest

from headrace.base.errors import ConfigError, Unavailable
from headrace.client.rest import RestClient, read_address


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
