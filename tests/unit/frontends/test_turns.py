"""No turn of the event loop has much of a large body's work, whatever the body holds that nobody asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from unittest.mock import patch

import pytest

from headrace.base.errors import HeadraceError
from headrace.frontends.calls import HttpCall
from headrace.frontends.oip import rest as oip_rest
from headrace.frontends.tfserving import rest as tfserving_rest
from headrace.frontends.transport.rest_routes import Router
from headrace.frontends.wire import json_text, long_lists
from headrace.frontends.wire.time_slicer import TimeSlicer
from tests.unit.frontends.oip.doubles import echo
from tests.unit.frontends.tfserving.doubles import ServiceDouble
from tests.unit.frontends.tfserving.test_large_results import longest_turn
from tests.unit.frontends.turns import steps_of

MOST_OF_ALL = 0.1  # of the processor's time
MOST_CALLS = 0.04  # of all function calls; the most is 0.015
LEAST_TURNS = 1000
LONGEST_PIECE = 256 * 1024 + 100  # bytes that the parser in C gets at once
TRIES = 3
DOOR = ServiceDouble(echo("FP32", name="numbers"))
ROUTES = Router([*oip_rest.http_routes(DOOR), *tfserving_rest.http_routes(DOOR)])  # type: ignore[arg-type]
INFER = "/v2/models/numbers/infer"
PREDICT = "/v1/models/numbers:predict"
ONE_INPUT = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]'


def infer(rest: bytes) -> bytes:
    """A good request, and something beside its inputs."""
    return ONE_INPUT + b"}]," + rest + b"}"


def many(unit: bytes, count: int) -> bytes:
    return b"[" + (unit + b",") * (count - 1) + unit + b"]"


def names(count: int) -> bytes:
    return b"{" + b",".join(b'"k%d":1' % number for number in range(count)) + b"}"


def outputs(count: int) -> bytes:
    return b"[" + b",".join(b'{"name":"y%d"}' % number for number in range(count)) + b"]"


TEXT_OF_ESCAPES = b'"' + rb"\u0001" * 1060 + b'"'
BODIES: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "empty lists": (INFER, lambda: infer(b'"more":' + many(b"[]", 500_000)), "besides the data"),
    "objects": (INFER, lambda: infer(b'"more":' + many(b'{"a":[]}', 200_000)), "besides the data"),
    "long integers": (INFER, lambda: infer(b'"more":' + many(b"9" * 4000, 4000)), "besides the data"),
    "texts of escapes": (INFER, lambda: infer(b'"more":' + many(TEXT_OF_ESCAPES, 4000)), "besides the data"),
    "texts": (INFER, lambda: infer(b'"more":' + many(b'"%s"' % (b"w" * 8000), 4000)), "besides the data"),
    "long names": (INFER, lambda: infer(b'"more":' + many(b'{"%s":1}' % (b"w" * 8000), 4000)), "besides the"),
    "parameters": (INFER, lambda: infer(b'"parameters":' + names(200_000)), "besides the data"),
    "outputs": (INFER, lambda: infer(b'"outputs":' + outputs(150_000)), "besides the data"),
    "an input's parameters": (
        INFER,
        lambda: ONE_INPUT + b',"parameters":' + names(200_000) + b"}]}",
        "besides the data",
    ),
    "a comma at the end": (
        INFER,
        lambda: infer(b'"more":' + many(b"[]", 500_000)[:-1] + b",]"),
        "trailing comma",
    ),
    "inputs nobody knows": (PREDICT, lambda: b'{"inputs":' + names(200_000) + b"}", "missing input"),
    "what is not asked for": (
        PREDICT,
        lambda: b'{"instances":[1],"more":' + many(b"[]", 500_000) + b"}",
        "",
    ),
}


def asking(path: str, body: bytes, ends: str) -> Callable[[], Coroutine[Any, Any, None]]:
    """Send a body, and check how its call ends."""
    found = ROUTES.match("POST", path)

    async def answer() -> str:
        assert found.handler is not None
        try:
            await found.handler(HttpCall("POST", path, found.parameters, body=body))
        except HeadraceError as error:
            return error.message
        return ""

    async def ask() -> None:
        said = await answer()
        assert bool(said) == bool(ends), said
        assert ends in said

    return ask


each_body = pytest.mark.parametrize(("path", "make", "ends"), BODIES.values(), ids=BODIES)


@each_body
def test_a_body_is_worked_off_in_many_small_steps(path: str, make: Callable[[], bytes], ends: str) -> None:
    pieces, decode = list[int](), json_text._decode

    def parse(text: bytes) -> object:
        pieces.append(len(text))
        return decode(text)

    with patch.object(json_text, "_decode", parse):
        steps = steps_of(asking(path, make(), ends))
    assert steps.turns >= LEAST_TURNS
    assert steps.share < MOST_CALLS
    assert max(pieces) <= LONGEST_PIECE


@pytest.mark.timing
@each_body
def test_no_turn_has_much_of_what_a_body_costs(path: str, make: Callable[[], bytes], ends: str) -> None:
    share, ask = 1.0, asking(path, make(), ends)
    for _ in range(TRIES):
        share = min(share, longest_turn(ask))
        if share < MOST_OF_ALL:
            return
    pytest.fail(f"one turn took {share:.0%} of the time")


@pytest.mark.parametrize("steps", [1, long_lists.STEP])
def test_a_document_is_taken_apart(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_lists, "STEP", steps)
    inner = [[1.5, None, "text"], {"name": [{}, []]}]
    document = {"inputs": inner, "outputs": {"a": {"b": [0, True]}}}
    held = [document, inner, *inner]

    async def give_back() -> None:
        async with TimeSlicer() as slicer:
            await long_lists.given_back(document, slicer)

    asyncio.run(give_back())
    assert not any(held)
