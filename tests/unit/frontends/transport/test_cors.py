"""What browsers are told of who may ask: a truth table, and the application that says it."""

from __future__ import annotations

import asyncio

import pytest

from headrace.config import Limits
from headrace.frontends.calls import HttpCall, HttpReply, HttpRoute
from headrace.frontends.transport.cors import Origins, shared
from headrace.frontends.wire.time_slicer import TimeSlicer
from headrace.telemetry.outcomes import Outcomes
from tests.unit.frontends.transport.wire import GRPC, Response, Wire, body

A, B = b"https://a.example", b"https://b.example"
ORIGIN = b"access-control-allow-origin"


@pytest.mark.parametrize(
    ("origins", "origin", "allowed", "varies"),
    [
        (["https://a.example"], A, A, True),
        (["https://a.example"], B, None, True),
        (["https://a.example"], b"https://a.example.evil", None, True),
        (["https://a.example"], b"https://A.example", None, True),
        (["https://a.example"], b"null", None, True),
        (["https://a.example"], b"", None, True),
        (["https://a.example"], None, None, True),
        (["https://a.example", "https://b.example"], B, B, True),
        (["*"], B, b"*", False),
        (["*"], b"null", b"*", False),
        (["*"], None, None, False),
    ],
)
def test_who_is_told_that_he_may(
    origins: list[str], origin: bytes | None, allowed: bytes | None, varies: bool
) -> None:
    said = dict(Origins(origins).with_answer(origin))
    assert said.get(ORIGIN) == allowed
    assert (b"vary" in said) is varies
    assert (b"access-control-expose-headers" in said) is (allowed is not None)
    assert b"access-control-allow-credentials" not in said


@pytest.mark.parametrize(
    ("names", "permitted"),
    [
        (b"content-type,x-own", b"content-type,x-own"),
        (b"Content-Type, X-Own", b"Content-Type, X-Own"),
        (b"", None),
        (b"a\r\nset-cookie: x", None),
        (b"x" * 65, None),
        (b",".join([b"a"] * 65), None),
        (b"*", None),
    ],
)
def test_what_headers_pages_may_send(names: bytes, permitted: bytes | None) -> None:
    said = dict(Origins(["https://a.example"]).with_preflight(A, ["GET", "POST"], names))
    found = said[b"access-control-allow-headers"]
    assert found == permitted or (permitted is None and b"authorization" in found)
    assert said[b"access-control-allow-methods"] == b"GET, POST"
    assert said[ORIGIN] == A


async def _things(call: HttpCall) -> HttpReply:
    return HttpReply(b"1")


def answered(
    method: str, path: str, *headers: tuple[bytes, bytes], root: str = "", draining: bool = False
) -> Response:
    """What an application for pages of one origin answers."""

    async def ask() -> Response:
        routes = [HttpRoute("GET", "/things/{name}", _things), HttpRoute("DELETE", "/things/{name}", _things)]
        application = shared(["https://a.example"], None, (routes, [], Limits(), Outcomes(), TimeSlicer()))
        if draining:
            application.drain()
        wire = Wire(body())
        scope = {
            "type": "http",
            "method": method,
            "path": root + path,
            "root_path": root,
            "headers": list(headers),
            "query_string": b"",
        }
        await asyncio.wait_for(application(scope, wire.receive, wire.send), 120)
        return Response(wire.sent)

    return asyncio.run(ask())


WANTED = (b"access-control-request-method", b"DELETE")


@pytest.mark.parametrize("root", ["", "/below"])
def test_a_browser_is_told_what_a_path_takes(root: str) -> None:
    said = answered("OPTIONS", "/things/x", (b"origin", A), WANTED, root=root)
    assert (said.status, said.body) == (200, b"")
    assert said.headers[b"access-control-allow-methods"] == b"DELETE, GET"
    assert b"connection" not in said.headers


def test_a_browser_is_told_that_the_connection_ends() -> None:
    said = answered("OPTIONS", "/things/x", (b"origin", A), WANTED, draining=True)
    assert said.headers[b"connection"] == b"close"


@pytest.mark.parametrize(
    ("path", "headers", "status", "allowed"),
    [
        ("/things/x", [(b"origin", B), WANTED], 405, None),
        ("/things/x", [WANTED], 405, None),
        ("/things/x", [(b"origin", A)], 405, A),
        ("/nothing", [(b"origin", A), WANTED], 404, A),
    ],
)
def test_other_questions_are_answered_as_ever(
    path: str, headers: list[tuple[bytes, bytes]], status: int, allowed: bytes | None
) -> None:
    said = answered("OPTIONS", path, *headers)
    assert said.status == status
    assert said.headers.get(ORIGIN) == allowed
    assert b"access-control-allow-methods" not in said.headers


def test_answers_and_errors_carry_the_header() -> None:
    for method, path, status in (("GET", "/things/x", 200), ("HEAD", "/things/x", 200), ("GET", "/no", 404)):
        said = answered(method, path, (b"origin", A))
        assert (said.status, said.headers[ORIGIN]) == (status, A)
        assert said.headers[b"vary"] == b"origin"
        assert answered(method, path).headers[b"vary"] == b"origin"


def test_who_is_no_page_hears_nothing_of_it() -> None:
    said = answered("POST", "/x.Y/Z", *GRPC)
    assert said.headers.keys().isdisjoint({b"vary", ORIGIN})
