"""TensorFlow Serving's codecs: any bytes decode or are refused, and the fast ways equal the slow ones."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from headrace.base.errors import HeadraceError, InvalidRequest
from headrace.base.tensors import DATATYPES, STRING, Array
from headrace.batching.request import Answer, BatchOutputs, Timings
from headrace.config import Limits
from headrace.frontends.calls import HttpCall
from headrace.frontends.tfserving import json_bodies, large_json, rest, row_decoder
from headrace.frontends.tfserving.decimals import shortest
from headrace.frontends.tfserving.messages import PredictDecoder, PredictResponse, writer_for
from headrace.frontends.tfserving.row_decoder import RowsDecoder
from headrace.frontends.tfserving.tensor_protos import read_tensor, write_tensor
from headrace.frontends.wire import json_output, json_text, long_lists
from headrace.frontends.wire.json_text import parse_at_once
from headrace.frontends.wire.request_budget import RequestBudget
from headrace.frontends.wire.tensors import as_array
from headrace.frontends.wire.time_slicer import run
from headrace.model.servable import CheckedInputs, Signature
from tests.examples import examples
from tests.unit.frontends.decoding import parsed, predict
from tests.unit.frontends.oip.doubles import LoadedDouble, ctr, echo, spec
from tests.unit.frontends.tfserving.doubles import ServiceDouble, http_bytes, rows_model
from tests.unit.frontends.tfserving.test_predict_grpc import request
from tests.unit.frontends.words import plain, predict_request, words

NUMBERS = [datatype for datatype in DATATYPES if datatype.dtype != STRING]
SHAPES = arrays.array_shapes(max_dims=3, max_side=4)
MESSAGES = [request(rows).SerializeToString() for rows in (1, 2)]


def columns(inputs: CheckedInputs) -> list[bytes]:
    """The inputs' bytes, whatever holds them."""
    return [
        column if isinstance(column, bytes) else np.asarray(column).tobytes() for column in inputs.columns
    ]


def outcome(decode: Any, decoder: PredictDecoder, data: bytes) -> Any:
    """What a request means, comparable; or the error's class and text."""
    try:
        loaded, inputs, writer = decode(decoder, data)
    except HeadraceError as error:
        return type(error), error.message
    return loaded, inputs.layout, columns(inputs), inputs.rows, writer


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from(MESSAGES)))
    for _ in range(draw(st.integers(1, 3))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


@given(mutated())
def test_a_message_means_the_same_with_templates_and_without(data: bytes) -> None:
    service: Any = ServiceDouble(LOADED)
    decoder = PredictDecoder(service)
    for known in MESSAGES:
        predict(decoder, known)
    fast = outcome(predict, decoder, data)
    assert fast == outcome(parsed, PredictDecoder(service), data)
    assert outcome(predict, decoder, data) == fast  # once learnt


LOADED = ctr()
WORDS = words()
LEARNT = predict_request([b"a user's name"], [b"long", b"words", b"and", b"more"])
OF_TEXTS = predict_request([b"another"], [b"", b"short", b"ones", b"x" * 20])


@settings(max_examples=examples(500))
@given(st.data())
def test_a_message_of_texts_means_the_same_with_templates_and_without(data: st.DataObject) -> None:
    changed = bytearray(data.draw(st.sampled_from([LEARNT, OF_TEXTS])))
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    service: Any = ServiceDouble(WORDS)
    decoder = PredictDecoder(service)
    predict(decoder, LEARNT)
    assert decoder.recognise(OF_TEXTS) is not None
    fast = texts_outcome(predict, decoder, bytes(changed))
    assert fast == texts_outcome(parsed, PredictDecoder(service), bytes(changed))
    assert texts_outcome(predict, decoder, bytes(changed)) == fast  # once learnt


def texts_outcome(decode: Any, decoder: PredictDecoder, data: bytes) -> Any:
    try:
        loaded, inputs, writer = decode(decoder, data)
    except HeadraceError as error:
        return type(error), error.message
    return loaded, inputs.layout, list(map(plain, inputs.columns)), inputs.rows, writer


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    outcome(predict, PredictDecoder(ServiceDouble(LOADED)), data)  # type: ignore[arg-type]


@given(st.data(), st.sampled_from(DATATYPES), SHAPES)
def test_tensors_survive_the_way_there_and_back(data: st.DataObject, datatype: Any, shape: Any) -> None:
    if datatype.dtype == STRING:
        array: Array = np.empty(int(np.prod(shape)), STRING)
        array[:] = data.draw(st.lists(st.binary(max_size=3), min_size=array.size, max_size=array.size))
        array = array.reshape(shape)
    else:
        array = data.draw(arrays.arrays(datatype.dtype, shape))
    back = as_array(run(read_tensor(spec("x", datatype.oip), write_tensor(array), RequestBudget(Limits()))))
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


@given(st.data(), st.sampled_from(NUMBERS), SHAPES, st.sampled_from(NUMBERS))
def test_answers_written_raw_read_as_written(data: st.DataObject, one: Any, shape: Any, other: Any) -> None:
    tensors = {
        "a": data.draw(arrays.arrays(one.dtype, shape)), "b": data.draw(arrays.arrays(other.dtype, shape[:1]))
    }  # fmt: skip
    outputs = (spec("a", one.oip, *shape[1:]), spec("b", other.oip))
    loaded: Any = LoadedDouble(Signature("serving_default", (spec("x", "FP32"),), outputs), dict)
    writer = writer_for(loaded, loaded.signatures["serving_default"], ())
    for start, stop in (0, shape[0]), (0, 1):
        answer = Answer(BatchOutputs(tensors), start, stop, Timings(0, 1, 1))
        response = PredictResponse.FromString(writer.write(answer))
        assert response.model_spec.name == loaded.name
        for name, tensor in tensors.items():
            back = as_array(
                run(read_tensor(spec(name, "FP32"), response.outputs[name], RequestBudget(Limits())))
            )
            np.testing.assert_array_equal(back, tensor[start:stop], strict=True)


# ---- JSON ----

SCALARS = st.one_of(
    st.integers(-300, 300),
    st.integers(-(2**65), 2**65),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(max_size=2),
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=6)
NAMED = st.dictionaries(st.sampled_from(["x", "y", "b64"]), VALUES, max_size=2)
BODIES = st.fixed_dictionaries(
    {"instances": st.one_of(st.lists(st.one_of(VALUES, NAMED), max_size=3), VALUES)},
    optional={
        "signature_name": st.sampled_from(["", "serving_default", "none", 1]),
        "other": VALUES,
        "inputs": VALUES,
    },
)
MODELS = [echo(one.oip, *shape) for one in NUMBERS for shape in ((), (2,), (1, 2))]


@given(st.sampled_from(MODELS), BODIES)
@example(MODELS[0], {"instances": [1, 2.5]})
@example(MODELS[1], {"instances": [[1, 2.5], [3, -0.0]]})
@example(MODELS[0], {"instances": [{"x": 1}, {"x": 2}]})
@example(MODELS[0], {"instances": [1e300]})
@example(MODELS[0], {"instances": [10**400]})
def test_a_body_means_the_same_by_type_and_in_general(model: Any, body: Any) -> None:
    compare(model, json.dumps(body).encode())


@given(st.data(), st.sampled_from(MODELS), st.integers(1, 4), st.booleans())
def test_right_bodies_take_the_fast_way(data: st.DataObject, model: Any, rows: int, named: bool) -> None:
    (wanted,) = model.signatures["serving_default"].inputs
    elements = {"allow_nan": False, "allow_infinity": False} if wanted.dtype.kind == "f" else None
    values = data.draw(arrays.arrays(wanted.dtype, (rows, *wanted.shape), elements=elements))
    given_rows = [{"x": row} for row in values.tolist()] if named else values.tolist()
    body = json.dumps({"instances": given_rows}).encode()
    inputs = RowsDecoder(model.signatures["serving_default"]).decode(body)
    assert inputs is not None
    assert inputs.columns == (values.tobytes(),)
    compare(model, body)


@given(st.sampled_from(MODELS), st.binary(max_size=60))
def test_any_body_decodes_or_is_refused(model: Any, data: bytes) -> None:
    compare(model, data)
    compare(model, b'{"instances": [' + data + b"]}")


def compare(model: Any, body: bytes) -> None:
    def meaning(decode: Any) -> Any:
        try:
            signature, inputs, by_row = decode(model, HttpCall("POST", "", {}, body=body), Limits())
        except HeadraceError as error:
            return type(error), error.message
        return signature.name, inputs.layout, columns(inputs), inputs.rows, by_row

    assert meaning(rest.predict_inputs) == meaning(rest.general_predict_inputs)


@given(arrays.arrays(st.sampled_from([np.float16, np.float32]), st.sampled_from([1, 5, 100])))
def test_printed_floats_are_the_same_numbers_and_short(array: Array) -> None:
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(shortest(array).astype(array.dtype), array)
    for number, printed in zip(array, shortest(array).tolist(), strict=True):
        # One digit more at a power of two, where the numbers below are closer than those above.
        assert np.isnan(number) or len(repr(printed)) <= len(repr(float(str(number)))) + 1


@given(st.integers(0, 8), st.integers(0, 8))
def test_depth_is_counted_in_levels(depth: int, limit: int) -> None:
    body = b'{"[{":' * depth + b'"]}"' + b"}" * depth
    if depth > limit:
        with pytest.raises(InvalidRequest, match="deep"):
            parse_at_once(body, limit)
    else:
        parse_at_once(body, limit)


@given(arrays.arrays(np.float64, SHAPES))
def test_printed_json_is_what_the_standard_library_reads(array: Array) -> None:
    back = json.loads(json_bodies.print_predictions({"y": array}, by_row=True))["predictions"]
    np.testing.assert_array_equal(np.array(back), array)


def test_types_are_made_for_any_input_name() -> None:
    signature = Signature(
        "serving_default", (spec("x:0", "FP32"), spec("class", "INT8", 1)), (spec("y", "FP32"),)
    )
    body = msgspec.json.encode({"instances": [{"x:0": 1, "class": [2]}]})
    assert RowsDecoder(signature).decode(body) is not None


def with_input(model: Any, **changes: Any) -> Any:
    """The model with another input than it has, in some respect."""
    signature = model.signatures["serving_default"]
    inputs = tuple(replace(one, **changes) for one in signature.inputs)
    return LoadedDouble(replace(signature, inputs=inputs), model.model, name=model.name)


TWO_INPUTS = rows_model(spec("a", "INT32"), spec("b", "FP32", 2))
LEFT_OUT = [
    with_input(echo("FP32"), absent=0.5),
    with_input(echo("FP32", 2), absent=0.5, shorter=True),
    with_input(echo("BYTES", 2), absent="no"),
    echo("INT32", 1),
]
TEXTS_TOO = [*MODELS, *LEFT_OUT, echo("BYTES"), echo("BYTES", 2), echo("FP32", None, 2), TWO_INPUTS]


@given(st.sampled_from(TEXTS_TOO), BODIES, st.integers(1, 5))
@example(TEXTS_TOO[-4], {"instances": ["é", {"b64": "AAAA"}, {"b64": "AAAAAA=="}]}, 1)
@example(TEXTS_TOO[-4], {"instances": ["é😀 and\n" * 20, 'a"\\\\b' * 20]}, 1)
@example(TEXTS_TOO[-3], {"instances": [["abcdef", "é" * 9], ["c", "defg"]]}, 1)
@example(TEXTS_TOO[-3], {"inputs": [["a", "b"], ["c", "d"]]}, 1)
@example(TEXTS_TOO[-2], {"inputs": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]}, 1)
@example(LEFT_OUT[1], {"instances": [[1, 2], [3], 4, None]}, 1)
@example(LEFT_OUT[1], {"instances": [[None, 2], [3, 1]]}, 1)
@example(LEFT_OUT[0], {"inputs": [1, None, 3]}, 2)
@example(LEFT_OUT[3], {"inputs": [1, 2, 3]}, 2)
@example(TEXTS_TOO[-1], {"instances": [{"a": 1, "b": [2, 0.1]}, {"b": [3, 4], "a": 2}]}, 1)
@example(TEXTS_TOO[-1], {"inputs": {"a": [1, 2], "b": [[2, 0.1], [3, 4]]}}, 1)
def test_a_body_means_the_same_in_slices(model: Any, body: Any, step: int) -> None:
    path, text = f"/v1/models/{model.name}:predict", json.dumps(body).encode()
    sliced = ServiceDouble(model)
    sliced.at_once_bytes = 0

    def answer(service: ServiceDouble) -> Any:
        try:
            return http_bytes(service, "POST", path, text)
        except HeadraceError as error:
            return type(error)

    with (
        patch.multiple(long_lists, STEP=step),
        patch.multiple(json_output, PRINTED_AT_ONCE=step),
        patch.multiple(large_json, _BASE64_STEP=4, _LONG_BYTES=3),
        patch.multiple(row_decoder, _PART_BYTES=step),
        patch.multiple(
            json_text, _PIECE_BYTES=step, _PART_BYTES=step, _PART_MARKS=step, _TEXT_BYTES=12 + step
        ),
    ):
        in_slices = answer(sliced)
    assert in_slices == answer(ServiceDouble(model))
