"""Rows of numbers: at once where that is quick, and cut where the rows end."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from unittest.mock import patch

import pytest

from headrace.base.errors import HeadraceError, TooLarge
from headrace.config import Limits
from headrace.frontends.calls import HttpCall
from headrace.frontends.oip import rest as oip_rest
from headrace.frontends.tfserving import rest, row_decoder
from headrace.frontends.tfserving.row_decoder import RowsDecoder
from headrace.frontends.transport.rest_routes import Router
from headrace.frontends.wire.request_budget import RequestBudget
from headrace.frontends.wire.time_slicer import TimeSlicer
from tests.unit.frontends.oip.doubles import LoadedDouble, echo, run, spec
from tests.unit.frontends.tfserving.doubles import ServiceDouble, rows_model

FLAT, NAMED, SCALAR, NESTED = (
    echo("FP32", 3, name="flat"),
    rows_model(spec("a", "INT32"), spec("b", "FP32", 2)),
    echo("FP32", name="scalar"),
    echo("FP32", 2, 1, name="nested"),
)
LIGHT = 60 * 1024


def in_slices(model: LoadedDouble, body: bytes, most_values: int = 1 << 20, part: int = 80) -> Any:
    """What a body's rows are if each part is as short as it can be; None if it must be looked at closely."""

    async def decode() -> Any:
        async with TimeSlicer() as slicer:
            decoder = RowsDecoder(next(iter(model.signatures.values())))
            return await decoder.decode_in_slices(body, RequestBudget(Limits(max_values=most_values)), slicer)

    with patch.object(row_decoder, "_PART_BYTES", part):
        found = run(decode())
    return found and {name: array.tolist() for name, array in found.items()}


@pytest.mark.parametrize(
    ("model", "given", "found"),
    [
        (FLAT, [[1, 2, 3.5]] * 30, {"x": [[1, 2, 3.5]] * 30}),
        (FLAT, [{"x": [1, 2, 3.5]}] * 30, {"x": [[1, 2, 3.5]] * 30}),
        (SCALAR, list(range(100)), {"x": list(range(100))}),
        (NESTED, [[[1], [2]]] * 30, {"x": [[[1], [2]]] * 30}),
        (NAMED, [{"b": [1, 2], "a": 3}] * 30, {"a": [3] * 30, "b": [[1, 2]] * 30}),
    ],
)
def test_rows_are_cut_and_put_together(model: LoadedDouble, given: Any, found: Any) -> None:
    assert in_slices(model, json.dumps({"instances": given}).encode()) == found
    named = {"signature_name": "serving_default", "instances": given}
    assert in_slices(model, json.dumps(named, indent=1).encode()) == found
    assert in_slices(model, json.dumps(dict(reversed(named.items()))).encode()) == found


@pytest.mark.parametrize(
    "body",
    [
        b'{"instances":[1,2,3,4,5,6,7,8,9,10],"instances":[11,12,13,14,15,16]}',
        b'{"instances":[1,2,3,4,5,6,7,8,9,10],[11,12,13,14,15,16,17,18,19]}',
        b'{"instances":[1,2,3,4,5,6,7,8,9,10,,11,12,13,14,15,16]}',
        b'{"instances":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,]}',
        b'{"instances":[,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}',
        b'{"instances":[1,2,3,4,5,6,7,8,9,10,11,12],"signature_name":"other"}',
        b'{"instances":[1,2,3,4,5,6,7,8,9,10,11,12]]}',
        b'{"instances":[1,2,3,4,5,6,7,8,9,10,11,12]}}',
        b'{"instances":[]}',
        b'{"instances":[1,2,3,4,5,6,7,8,9,10,"11,12"]}',
    ],
)
def test_what_is_not_rows_alone_is_left_to_others(body: bytes) -> None:
    assert in_slices(SCALAR, body, part=20) is None


def test_values_count_slice_by_slice() -> None:
    with pytest.raises(TooLarge, match="max_values"):
        in_slices(FLAT, json.dumps({"instances": [[1, 2, 3]] * 1300}).encode(), 5000)
    assert in_slices(FLAT, json.dumps({"instances": [[1, 2, 3]] * 1200}).encode(), 5000) is not None


def answered_beside_a_heavy_one(path: str, body: bytes) -> bool:
    """Whether a request is answered, or refused, while the lane is taken."""
    service = ServiceDouble(FLAT, NAMED, SCALAR, echo("BYTES", name="words"))
    match = Router([*rest.http_routes(service), *oip_rest.http_routes(service)]).match("POST", path)

    async def answer() -> None:
        assert match.handler is not None
        try:
            await match.handler(HttpCall("POST", path, match.parameters, body=body))
        except HeadraceError:
            return

    async def beside() -> bool:
        async with service.slicer:
            asked = asyncio.create_task(answer())
            for _ in range(50):
                await asyncio.sleep(0)
            done = asked.done()
        await asked
        return done

    return run(beside())


def of_size(start: str, unit: str, end: str) -> bytes:
    """A body of some 60 KB."""
    return (start + ",".join([unit] * ((LIGHT - 200) // (len(unit) + 1))) + end).encode()


def infer(unit: str) -> bytes:
    """An inference request of some 60 KB."""
    count = (LIGHT - 200) // (len(unit) + 1)
    start = f'{{"inputs":[{{"name":"x","datatype":"FP32","shape":[{count}],"data":['
    return of_size(start, unit, '],"parameters":{}}],"outputs":[{"name":"none"}]}')


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/models/flat:predict", of_size('{"inputs":{"x":[', "[0.12345678,12.3456789,1e-05]", ",[]]}}")),
        ("/v1/models/flat:predict", of_size('{"inputs":{"x":[', "[0.12345678,12.3456789,1e-05,1]", ",[]]}}")),
        ("/v1/models/scalar:classify", of_size('{"examples":[', '{"x":0.12345678901}', ",{}]}")),
        ("/v2/models/scalar/infer", infer("0.12345678")),
    ],
)
def test_light_bodies_of_64_kb_never_wait_for_the_lane(path: str, body: bytes) -> None:
    assert answered_beside_a_heavy_one(path, body)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/models/flat:predict", of_size('{"instances":[', "[[]]", "]}")),
        ("/v1/models/scalar:predict", of_size('{"instances":[', "1e-320", "]}")),
        ("/v1/models/flat:predict", of_size('{"inputs":[', "{}", "]}")),
        ("/v2/models/scalar/infer", infer("1e-320")),
        ("/v2/models/scalar/infer", of_size('{"inputs":[', '{"name":"x"}', "]}")),
    ],
)
def test_heavy_bodies_of_64_kb_take_the_lane(path: str, body: bytes) -> None:
    assert not answered_beside_a_heavy_one(path, body)


def test_rows_of_64_kb_never_wait_for_the_lane() -> None:
    body = of_size('{"instances":[', "[0.12345678,12.3456789,1e-05]", "]}")
    service = ServiceDouble(FLAT)

    async def columns() -> object:
        async with service.slicer:
            return rest._inputs_at_once(service, FLAT, HttpCall("POST", "", {}, body=body))  # type: ignore[arg-type]

    assert run(columns()) is not None
