"""For any bytes: the Open Inference Protocol's codecs decode or refuse, the fast way like the slow way."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from headrace.base.errors import HeadraceError
from headrace.base.tensors import BY_OIP, DATATYPES, STRING, Array
from headrace.batching.request import Answer, BatchOutputs, Timings
from headrace.frontends.oip.infer_bodies import JsonInference, encode_answer
from headrace.frontends.oip.repeated_bodies import RepeatedBodies
from headrace.frontends.oip.request_messages import InferDecoder, Inference, InferRequest
from headrace.frontends.oip.response_messages import InferResponse
from headrace.frontends.wire import json_output, json_text, long_lists
from headrace.frontends.wire.tensors import WireTensor, as_array
from headrace.frontends.wire.texts import join_strings, splitting
from headrace.frontends.wire.time_slicer import run
from tests.examples import examples
from tests.unit.frontends.decoding import decode_body, infer
from tests.unit.frontends.oip.doubles import LoadedDouble, ServiceDouble, ctr, echo
from tests.unit.frontends.oip.test_rest import call
from tests.unit.frontends.words import infer_request, plain, words


def request(rows: int, request_id: str = "", fill: int = 0) -> bytes:
    message = InferRequest(model_name="ctr", id=request_id)
    for name, datatype, width in (("cat", "INT32", 26), ("dense", "FP32", 13)):
        message.inputs.add(name=name, datatype=datatype, shape=[rows, width])
        message.raw_input_contents.append(bytes([fill]) * rows * width * 4)
    message.outputs.add(name="p")
    return bytes(message.SerializeToString())


def binary_body(fill: int = 0) -> tuple[bytes, bytes]:
    sizes = {"cat": ("INT32", 26, 104), "dense": ("FP32", 13, 52)}
    inputs = [
        {"name": name, "datatype": datatype, "shape": [1, width], "parameters": {"binary_data_size": size}}
        for name, (datatype, width, size) in sizes.items()
    ]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    return head + bytes([fill]) * 156, b"%d" % len(head)


JSON_BODY = json.dumps(
    {
        "id": "a",
        "inputs": [
            {"name": "cat", "datatype": "INT32", "shape": [1, 26], "data": [list(range(26))]},
            {"name": "dense", "datatype": "FP32", "shape": [1, 13], "data": [0.5] * 13},
        ],
        "outputs": [{"name": "p", "parameters": {"binary_data": False}}],
    }
).encode()

Seen = tuple[Any, ...]


def outcome(decode: Callable[[], Inference | JsonInference]) -> Seen:
    """What a decoder makes of something, comparable; errors by class and text."""
    try:
        found = decode()
    except HeadraceError as error:
        return type(error), error.message
    columns = tuple(map(plain, found.inputs.columns))
    which = found.writer._names if isinstance(found, Inference) else found.outputs
    return found.inputs.layout.shapes, columns, found.inputs.rows, which, found.request_id


@st.composite
def mutations(draw: st.DrawFn, size: int) -> Callable[[bytes], bytes]:
    """Flips, cuts, doublings and insertions anywhere."""
    edits = draw(
        st.lists(
            st.tuples(
                st.integers(0, size), st.sampled_from(["flip", "cut", "put", "twice"]), st.binary(max_size=6)
            ),
            min_size=1,
            max_size=3,
        )
    )

    def apply(data: bytes) -> bytes:
        changed = bytearray(data)
        for position, how, content in edits:
            if how == "flip":
                for offset, byte in enumerate(content):
                    if position + offset < len(changed):
                        changed[position + offset] ^= byte
            elif how == "cut":
                del changed[position : position + len(content)]
            elif how == "put":
                changed[position:position] = content
            else:
                changed += changed[position:]
        return bytes(changed)

    return apply


@pytest.mark.rest
@pytest.mark.parametrize("request_id", ["", "abc"])
@settings(max_examples=examples(1500))
@given(mutate=mutations(340), fill=st.integers(0, 255))
def test_a_mutated_message_gives_the_same_the_fast_way_and_the_slow_way(
    request_id: str, mutate: Callable[[bytes], bytes], fill: int
) -> None:
    version = ctr()
    fast = InferDecoder(ServiceDouble(version).loaded)
    infer(fast, request(1, request_id))
    data = mutate(request(1, request_id, fill))
    slow = InferDecoder(ServiceDouble(version).loaded)
    expected = outcome(lambda: infer(slow, data))
    assert outcome(lambda: infer(fast, data)) == expected
    assert outcome(lambda: infer(fast, data)) == expected  # when it has been learnt, if it can be


@pytest.mark.rest
@pytest.mark.parametrize("request_id", ["", "abc"])
@settings(max_examples=examples(1000))
@given(mutate=mutations(180), user=st.binary(max_size=20), word=st.binary(max_size=20))
def test_a_mutated_message_of_texts_gives_the_same_the_fast_way_and_the_slow_way(
    request_id: str, mutate: Callable[[bytes], bytes], user: bytes, word: bytes
) -> None:
    version = words()
    fast = InferDecoder(ServiceDouble(version).loaded)
    infer(fast, infer_request([b"a user's name"], [b"long", b"words", b"and", b"more"], request_id))
    data = mutate(infer_request([user], [b"short", word, b"", b"ones"], request_id))
    slow = InferDecoder(ServiceDouble(version).loaded)
    expected = outcome(lambda: infer(slow, data))
    assert outcome(lambda: infer(fast, data)) == expected
    assert outcome(lambda: infer(fast, data)) == expected  # when it has been learnt, if it can be


def test_any_single_bit_may_flip() -> None:
    for original in (request(1, fill=7), request(1, "abc", fill=7)):
        version = ctr()
        for position in range(len(original)):
            data = bytearray(original)
            data[position] ^= 1 << position % 8
            fast = InferDecoder(ServiceDouble(version).loaded)
            infer(fast, original)
            slow = InferDecoder(ServiceDouble(version).loaded)
            expected = outcome(lambda decoder=slow, data=bytes(data): infer(decoder, data))
            assert outcome(lambda decoder=fast, data=bytes(data): infer(decoder, data)) == expected


@pytest.mark.rest
@settings(max_examples=examples(1000))
@given(mutate=mutations(380), fill=st.integers(0, 255), shift=st.integers(-2, 2))
def test_a_mutated_binary_body_gives_the_same_the_fast_way_and_the_slow_way(
    mutate: Callable[[bytes], bytes], fill: int, shift: int
) -> None:
    learning, length = binary_body()
    loaded, fast = ctr(), RepeatedBodies()
    decode_body(loaded, learning, length, fast)
    data = mutate(binary_body(fill)[0])
    length = b"%d" % (int(length) + shift)

    def seen(repeated: RepeatedBodies) -> Seen:
        return outcome(lambda: decode_body(loaded, data, length, repeated))

    expected = seen(RepeatedBodies())
    assert seen(fast) == expected
    assert seen(fast) == expected


@pytest.mark.rest
@settings(max_examples=examples(1000))
@given(
    data=st.binary(max_size=200) | mutations(400).map(lambda mutate: mutate(JSON_BODY)),
    length=st.none() | st.binary(),
)
@example(data=JSON_BODY, length=None)
def test_any_body_decodes_or_is_refused(data: bytes, length: bytes | None) -> None:
    outcome(lambda: decode_body(ctr(), data, length))


@settings(max_examples=examples(500))
@given(data=st.binary(max_size=200))
def test_any_message_decodes_or_is_refused(data: bytes) -> None:
    outcome(lambda: infer(InferDecoder(ServiceDouble(ctr()).loaded), data))


@pytest.mark.rest
@settings(max_examples=examples(500))
@given(
    datatype=st.sampled_from([*BY_OIP, "BF16", "", "FP8"]),
    shape=st.lists(st.integers(-2, 4) | st.integers(), max_size=5).map(tuple),
    values=st.binary(max_size=64),
)
def test_any_tensor_is_viewed_or_refused(datatype: str, shape: tuple[int, ...], values: bytes) -> None:
    try:
        array = as_array(WireTensor("x", datatype, shape, values))
    except HeadraceError:
        return
    assert array.shape == shape


@given(st.lists(st.binary(max_size=300)))
def test_strings_survive_their_raw_form(strings: list[bytes]) -> None:
    assert run(splitting("x", join_strings(strings), len(strings))).tolist() == strings


def arrays(datatype: str) -> st.SearchStrategy[Array]:
    dtype = BY_OIP[datatype].dtype
    shapes = st_numpy.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=4)
    if dtype != STRING:
        return st_numpy.arrays(dtype, shapes)

    def strings(shape: tuple[int, ...]) -> st.SearchStrategy[Array]:
        elements = st.lists(
            st.text().map(str.encode), min_size=int(np.prod(shape)), max_size=int(np.prod(shape))
        )
        return elements.map(lambda values: _objects(values).reshape(shape))

    return shapes.flatmap(strings)


def _objects(values: list[bytes]) -> Array:
    made: Array = np.empty(len(values), object)
    made[:] = values
    return made


def answer_of(array: Array) -> Answer:
    return Answer(BatchOutputs({"y": array}), 0, len(array), Timings(0.0, len(array), 1))


def raw(array: Array) -> bytes:
    return join_strings(array.ravel().tolist()) if array.dtype == STRING else array.tobytes()


@pytest.mark.parametrize("datatype", [one.oip for one in DATATYPES])
@settings(max_examples=examples(40))
@given(data=st.data())
def test_every_datatype_and_shape_comes_back_over_grpc(datatype: str, data: st.DataObject) -> None:
    array = data.draw(arrays(datatype))
    service = ServiceDouble(echo(datatype, *[None] * (array.ndim - 1)))
    message = InferRequest(model_name="echo", raw_input_contents=[raw(array)])
    message.inputs.add(name="x", datatype=datatype, shape=array.shape)
    inference = infer(InferDecoder(service.loaded), message.SerializeToString())
    response = InferResponse.FromString(inference.writer.write(answer_of(_column(inference, array))))
    assert list(response.outputs[0].shape) == list(array.shape)
    assert list(response.raw_output_contents) == [raw(array)]


@pytest.mark.parametrize("datatype", [one.oip for one in DATATYPES])
@settings(max_examples=examples(40))
@given(data=st.data(), nested=st.booleans())
def test_every_datatype_and_shape_comes_back_over_rest(
    datatype: str, data: st.DataObject, nested: bool
) -> None:
    array = data.draw(arrays(datatype))
    if array.dtype.kind == "f":
        array = np.nan_to_num(array, nan=0.5, posinf=1, neginf=-1)
    loaded = echo(datatype, *[None] * (array.ndim - 1))
    text = (
        np.array([one.decode() for one in array.flat] + [None], object)[:-1]
        if array.dtype == STRING
        else array
    )
    values = (text.reshape(array.shape) if nested else text.ravel()).tolist()
    tensor = {"name": "x", "datatype": datatype, "shape": array.shape, "data": values}
    body = json.dumps({"inputs": [tensor]}).encode()
    inference = decode_body(loaded, body, None)
    reply = encode_answer(loaded, inference, answer_of(_column(inference, array)))
    (output,) = json.loads(reply.body)["outputs"]
    assert output["shape"] == list(array.shape)
    assert output["data"] == text.ravel().tolist()


SCALARS = st.one_of(st.integers(-3, 300), st.floats(), st.booleans(), st.text(max_size=2))
NESTED = st.recursive(SCALARS | st.none(), lambda inner: st.lists(inner, max_size=3), max_leaves=6)
SHAPES: tuple[tuple[int | None, ...], ...] = ((), (2,), (1,), (None, 2))
MODELS = [echo(one, *shape) for one in ("FP32", "INT32", "BOOL", "BYTES") for shape in SHAPES]


def leaving_out(datatype: str, *shape: int, absent: Any = None, shorter: bool = False) -> LoadedDouble:
    """A model in whose one input values may be left out."""
    model = echo(datatype, *shape)
    (signature,) = model.signatures.values()
    inputs = tuple(replace(one, absent=absent, shorter=shorter) for one in signature.inputs)
    model.signatures = {signature.name: replace(signature, inputs=inputs, _layouts={})}
    return model


LEFT_OUT = [
    leaving_out("FP32", absent=-5.0),
    leaving_out("INT32", 1, absent=-1),
    leaving_out("FP32", 3, absent=-5.0, shorter=True),
    leaving_out("FP32", 2, 2, absent=-5.0),
    leaving_out("BYTES", 2, absent="", shorter=True),
]
X = {"name": "x", "datatype": "FP32"}
ROWS = st.lists(SCALARS | st.none() | st.lists(SCALARS | st.none(), max_size=3), max_size=3)
INPUT = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["x", "x", "x", "z"]),
        "datatype": st.sampled_from(["FP32", "INT32", "BOOL", "BYTES", "FP128"]),
        "shape": st.lists(st.integers(0, 3), max_size=3),
    },
    optional={
        "data": NESTED
        | st.lists(SCALARS | st.none() | st.lists(SCALARS | st.none(), max_size=3), max_size=3),
        "parameters": st.just({"binary_data_size": 4}),
    },
)


@settings(max_examples=examples(300))
@given(
    st.sampled_from(MODELS) | st.sampled_from(LEFT_OUT),
    st.fixed_dictionaries({"inputs": st.lists(INPUT, max_size=2)}, optional={"id": st.just("1")}),
    st.integers(1, 5),
)
@example(MODELS[1], {"inputs": [X | {"shape": [2, 2], "data": [1, 2, 3, 4.5]}]}, 1)
@example(MODELS[1], {"inputs": [X | {"shape": [2, 2], "data": [[1, 2], [3, 4]]}]}, 1)
@example(LEFT_OUT[0], {"inputs": [X | {"shape": [3], "data": [1.5, None, 2]}]}, 2)
@example(LEFT_OUT[0], {"inputs": [X | {"shape": [3], "data": [math.nan, 1.5, 2]}]}, 2)
@example(LEFT_OUT[1], {"inputs": [X | {"datatype": "INT32", "shape": [3], "data": [1, None, [2]]}]}, 1)
@example(LEFT_OUT[2], {"inputs": [X | {"shape": [3, 3], "data": [None, 1.5, [1, None]]}]}, 2)
@example(LEFT_OUT[2], {"inputs": [X | {"shape": [3], "data": [[1], [], [1, 2, 3]]}]}, 2)
@example(LEFT_OUT[3], {"inputs": [X | {"shape": [2, 2, 2], "data": [None, [[1, None], None]]}]}, 1)
@example(MODELS[0], {"inputs": [X | {"shape": [3], "data": [1, None, "a"]}]}, 1)
@example(MODELS[0], {"inputs": [X | {"shape": [3], "data": [1, "a", None]}]}, 2)
@example(MODELS[1], {"inputs": [X | {"shape": [2, 2], "data": [[1, 2], [3, "a"]]}]}, 1)
@example(MODELS[12], {"inputs": [X | {"datatype": "BYTES", "shape": [3], "data": ["a", "é", ""]}]}, 1)
def test_a_body_means_the_same_in_slices(model: Any, body: Any, step: int) -> None:
    text, path = json.dumps(body).encode(), f"/v2/models/{model.name}/infer"
    sliced = ServiceDouble(model)
    sliced.at_once_bytes = 0

    def answer(service: ServiceDouble) -> Any:
        try:
            return call(service, "POST", path, text).body
        except HeadraceError as error:
            return type(error), said(error)

    with (
        patch.multiple(long_lists, STEP=step),
        patch.multiple(json_output, PRINTED_AT_ONCE=0),
        patch.multiple(json_text, _PIECE_BYTES=step, _PART_BYTES=step, _PART_MARKS=step),
    ):
        in_slices = answer(sliced)
    assert in_slices == answer(ServiceDouble(model))


def said(error: HeadraceError) -> str:
    """An error's text: of what is no JSON at all only that, for parts say other places of it."""
    text = error.message
    return "body: no JSON" if text.startswith("body: ") and "JSON" in text else text


def _column(inference: Inference | JsonInference, like: Array) -> Array:
    (column,) = inference.inputs.columns
    return column if isinstance(column, np.ndarray) else np.frombuffer(column, like.dtype).reshape(like.shape)
