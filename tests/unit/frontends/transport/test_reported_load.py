"""Where the load report stands in an answer: beside what else is said, and behind the last message."""

from __future__ import annotations

import pytest

from headrace.base.errors import Conflict
from headrace.batching.capacity import LoadReport
from headrace.frontends.metrics.orca_load_reports import encoded
from tests.unit.frontends.transport.wire import Server, body, message

REPORT = LoadReport(0.5, 100.0, 0.25)
_, TRAILER, HEADER = encoded(REPORT)
NAMED = {b"x-request-id": b"a"}


@pytest.fixture
def server() -> Server:
    made = Server()
    made.application.load.report(REPORT)
    return made


@pytest.mark.parametrize("path", ["/x.Echo/Unary", "/x.Echo/Stream"])
@pytest.mark.parametrize("size", [1, 600_000], ids=["small", "large"])
@pytest.mark.parametrize("headers", [{}, NAMED], ids=["without a name", "with a name"])
def test_it_is_a_trailer_of_each_grpc_answer(
    server: Server, path: str, size: int, headers: dict[bytes, bytes]
) -> None:
    server.answer = b"x" * size
    response = server.grpc(body(message(b"x")), path=path, headers=headers)
    assert response.messages == [server.answer]
    assert response.trailers == {b"grpc-status": b"0", **headers, TRAILER[0]: TRAILER[1]}


def test_it_is_a_trailer_of_an_error(server: Server) -> None:
    server.answer = Conflict("there already")
    response = server.grpc(body(message(b"x")), headers=NAMED)
    assert response.grpc == (6, "there already")
    assert response.trailers.items() >= {TRAILER, *NAMED.items()}


@pytest.mark.parametrize("size", [1, 600_000], ids=["small", "large"])
def test_it_is_a_header_of_each_rest_answer_also_of_a_server_that_stops(server: Server, size: int) -> None:
    server.answer = b"x" * size
    server.application.drain()
    headers = {b"content-length": b"1"}
    assert server.http("POST", "/echo/a", body(b"x"), headers).headers.items() >= {
        HEADER,
        (b"connection", b"close"),
    }
