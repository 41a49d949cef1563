"""Requests that repeat are recognised for each of the versions between which their model alternates."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from headrace.frontends.oip.request_messages import InferDecoder, InferRequest
from headrace.frontends.tfserving.messages import PredictDecoder
from headrace.model.servable import Signature
from tests.unit.frontends import decoding
from tests.unit.frontends.oip.doubles import LoadedDouble, spec
from tests.unit.frontends.tfserving.doubles import ServiceDouble, message
from tests.unit.frontends.words import infer_request, predict_request, words

TEXTS = [b"ann"], [b"red", b"car"]
KINDS = pytest.mark.parametrize("kind", ["texts", "numbers"])
PROTOCOLS = pytest.mark.parametrize("protocol", ["infer", "predict"])


def numbers() -> LoadedDouble:
    signature = Signature("serving_default", (spec("x", "FP32", 2),), (spec("p", "FP32", 2),))
    return LoadedDouble(signature, lambda tensors: {"p": tensors["x"]}, name="numbers")


def infer_numbers() -> bytes:
    request = InferRequest(model_name="numbers", raw_input_contents=[bytes(8)])
    request.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    return bytes(request.SerializeToString())


def predict_numbers() -> bytes:
    shape = {"dim": [{"size": 1}, {"size": 2}]}
    inputs = {"x": {"dtype": 1, "tensor_shape": shape, "tensor_content": bytes(8)}}
    return bytes(message("PredictRequest", model_spec={"name": "numbers"}, inputs=inputs).SerializeToString())


MESSAGES = {
    ("infer", "texts"): lambda: infer_request(*TEXTS),
    ("infer", "numbers"): infer_numbers,
    ("predict", "texts"): lambda: predict_request(*TEXTS),
    ("predict", "numbers"): predict_numbers,
}


class Alternating:
    """A decoder of requests for a model whose default version the test chooses."""

    def __init__(self, protocol: str, kind: str, versions: int) -> None:
        self.made = words if kind == "texts" else numbers
        self.versions = [self.made() for _ in range(versions)]
        self.service = ServiceDouble(*self.versions)
        is_oip = protocol == "infer"
        self.decoder: Any = InferDecoder(self.service.loaded) if is_oip else PredictDecoder(self.service)  # type: ignore[arg-type]
        self.message = MESSAGES[protocol, kind]()
        self.decode = getattr(decoding, protocol)

    def serves(self, version: LoadedDouble) -> None:
        self.service.versions = {(version.name, 3): version}

    def learns(self, version: LoadedDouble) -> None:
        self.serves(version)
        assert self.decode(self.decoder, self.message).loaded is version

    def recognises(self, version: LoadedDouble) -> bool:
        self.serves(version)
        found = self.decoder.recognise(self.message)
        assert found is None or found[0] is version
        return found is not None


@KINDS
@PROTOCOLS
def test_a_model_that_alternates_between_versions_is_parsed_once_for_each(protocol: str, kind: str) -> None:
    model = Alternating(protocol, kind, 4)
    for version in model.versions:
        assert not model.recognises(version)
        model.learns(version)
    assert all(model.recognises(version) for version in model.versions * 2)


@KINDS
@PROTOCOLS
def test_the_versions_of_a_kind_of_request_are_limited_and_the_newest_stay(protocol: str, kind: str) -> None:
    model = Alternating(protocol, kind, 5)
    for version in model.versions:
        model.learns(version)
    assert [model.recognises(version) for version in model.versions] == [False, True, True, True, True]


@KINDS
@PROTOCOLS
def test_versions_that_were_unloaded_take_no_place(protocol: str, kind: str) -> None:
    model = Alternating(protocol, kind, 4)
    for version in model.versions:
        model.learns(version)
    gone = weakref.ref(model.versions.pop(0))
    del version
    gc.collect()
    assert gone() is None
    model.learns(model.made())
    assert all(model.recognises(version) for version in model.versions)
