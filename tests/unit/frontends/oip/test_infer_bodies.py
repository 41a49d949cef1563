"""The bodies of /infer: JSON and the binary tensor extension."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import pytest

from headrace.base.errors import HeadraceError, InvalidRequest, Unsupported
from headrace.base.tensors import Array
from headrace.batching.request import Answer, BatchOutputs, Timings
from headrace.config import Limits
from headrace.frontends.calls import HttpReply
from headrace.frontends.oip import large_json
from headrace.frontends.oip.infer_bodies import (
    JSON_LENGTH_HEADER,
    JsonInference,
    encode_answer,
)
from headrace.frontends.oip.json_values import InferInput, from_values
from headrace.frontends.wire.request_budget import RequestBudget
from headrace.frontends.wire.time_slicer import TimeSlicer
from headrace.model.servable import Signature
from tests.unit.frontends.decoding import decode_body
from tests.unit.frontends.oip.doubles import LoadedDouble, body, echo, spec
from tests.unit.frontends.turns import Turns


def decode(loaded: LoadedDouble, body: bytes, json_length: bytes | None = None) -> JsonInference:
    return decode_body(loaded, body, json_length)


def binary(datatype: str, shape: list[int], raw: bytes, **more: Any) -> tuple[bytes, bytes]:
    tensor = {"name": "x", "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(raw)}}
    head = json.dumps({"inputs": [tensor], **more}).encode()
    return head + raw, b"%d" % len(head)


def answer_of(**outputs: Array) -> Answer:
    rows = len(next(iter(outputs.values())))
    return Answer(BatchOutputs(outputs), 0, rows, Timings(0.0, rows, 1))


def column(inference: JsonInference) -> bytes:
    (found,) = inference.inputs.columns
    return bytes(memoryview(found).cast("B"))


VALUES = {
    "BOOL": [True, False, True, True],
    "INT8": [-128, 127, 0, 1],
    "INT16": [-32768, 32767, 0, 1],
    "INT32": [-(1 << 31), (1 << 31) - 1, 0, 1],
    "INT64": [-(1 << 63), (1 << 63) - 1, 0, 1],
    "UINT8": [0, 255, 1, 2],
    "UINT16": [0, 65535, 1, 2],
    "UINT32": [0, (1 << 32) - 1, 1, 2],
    "UINT64": [0, (1 << 64) - 1, 1, 2],
    "FP16": [0.5, -2, 65504, 1e-3],
    "FP32": [0.1, -2, 1e30, 1e-30],
    "FP64": [0.1, -2, 1e300, 1e-300],
    "BYTES": ["", "text", "č", "a\0"],
}


@pytest.mark.parametrize("datatype", VALUES)
def test_flat_and_nested_data_are_the_same_and_come_back(datatype: str) -> None:
    loaded, values = echo(datatype, 2), VALUES[datatype]
    flat = decode(loaded, body(datatype, [2, 2], values))
    nested = decode(loaded, body(datatype, [2, 2], [values[:2], values[2:]]))
    dtype = loaded.signatures["serving_default"].inputs[0].dtype
    expected = np.array([one.encode() for one in values] if datatype == "BYTES" else values, dtype).reshape(
        2, 2
    )
    for inference in (flat, nested):
        found = inference.inputs.columns[0]
        array = found if isinstance(found, np.ndarray) else np.frombuffer(found, dtype).reshape(2, 2)
        assert np.array_equal(array, expected)
    reply = encode_answer(loaded, flat, answer_of(y=expected))
    (output,) = json.loads(reply.body)["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("y", datatype, [2, 2])
    returned = [one.encode() for one in output["data"]] if datatype == "BYTES" else output["data"]
    assert np.array_equal(np.array(returned, dtype).reshape(2, 2), expected)


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        ({"outputs": [{"name": "z"}]}, InvalidRequest, "outputs: unknown output 'z'; the model gives 'y'"),
        (
            {"outputs": [{"name": "y"}, {"name": "y"}]},
            InvalidRequest,
            "outputs: output 'y' is asked for twice",
        ),
        (
            {"outputs": [{"name": "y", "parameters": {"classification": 1}}]},
            Unsupported,
            "y: classification is not",
        ),
        (
            {"outputs": [{"name": "y", "parameters": {"binary_data": 1}}]},
            InvalidRequest,
            r"y\.binary_data: expected true or false, got 1; send true",
        ),
        (
            {"parameters": {"binary_data_output": 2}},
            InvalidRequest,
            "^binary_data_output: expected true or false, got 2$",
        ),
        (
            {"parameters": {"signature_name": 1}},
            InvalidRequest,
            "^signature_name: expected text, got 1; put it in quotes$",
        ),
    ],
)
def test_wrong_choices_of_outputs_are_refused(more: Any, error: type[HeadraceError], said: str) -> None:
    with pytest.raises(error, match=said):
        decode(echo("FP32"), body("FP32", [1], [1], **more))


def test_a_binary_request_with_an_id_keeps_its_own() -> None:
    for request_id in ("abc", "xyz"):
        assert decode(echo("FP32"), *binary("FP32", [1], bytes(4), id=request_id)).request_id == request_id


def test_binary_strings_and_json_may_be_mixed() -> None:
    signature = Signature("serving_default", (spec("s", "BYTES"), spec("n", "FP32")), (spec("y", "FP32"),))
    raw = b"\2\0\0\0a\0"
    tensors = [
        {"name": "n", "datatype": "FP32", "shape": [1], "data": [0.5]},
        {"name": "s", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(raw)}},
    ]
    head = json.dumps({"inputs": tensors}).encode()
    inference = decode(LoadedDouble(signature, lambda inputs: {}), head + raw, b"%d" % len(head))
    strings = inference.inputs.columns[0]
    assert isinstance(strings, np.ndarray)
    assert strings.tolist() == [b"a\0"]


def test_the_length_header_of_a_body_without_binary_data_is_accepted() -> None:
    text = body("FP32", [1], [0.5])
    assert column(decode(echo("FP32"), text, b"%d" % len(text))) == np.float32(0.5).tobytes()


@pytest.mark.parametrize(
    "length", [b"", b"-1", b"1.5", b"99999999999999999999", b"1000", "²".encode("latin-1")]
)
def test_a_wrong_length_header_is_refused(length: bytes) -> None:
    with pytest.raises(InvalidRequest, match="Inference-Header-Content-Length: expected at most the body's"):
        decode(echo("FP32"), body("FP32", [1], [0.5]), length)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda text, length: (text[:-1], length),
            "x: expected binary_data_size from 0 to 3, the bytes left in the body, got 4; set it to",
        ),
        (lambda text, length: (text + b"z", length), "body: 1 bytes follow the last input"),
        (lambda text, length: (text, None), "body: JSON is malformed"),
        (
            lambda text, length: (text.replace(b"size", b"misc"), length),
            "body: 4 bytes follow the last input",
        ),
        (
            lambda text, length: (text.replace(b"[1]", b"[2]"), length),
            r"x: expected 8 bytes for FP32 \[2\], got 4",
        ),
        (
            lambda text, length: (text.replace(b": 4", b":-4"), length),
            "x: expected binary_data_size from 0 to 4, the bytes left in the body, got -4; ",
        ),
        (lambda text, length: (text.replace(b": 4", b':""'), None), "body: "),
        (
            lambda text, length: (text.replace(b'size": 4', b'size":""'), length),
            "^x.binary_data_size: expected a whole number, got ''$",
        ),
    ],
)
def test_wrong_binary_data_is_refused(change: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        decode(echo("FP32"), *change(*binary("FP32", [1], b"\0\0\0\xbf")))


def test_data_and_binary_data_together_are_refused() -> None:
    text = body("FP32", [1], [1]).replace(b'"data"', b'"parameters":{"binary_data_size":0},"data"')
    with pytest.raises(InvalidRequest, match="x: given both as data and as binary data"):
        decode(echo("FP32"), text)


@pytest.mark.parametrize("name", ["content_type", "sequence_id"])
def test_what_changes_the_meaning_of_all_data_is_refused(name: str) -> None:
    with pytest.raises(Unsupported, match=r"parameters: .* not supported"):
        decode(echo("FP32"), body("FP32", [1], [1], parameters={name: "base64"}))


def test_a_column_of_a_data_frame_is_one_value_a_row() -> None:
    """As MLServer's PandasCodec sends it: ``[rows, 1]``."""
    assert column(decode(echo("FP32"), body("FP32", [2, 1], [1, 2]))) == np.float32([1, 2]).tobytes()
    assert column(decode(echo("FP32"), body("FP32", [2, 1], [[1], [2]]))) == np.float32([1, 2]).tobytes()


def test_shared_memory_is_not_supported() -> None:
    text = (
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"parameters":{"shared_memory_region":"r"}}]}'
    )
    with pytest.raises(Unsupported, match="x: shared memory is not supported"):
        decode(echo("FP32"), text)


def test_a_timeout_is_a_deadline() -> None:
    before = time.monotonic()
    text = body("FP32", [1], [1], parameters={"timeout": 2_000_000, "priority": 3, "other": {"a": [1]}})
    assert before + 2 <= decode(echo("FP32"), text).deadline <= time.monotonic() + 2


@pytest.mark.parametrize(
    ("more", "binary_names"),
    [
        ({}, []),
        ({"parameters": {"binary_data_output": True}}, ["y", "s"]),
        ({"outputs": [{"name": "s", "parameters": {"binary_data": True}}, {"name": "y"}]}, ["s"]),
        (
            {
                "parameters": {"binary_data_output": True},
                "outputs": [{"name": "s", "parameters": {"binary_data": False}}, {"name": "y"}],
            },
            ["y"],
        ),
        ({"outputs": [{"name": "y", "parameters": {"binary_data": True}}]}, ["y"]),
    ],
)
def test_each_output_is_written_as_it_was_asked_for(more: Any, binary_names: list[str]) -> None:
    signature = Signature("serving_default", (spec("x", "FP32"),), (spec("y", "FP32", 2), spec("s", "BYTES")))
    loaded = LoadedDouble(signature, lambda inputs: {})
    inference = decode(loaded, body("FP32", [1], [1], id="abc", **more))
    answer = answer_of(y=np.float32([[0.5, 2]]), s=np.array([b"ab"], object))
    reply = encode_answer(loaded, inference, answer)
    headers = dict(reply.headers)
    length = int(headers.get(JSON_LENGTH_HEADER, len(reply.body)))
    head, raw = json.loads(reply.body[:length]), reply.body[length:]
    assert (head["model_name"], head["model_version"], head["id"]) == ("ctr", "3", "abc")
    raws = {"y": np.float32([0.5, 2]).tobytes(), "s": b"\2\0\0\0ab"}
    assert raw == b"".join(raws[one["name"]] for one in head["outputs"] if one["name"] in binary_names)
    for output in head["outputs"]:
        is_binary = output["name"] in binary_names
        assert is_binary != ("data" in output)
        assert output.get("parameters") == (
            {"binary_data_size": len(raws[output["name"]])} if is_binary else None
        )
    assert headers[b"content-type"] == (b"application/octet-stream" if binary_names else b"application/json")


def test_what_json_cannot_say_is_null() -> None:
    loaded = echo("FP32")
    inference = decode(loaded, body("FP32", [3], [1, 2, 3]))
    answer = answer_of(y=np.float32([np.nan, np.inf, 0.5]))
    assert msgspec.json.decode(encode_answer(loaded, inference, answer).body)["outputs"][0]["data"] == [
        None,
        None,
        0.5,
    ]


def test_strings_that_are_no_text_are_refused_as_json_with_the_way_out() -> None:
    loaded = echo("BYTES")
    inference = decode(loaded, body("BYTES", [1], ["a"]))
    with pytest.raises(InvalidRequest, match=r"y: the output is not UTF-8 text.*binary_data"):
        encode_answer(loaded, inference, answer_of(y=np.array([b"\xff"], object)))


def test_names_are_checked_before_values_are_decoded() -> None:
    def many(*names: str) -> bytes:
        return json.dumps({"inputs": [tensor | {"name": name} for name in names]}).encode()

    tensor = {"datatype": "FP32", "shape": [1], "data": ["no number"]}
    with pytest.raises(InvalidRequest, match="unknown input '0'"):
        decode_body(echo("FP32"), many(*map(str, range(20_000)), "x", "x"), None)
    with pytest.raises(InvalidRequest, match="input 'x' is given twice"):
        decode_body(echo("FP32"), many("x", "x"), None)
    with pytest.raises(InvalidRequest, match="unknown input 'z'"):
        decode_body(echo("FP32"), many("x", "z"), None)


def test_numbers_that_are_slow_to_parse_are_numbers() -> None:
    body = b'{"inputs":[{"name":"x","datatype":"FP64","shape":[9],"data":[' + b"1e-320," * 8 + b"2]}]}"
    (column,) = decode_body(echo("FP64"), body, None).inputs.columns
    assert np.frombuffer(column).tolist() == [1e-320] * 8 + [2]


def _in_slices(loaded: LoadedDouble, inference: JsonInference, answer: Answer) -> tuple[HttpReply, int]:
    """A large answer, and how often others had their turn while it was written."""
    others = Turns()

    async def write() -> HttpReply:
        async with others, TimeSlicer() as slicer:
            return await large_json.encode_answer(loaded, inference, answer, slicer)

    with patch("headrace.frontends.wire.time_slicer._SLICE_SECONDS", 0.0):
        return asyncio.run(write()), others.count


@pytest.mark.parametrize("texts", [[b"w" * 40_000] * 50, [b"w" * 2_000_000], [b"a", b"b" * 2_000_000, b""]])
@pytest.mark.parametrize("binary_names", [["s", "y"], ["s"], ["y"], []])
def test_a_large_answer_is_written_in_slices_as_it_would_be_at_once(
    texts: list[bytes], binary_names: list[str]
) -> None:
    signature = Signature("serving_default", (spec("x", "FP32"),), (spec("y", "FP32", 2), spec("s", "BYTES")))
    loaded = LoadedDouble(signature, lambda inputs: {})
    outputs = [{"name": name, "parameters": {"binary_data": name in binary_names}} for name in ("y", "s")]
    inference = decode(loaded, body("FP32", [1], [1], outputs=outputs))
    answer = answer_of(y=np.ones((len(texts), 2), np.float32), s=np.array(texts, object))
    at_once = encode_answer(loaded, inference, answer)
    assert large_json.needs_slices(answer, inference)
    reply, turns = _in_slices(loaded, inference, answer)
    assert (reply.body, reply.headers) == (at_once.body, at_once.headers)
    assert turns > 20


def test_long_texts_are_decoded_in_steps_by_their_characters() -> None:
    """2,000 texts of 30,000 characters stopped all others for 90 ms."""
    given, values = InferInput("x", "BYTES", [40]), ["é" * 50_000 for _ in range(40)]
    steps, found = 0, None
    decoding = from_values(given, spec("x", "BYTES"), list[Any](values), RequestBudget(Limits()))
    while found is None:
        try:
            next(decoding)
            steps += 1
        except StopIteration as end:
            found = end.value
    assert found.values == [text.encode() for text in values]
    assert steps >= len(values) // 2
