"""The routes under /v2."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from headrace.base.errors import FailedPrecondition, InvalidRequest, NotFound, TooLarge, Unsupported
from headrace.config import Limits
from headrace.frontends.calls import Headers, HttpCall, HttpReply, NotReady
from headrace.frontends.oip.infer_bodies import JSON_LENGTH_HEADER
from headrace.frontends.oip.rest import http_routes
from headrace.frontends.transport.responses import error_reply
from headrace.frontends.transport.rest_routes import Router
from headrace.frontends.wire import long_lists
from tests.unit.frontends.oip.doubles import LoadedDouble, ServiceDouble, ctr, echo, run
from tests.unit.frontends.turns import CountingLane, Turns


def call(
    service: ServiceDouble, method: str, path: str, body: bytes = b"", headers: Headers = ()
) -> HttpReply:
    match = Router(http_routes(service)).match(method, path)
    assert match.handler is not None, f"no route for {method} {path}"
    try:
        reply = run(match.handler(HttpCall(method, path, match.parameters, headers, body)))
    except NotReady as error:
        reply = error_reply(error)
    assert isinstance(reply, HttpReply)
    return reply


def get(service: ServiceDouble, path: str) -> Any:
    reply = call(service, "GET", path)
    assert reply.status == 200
    return json.loads(reply.body)


BODY = b'{"id":"1","inputs":[{"name":"x","datatype":"FP32","shape":[2],"data":[0.5,1.5]}]}'


@pytest.mark.parametrize("path", ["/v2/models/echo/infer", "/v2/models/echo/versions/3/infer"])
def test_inference_with_and_without_a_version(path: str) -> None:
    service = ServiceDouble(echo("FP32"))
    reply = call(service, "POST", path, BODY)
    assert json.loads(reply.body) == {
        "model_name": "echo",
        "model_version": "3",
        "id": "1",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [2], "data": [0.5, 1.5]}],
    }
    assert len(service.deadlines) == 1


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/v2/models/other/infer", NotFound),
        ("/v2/models/echo/versions/4/infer", NotFound),
        ("/v2/models/echo/versions/one/infer", InvalidRequest),
    ],
)
def test_inference_on_what_is_not_here_is_refused(path: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        call(ServiceDouble(echo("FP32")), "POST", path, BODY)


def test_health_answers_satisfy_every_client() -> None:
    service = ServiceDouble(ctr())
    assert get(service, "/v2/health/live") == {"live": True, "ready": True}
    assert get(service, "/v2/health/ready") == {"live": True, "ready": True}
    service.is_ready = False
    assert call(service, "GET", "/v2/health/live").status == 200
    reply = call(service, "GET", "/v2/health/ready")
    assert (reply.status, json.loads(reply.body)) == (503, {"live": True, "ready": False})


def test_a_model_says_whether_it_is_ready() -> None:
    service = ServiceDouble(ctr())
    assert get(service, "/v2/models/ctr/ready") == {"name": "ctr", "ready": True}
    assert get(service, "/v2/models/ctr/versions/3/ready")["ready"]
    assert call(service, "GET", "/v2/models/ctr/versions/1/ready").status == 503
    with pytest.raises(NotFound):
        call(service, "GET", "/v2/models/other/ready")


def test_the_server_and_its_models_describe_themselves() -> None:
    service = ServiceDouble(ctr())
    assert get(service, "/v2")["name"] == "headrace"
    for path in ("/v2/models/ctr", "/v2/models/ctr/versions/3"):
        assert get(service, path) == {
            "name": "ctr",
            "versions": ["3"],
            "platform": "onnxruntime_onnx",
            "inputs": [
                {"name": "cat", "datatype": "INT32", "shape": [-1, 26]},
                {"name": "dense", "datatype": "FP32", "shape": [-1, 13]},
            ],
            "outputs": [{"name": "p", "datatype": "FP32", "shape": [-1, 1]}],
        }


def test_the_settings_are_what_tritons_clients_read() -> None:
    config = get(ServiceDouble(ctr()), "/v2/models/ctr/config")
    assert (config["max_batch_size"], config["backend"]) == (256, "onnxruntime")
    assert config["input"][0] == {"name": "cat", "data_type": "TYPE_INT32", "dims": [26]}
    assert config["output"] == [{"name": "p", "data_type": "TYPE_FP32", "dims": [1]}]
    text = get(ServiceDouble(echo("BYTES")), "/v2/models/echo/versions/3/config")
    assert text["input"][0]["data_type"] == "TYPE_STRING"


def test_statistics_of_one_version_of_a_model_and_of_all() -> None:
    service = ServiceDouble(ctr(), echo("FP32"))
    for path, names in (
        ("/v2/models/stats", ["ctr", "echo"]),
        ("/v2/models/ctr/stats", ["ctr"]),
        ("/v2/models/ctr/versions/3/stats", ["ctr"]),
    ):
        assert [one["name"] for one in get(service, path)["model_stats"]] == names


@pytest.mark.parametrize(
    ("body", "versions"), [(b"", ["3", "1"]), (b"{}", ["3", "1"]), (b'{"ready":true}', ["3"])]
)
def test_the_index_lists_versions(body: bytes, versions: list[str]) -> None:
    reply = call(ServiceDouble(ctr()), "POST", "/v2/repository/index", body)
    assert [one["version"] for one in json.loads(reply.body)] == versions


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"x", "body: expected JSON: .*; leave it empty or send an object"),
        (b"[]", "body: expected an object, got a list; leave it empty or send an object"),
        (b'{"ready":1}', "ready: expected true or false, got 1; send true"),
        (b'{"a":' + b"[" * 100_000, "body: .*; leave it empty or send an object"),
    ],
)
def test_a_wrong_index_request_is_refused(body: bytes, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        call(ServiceDouble(ctr()), "POST", "/v2/repository/index", body)


def test_a_large_index_or_load_request_is_refused_before_it_is_parsed() -> None:
    body = b'{"x":[' + b"1e-320," * 10_000 + b"1]}"
    for path in ("/v2/repository/index", "/v2/repository/models/ctr/load"):
        with pytest.raises(TooLarge, match="body: expected at most 65536 bytes, got 70009; leave it empty"):
            call(ServiceDouble(ctr(), admin=True), "POST", path, body)


def test_models_are_loaded_and_unloaded_where_the_operator_allows_it() -> None:
    service = ServiceDouble(ctr(), admin=True)
    assert call(service, "POST", "/v2/repository/models/ctr/load").status == 200
    assert call(
        service, "POST", "/v2/repository/models/ctr/unload", b'{"parameters":{"unload_dependents":false}}'
    )
    assert service.asked == [("reload", "ctr"), ("unload", "ctr")]
    with pytest.raises(FailedPrecondition):
        call(ServiceDouble(ctr()), "POST", "/v2/repository/models/ctr/load")
    with pytest.raises(Unsupported, match="config: models are loaded from the server's disk"):
        call(service, "POST", "/v2/repository/models/ctr/load", b'{"parameters":{"config":"{}"}}')


# ---- Many texts in the binary form ----

TEXTS = 50_000


def binary_texts(texts: int, raw: bytes) -> tuple[bytes, Headers]:
    tensor = {
        "name": "x", "datatype": "BYTES", "shape": [texts], "parameters": {"binary_data_size": len(raw)},
    }  # fmt: skip
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return head + raw, ((JSON_LENGTH_HEADER, b"%d" % len(head)),)


def turns_of_others(service: ServiceDouble, path: str, body: bytes, headers: Headers = ()) -> int:
    """How many turns others had while a request was decoded: up to the moment when it was predicted."""
    match = Router(http_routes(service)).match("POST", path)
    assert match.handler is not None
    others = Turns(lambda: bool(service.deadlines))

    async def answer() -> None:
        async with others:
            await match.handler(HttpCall("POST", path, match.parameters, headers, body))

    run(answer())
    return others.seen.count(False)


def test_others_are_answered_while_many_binary_texts_are_decoded() -> None:
    body, headers = binary_texts(TEXTS, b"\1\0\0\0a" * TEXTS)
    service = ServiceDouble(echo("BYTES"))
    assert turns_of_others(service, "/v2/models/echo/infer", body, headers) > 20
    few, headers = binary_texts(2, b"\1\0\0\0a" * 2)
    assert turns_of_others(ServiceDouble(echo("BYTES")), "/v2/models/echo/infer", few, headers) < 5


def test_binary_texts_count_as_values() -> None:
    service = ServiceDouble(echo("BYTES"))
    service.limits = Limits(max_values=1000)
    assert call(service, "POST", "/v2/models/echo/infer", *binary_texts(1000, bytes(4000))).status == 200
    with pytest.raises(TooLarge, match=r"x: expected at most 1000 values in a request \(limits.max_values\)"):
        call(service, "POST", "/v2/models/echo/infer", *binary_texts(1001, bytes(4004)))


def test_texts_for_numbers_are_refused_before_one_is_decoded() -> None:
    cut_off = b"\xff\xff\xff\xff"
    with pytest.raises(InvalidRequest, match=r"x: expected x FP32 \[rows\], got BYTES \[1\]; convert it"):
        call(ServiceDouble(echo("FP32")), "POST", "/v2/models/echo/infer", *binary_texts(1, cut_off))
    text = b'{"inputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":[0]}]}'
    with pytest.raises(InvalidRequest, match=r"x: expected x FP32 \[rows\], got BYTES \[1\]; convert it"):
        call(ServiceDouble(echo("FP32")), "POST", "/v2/models/echo/infer", text)


# ---- Small and large bodies ----


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("others", [3, 30_000])
@pytest.mark.parametrize("where", ["data", "unknown"])
@pytest.mark.parametrize("slow", [0, 8], ids=["", "with numbers that take long"])
def test_json_has_no_nan_and_no_infinity(word: str, others: int, where: str, slow: int) -> None:
    numbers = f"[{word}{',1e-320' * slow}{',1.5' * others}]"
    data = numbers if where == "data" else f"[1{',1.5' * (slow + others)}]"
    rows = slow + others + 1
    body = f'{{"inputs":[{{"name":"x","datatype":"FP32","shape":[{rows}],"data":{data}}}],"more":{numbers}}}'
    for absent in (None, -5.0):
        with pytest.raises(InvalidRequest, match=r"body: .*JSON"):
            call(ServiceDouble(leaving_out(absent)), "POST", "/v2/models/echo/infer", body.encode())


def leaving_out(absent: float | None, **more: Any) -> LoadedDouble:
    """A model that answers its one input, in which values may be left out."""
    model = echo("FP32", *more.pop("shape", ()))
    (signature,) = model.signatures.values()
    inputs = tuple(replace(one, absent=absent, **more) for one in signature.inputs)
    model.signatures = {signature.name: replace(signature, inputs=inputs, _layouts={})}
    return model


@pytest.mark.parametrize("blanks", [0, 70_000])
def test_short_and_long_bodies_nest_equally_deep(blanks: int) -> None:
    for deep, said in ((62, None), (64, "body: expected JSON nested at most 64 deep")):
        more = b',"more":' + b"[" * deep + b"]" * deep + b" " * blanks + b"}"
        body = BODY[:-1] + more
        if said is None:
            assert call(ServiceDouble(echo("FP32")), "POST", "/v2/models/echo/infer", body).status == 200
            continue
        with pytest.raises(InvalidRequest, match=said):
            call(ServiceDouble(echo("FP32")), "POST", "/v2/models/echo/infer", body)


each_way_to_leave_out = pytest.mark.parametrize(
    ("more", "shape", "values"),
    [
        ({}, [4 * TEXTS], b"1.25,"),
        ({}, [4 * TEXTS], b"null,"),
        ({"shape": (1,)}, [TEXTS, 1], b"[null],"),
        ({"shape": (4,), "shorter": True}, [TEXTS, 4], b"[1.25,2.5,3.75],"),
    ],
    ids=["flat", "nulls", "nulls in lists", "shorter"],
)


def with_values_left_out(more: Any, shape: list[int], values: bytes) -> tuple[ServiceDouble, bytes]:
    """A model that answers such a body, and the body."""
    data = (values * shape[0])[:-1]
    body = b'{"inputs":[{"name":"x","datatype":"FP32","shape":%s,"data":[%s]}]}' % (
        json.dumps(shape).encode(), data,
    )  # fmt: skip
    service = ServiceDouble(leaving_out(-5.0, **more))
    service.limits = Limits(max_values=1 << 30)
    return service, body


@each_way_to_leave_out
def test_many_values_that_may_be_left_out_are_decoded_in_many_small_steps(
    more: Any, shape: list[int], values: bytes
) -> None:
    service, body = with_values_left_out(more, shape, values)
    least = len(body) // 1500  # a turn for each 900 bytes, or 700
    with patch("headrace.frontends.wire.time_slicer._SLICE_SECONDS", 0.0):
        assert turns_of_others(service, "/v2/models/echo/infer", body) > least


@pytest.mark.timing
@each_way_to_leave_out
def test_others_are_answered_while_many_values_that_may_be_left_out_are_decoded(
    more: Any, shape: list[int], values: bytes
) -> None:
    service, body = with_values_left_out(more, shape, values)
    assert longest_seconds(service, "/v2/models/echo/infer", body) < 0.015


def longest_seconds(service: ServiceDouble, path: str, body: bytes) -> float:
    """For how long nobody else had a turn, until the request was predicted; the least of some tries."""
    match = Router(http_routes(service)).match("POST", path)
    assert match.handler is not None
    handler = match.handler

    async def answer() -> float:
        service.deadlines.clear()
        longest = 0.0

        async def others() -> None:
            nonlocal longest
            last = time.thread_time()
            while not service.deadlines:
                await asyncio.sleep(0)
                now = time.thread_time()
                longest = max(longest, now - last)
                last = now

        beside = asyncio.create_task(others())
        await asyncio.sleep(0)
        await handler(HttpCall("POST", path, match.parameters, body=body))
        await beside
        return longest

    return min(run(answer()) for _ in range(3))


def test_values_that_are_used_up_are_not_walked_once_more_to_be_given_back() -> None:
    """One step to parse so many values, and one to take them; walking what is left took two more."""
    service, count = ServiceDouble(echo("FP32")), 50 * long_lists.STEP
    service.slicer = slicer = CountingLane()
    values = b"1," * (count - 1) + b"1"
    body = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[%d],"data":[%s]}]}' % (count, values)
    assert call(service, "POST", "/v2/models/echo/infer", body).status == 200
    assert slicer.steps < 3 * count // long_lists.STEP + 50
