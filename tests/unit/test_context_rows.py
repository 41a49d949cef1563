"""One row of the context stands for all rows of a request, whichever way it comes."""

from __future__ import annotations

import json
import struct
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from headrace.base.errors import InvalidRequest, NotFound, TooLarge
from headrace.base.tensors import STRING
from headrace.config import Limits, ModelConfig
from headrace.frontends.oip.repeated_bodies import RepeatedBodies
from headrace.frontends.oip.request_messages import InferDecoder, InferRequest
from headrace.frontends.service import Service
from headrace.frontends.tfserving.messages import PredictDecoder, PredictRequest
from headrace.model.servable import DEFAULT_SIGNATURE, CheckedInputs, Expanded, Signature, TensorSpec
from headrace.serving.loaded_version import LoadedVersion
from tests.unit.frontends.decoding import decode_body, infer, predict

_FLOAT = np.dtype(np.float32)
OUTPUT = (TensorSpec("p", _FLOAT, ()),)
SIGNATURE = Signature(
    DEFAULT_SIGNATURE,
    (
        TensorSpec("user", np.dtype(np.uint32), (2,), context=True),
        TensorSpec("page", STRING, (), context=True),
        TensorSpec("ad", _FLOAT, (1,)),
    ),
    OUTPUT,
)
FAST = Signature(
    "fast",
    (TensorSpec("user", np.dtype(np.uint32), (2,), context=True), TensorSpec("ad", _FLOAT, (1,))),
    OUTPUT,
)


class _Version(SimpleNamespace):
    """Weakly referable, as a LoadedVersion is."""

    streams = None

    def acquire(self) -> None:
        """It is always loaded."""

    def release(self) -> None:
        """It is always loaded."""


LOADED = cast(
    "LoadedVersion",
    _Version(name="m", version=1, signatures={one.name: one for one in (SIGNATURE, FAST)}, codec_cache={}),
)
USER = np.array([[7, 8]], np.uint32)
ADS = np.array([[1], [2], [3]], np.float32)


def columns(inputs: CheckedInputs) -> list[object]:
    return [
        np.ndarray((inputs.rows, *shape), spec.dtype, column).tolist()
        if spec.dtype != STRING
        else np.asarray(column).tolist()
        for spec, shape, column in zip(inputs.layout.specs, inputs.layout.shapes, inputs.columns, strict=True)
    ]


def assert_spread(inputs: CheckedInputs) -> None:
    assert inputs.rows == 3
    assert columns(inputs) == [[[7, 8]] * 3, [[1.0], [2.0], [3.0]]]


def test_at_the_door_one_row_of_numbers_or_text_becomes_many() -> None:
    checked = SIGNATURE.check({"user": USER, "page": ["home"], "ad": ADS})
    assert checked.rows == 3
    assert columns(checked) == [[[7, 8]] * 3, [b"home"] * 3, [[1.0], [2.0], [3.0]]]


def test_whole_requests_are_taken_as_ever() -> None:
    user = np.repeat(USER, 3, axis=0)
    checked = FAST.check({"user": user, "ad": ADS})
    assert checked.columns[0] is user
    assert_spread(checked)


def test_other_numbers_of_rows_are_refused_with_the_way_out() -> None:
    with pytest.raises(InvalidRequest, match="user: has 2 rows where ad has 3; send one row, or as many"):
        FAST.check({"user": np.repeat(USER, 2, axis=0), "ad": ADS})
    with pytest.raises(InvalidRequest, match="expected at least one row"):
        FAST.check({"user": USER, "ad": ADS[:0]})


def test_a_candidate_never_stands_for_others() -> None:
    pair = Signature("s", (TensorSpec("a", _FLOAT, ()), TensorSpec("b", _FLOAT, ())), OUTPUT)
    with pytest.raises(
        InvalidRequest,
        match=r"^b: has 1 row where a has 2; every input needs the same number; repeat the row of b$",
    ):
        pair.check({"a": [1.0, 2.0], "b": [1.0]})
    with pytest.raises(
        InvalidRequest,
        match=r"^b: has 2 rows where a has 1; every input needs the same number; repeat the row of a$",
    ):
        pair.check({"a": [1.0], "b": [1.0, 2.0]})
    with pytest.raises(
        InvalidRequest, match=r"^b: has 3 rows where a has 2; every input needs the same number$"
    ):
        pair.check({"a": [1.0, 2.0], "b": [1.0, 2.0, 3.0]})


def test_a_small_message_cannot_ask_for_much_memory() -> None:
    wide = Signature(
        "s", (TensorSpec("u", _FLOAT, (None,), context=True), TensorSpec("a", _FLOAT, ())), OUTPUT
    )
    with pytest.raises(TooLarge, match="u: values sent once would take 4294967296 bytes"):
        wide.check({"u": np.zeros((1, 1 << 20), np.float32), "a": np.zeros(1 << 10, np.float32)})


def test_a_text_of_the_context_counts_with_its_length_and_all_inputs_together() -> None:
    text = np.dtype(object)
    inputs = (*(TensorSpec(name, text, (), context=True) for name in "uv"), TensorSpec("a", _FLOAT, ()))
    long = Signature("s", inputs, OUTPUT)
    once = {"u": [b"x" * 1000], "v": [b"y" * 1000], "a": np.zeros(500, np.float32)}
    assert long.check(once, budget=Expanded(1_008_000)).rows == 500
    with pytest.raises(TooLarge, match="v: values sent once would take 1008000 bytes or more for all rows"):
        long.check(once, budget=Expanded(1_007_999))


def _infer_request(signature: str = "fast") -> bytes:
    request = InferRequest(model_name="m")
    request.parameters["signature_name"].string_param = signature
    for name, datatype, array in (("ad", "FP32", ADS), ("user", "UINT32", USER)):
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return bytes(request.SerializeToString())


def test_open_inference_over_grpc_parsed_and_by_template() -> None:
    version = _Version(**vars(LOADED), config=ModelConfig())
    decoder = InferDecoder(lambda name, number: cast("LoadedVersion", version))
    for _ in range(3):
        assert_spread(infer(decoder, _infer_request()).inputs)
    assert decoder.recognise(_infer_request()) is not None


def test_a_signature_that_is_not_there_is_not_found() -> None:
    decoder = InferDecoder(lambda name, number: LOADED)
    with pytest.raises(NotFound, match="signature 'slow' not found"):
        infer(decoder, _infer_request("slow"))
    wrong = InferRequest(model_name="m")
    wrong.parameters["signature_name"].int64_param = 1
    with pytest.raises(InvalidRequest, match="signature_name: expected a name as string_param"):
        infer(decoder, wrong.SerializeToString())


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
def test_open_inference_over_rest(binary: bool) -> None:
    inputs: list[dict[str, object]] = []
    raw = b""
    for name, datatype, array in (("user", "UINT32", USER), ("ad", "FP32", ADS)):
        one: dict[str, object] = {"name": name, "datatype": datatype, "shape": array.shape}
        if binary:
            one["parameters"] = {"binary_data_size": array.nbytes}
            raw += array.tobytes()
        else:
            one["data"] = array.tolist()
        inputs.append(one)
    head = json.dumps({"inputs": inputs, "parameters": {"signature_name": "fast"}}).encode()
    length = b"%d" % len(head) if binary else None
    repeated = RepeatedBodies()
    for _ in range(3):
        assert_spread(decode_body(LOADED, head + raw, length, repeated).inputs)
    bad = json.dumps({"inputs": inputs, "parameters": {"signature_name": 3}}).encode() + raw
    with pytest.raises(InvalidRequest, match="signature_name"):
        decode_body(LOADED, bad, b"%d" % (len(bad) - len(raw)), repeated)


def _predict_request() -> bytes:
    request = PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = "m", "fast"
    for name, number, array in (("user", 22, USER), ("ad", 1, ADS)):
        proto = request.inputs[name]
        proto.dtype = number
        for size in array.shape:
            proto.tensor_shape.dim.add(size=size)
        proto.tensor_content = array.tobytes()
    return bytes(request.SerializeToString(deterministic=True))


def test_tensorflow_serving_over_grpc_parsed_and_by_template() -> None:
    version = _Version(**vars(LOADED), config=ModelConfig())
    service = SimpleNamespace(loaded=lambda name, number, label: version, limits=Limits())
    decoder = PredictDecoder(cast("Service", service))
    for _ in range(3):
        assert_spread(predict(decoder, _predict_request()).inputs)
    assert decoder.recognise(_predict_request()) is not None
    other = _predict_request().replace(USER.tobytes(), struct.pack("<2I", 9, 9))
    assert columns(predict(decoder, other).inputs)[0] == [[9, 9]] * 3
