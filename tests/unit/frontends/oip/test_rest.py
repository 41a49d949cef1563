"""The routes under /v2."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.errors import FailedPrecondition, InvalidRequest, NotFound, Unsupported
from headrace.frontends.calls import HttpCall, HttpReply
from headrace.frontends.oip.rest import http_routes
from headrace.frontends.transport.routing import Router
from tests.unit.frontends.oip.doubles import ServiceDouble, ctr, echo, run


def call(service: ServiceDouble, method: str, path: str, body: bytes = b"") -> HttpReply:
    match = Router(http_routes(service)).match(method, path)
    assert match.handler is not None, f"no route for {method} {path}"
    reply = run(match.handler(HttpCall(method, path, match.parameters, body=body)))
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


@pytest.mark.parametrize("body", [b"x", b"[]", b'{"ready":1}', b'{"a":' + b"[" * 100_000])
def test_a_wrong_index_request_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"body: .*; leave it empty or send an object"):
        call(ServiceDouble(ctr()), "POST", "/v2/repository/index", body)


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
