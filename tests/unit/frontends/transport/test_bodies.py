"""Bodies of REST requests, as they arrive."""

from __future__ import annotations

from tests.unit.frontends.transport.wire import Server, part


def test_a_body_of_the_declared_length_is_answered_without_waiting_for_its_end() -> None:
    server, events = Server(), [part(b"he"), part(b""), part(b"llo")]
    response = server.http("POST", "/echo/x", events, {b"content-length": b"5"})
    assert (response.status, response.body) == (200, b"hello")
    assert server.held_bytes == 0
