"""Names of absurd length are refused before anything looks at them, wherever a request has one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.base.errors import InvalidRequest
from headrace.frontends.wire import protos
from headrace.frontends.wire.protobuf_cost import counted, form_of
from headrace.frontends.wire.request_budget import LONGEST_NAME_BYTES, check_name
from tests.unit.frontends.oip import test_rest as oip
from tests.unit.frontends.oip.doubles import ServiceDouble as InferenceDouble
from tests.unit.frontends.oip.doubles import echo
from tests.unit.frontends.tfserving.doubles import ServiceDouble, http

REFUSED = f"expected a name of at most {LONGEST_NAME_BYTES} bytes, got "
ABSURD = "\ue000" * 100_000
INPUT = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}


def test_the_longest_name_is_taken() -> None:
    check_name(LONGEST_NAME_BYTES, "inputs")
    with pytest.raises(InvalidRequest, match=f"^inputs: {REFUSED}{LONGEST_NAME_BYTES + 1}; "):
        check_name(LONGEST_NAME_BYTES + 1, "inputs")


@pytest.mark.parametrize(
    "document",
    [
        {"instances": [1], "signature_name": ABSURD},
        {"inputs": {ABSURD: [1]}},
        {"instances": [{ABSURD: 1}]},
        {"instances": [1], ABSURD: 1},
    ],
)
def test_in_bodies_of_predict(document: Any) -> None:
    with pytest.raises(InvalidRequest, match=REFUSED):
        http(ServiceDouble(echo("FP32")), "POST", "/v1/models/echo:predict", document)


@pytest.mark.parametrize(
    "document",
    [
        {"id": ABSURD, "inputs": [INPUT]},
        {"inputs": [{**INPUT, "name": ABSURD}]},
        {"inputs": [{**INPUT, "datatype": ABSURD}]},
        {"inputs": [{**INPUT, "parameters": {"a": ABSURD}}]},
        {"inputs": [INPUT], "outputs": [{"name": ABSURD}]},
        {"inputs": [INPUT], "parameters": {"signature_name": ABSURD}},
        {"inputs": [INPUT], "parameters": {ABSURD: 1}},
    ],
)
def test_in_bodies_of_infer(document: Any) -> None:
    body = json.dumps(document, ensure_ascii=False).encode()
    with pytest.raises(InvalidRequest, match=REFUSED):
        oip.call(InferenceDouble(echo("FP32")), "POST", "/v2/models/echo/infer", body)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("inference.ModelInferRequest", {"id": ABSURD}),
        ("inference.ModelInferRequest", {"inputs": [{"name": ABSURD}]}),
        ("inference.ModelInferRequest", {"inputs": [{"datatype": ABSURD}]}),
        ("inference.ModelInferRequest", {"parameters": {"signature_name": {"string_param": ABSURD}}}),
        ("tensorflow.serving.PredictRequest", {"model_spec": {"signature_name": ABSURD}}),
        ("tensorflow.serving.PredictRequest", {"inputs": {ABSURD: {}}}),
        ("tensorflow.serving.PredictRequest", {"output_filter": [ABSURD]}),
    ],
)
def test_in_messages(kind: str, fields: dict[str, Any]) -> None:
    message = protos.message(kind)
    with pytest.raises(InvalidRequest, match=REFUSED):
        list(counted(message(**fields).SerializeToString(), form_of(message)))


def test_texts_that_are_values_may_be_long() -> None:
    answer = http(ServiceDouble(echo("BYTES")), "POST", "/v1/models/echo:predict", {"instances": [ABSURD]})
    assert answer == {"predictions": [ABSURD]}
    message = protos.message("tensorflow.serving.PredictRequest")(
        inputs={"x": {"string_val": [ABSURD.encode()]}}
    )
    assert sum(counted(message.SerializeToString(), form_of(type(message))))
