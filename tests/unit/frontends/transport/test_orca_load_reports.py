"""Load reports as balancers read them, and where they stand in answers."""

from __future__ import annotations

import json
from base64 import b64decode

import pytest

from headrace.base.errors import Conflict
from headrace.batching.capacity import LoadReport
from headrace.frontends.transport.orca_load_reports import encoded
from tests import orca
from tests.unit.frontends.transport.wire import Server, body, message

REPORT = LoadReport(0.5, 100.0, 0.25)
_, TRAILER, HEADER = encoded(REPORT)
NAMED = {b"x-request-id": b"a"}


@pytest.mark.parametrize("report", [LoadReport(0.25, 120.5, 2.0), LoadReport(1.5, 1 / 3, 1e-9)])
def test_each_form_of_a_report_has_the_same_fields(report: LoadReport) -> None:
    metadata, trailer, header = encoded(report)
    fields = {
        "application_utilization": report.load,
        "rps_fractional": report.requests_per_second,
        "eps": report.errors_per_second,
    }
    assert metadata[0] == "endpoint-load-metrics-bin"
    assert orca.parsed(metadata[1]) == fields
    assert trailer == (b"endpoint-load-metrics-bin", trailer[1])
    assert b64decode(trailer[1], validate=True) == metadata[1]
    assert header[0] == b"endpoint-load-metrics"
    form, _, content = header[1].partition(b" ")
    assert (form, json.loads(content)) == (b"JSON", pytest.approx(fields, abs=1e-6))


@pytest.mark.parametrize("value", [0.0, 1.0, 1e9])
def test_base64_needs_no_padding(value: float) -> None:
    """gRPC sends none, and Envoy decodes nothing whose padding is missing."""
    assert not encoded(LoadReport(value, value, value)).trailer[1].endswith(b"=")


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
