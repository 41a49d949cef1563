"""For any bytes: the Open Inference Protocol's codecs decode or refuse, the fast way like the slow way."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from headrace.batching.request import Answer, BatchOutputs, Timings
from headrace.errors import HeadraceError
from headrace.frontends.oip.infer_json import JsonInference, decode_body, encode_answer
from headrace.frontends.oip.messages import InferDecoder, Inference, InferRequest, InferResponse
from headrace.frontends.oip.tensors import WireTensor, as_array, join_strings, split_strings
from headrace.tensors import BY_OIP, DATATYPES, STRING, Array
from tests.unit.frontends.oip.doubles import LoadedDouble, ServiceDouble, ctr, echo


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
    columns = tuple(
        (column.tolist() if isinstance(column, np.ndarray) else bytes(column))
        for column in found.inputs.columns
    )
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


@pytest.mark.parametrize("request_id", ["", "abc"])
@settings(max_examples=1500)
@given(mutate=mutations(340), fill=st.integers(0, 255))
def test_a_mutated_message_gives_the_same_the_fast_way_and_the_slow_way(
    request_id: str, mutate: Callable[[bytes], bytes], fill: int
) -> None:
    version = ctr()
    fast = InferDecoder(ServiceDouble(version).loaded)
    fast.decode(request(1, request_id))
    data = mutate(request(1, request_id, fill))
    slow = InferDecoder(ServiceDouble(version).loaded)
    expected = outcome(lambda: slow.decode(data))
    assert outcome(lambda: fast.decode(data)) == expected
    assert outcome(lambda: fast.decode(data)) == expected  # when it has been learnt, if it can be


def test_any_single_bit_may_flip() -> None:
    for original in (request(1, fill=7), request(1, "abc", fill=7)):
        version = ctr()
        for position in range(len(original)):
            data = bytearray(original)
            data[position] ^= 1 << position % 8
            fast = InferDecoder(ServiceDouble(version).loaded)
            fast.decode(original)
            slow = InferDecoder(ServiceDouble(version).loaded)
            expected = outcome(lambda decoder=slow, data=bytes(data): decoder.decode(data))
            assert outcome(lambda decoder=fast, data=bytes(data): decoder.decode(data)) == expected


@settings(max_examples=1000)
@given(mutate=mutations(380), fill=st.integers(0, 255), shift=st.integers(-2, 2))
def test_a_mutated_binary_body_gives_the_same_the_fast_way_and_the_slow_way(
    mutate: Callable[[bytes], bytes], fill: int, shift: int
) -> None:
    learning, length = binary_body()
    fast, slow = ctr(), ctr()
    decode_body(fast, learning, length, max_depth=64)
    data = mutate(binary_body(fill)[0])
    length = b"%d" % (int(length) + shift)

    def seen(loaded: LoadedDouble) -> Seen:
        return outcome(lambda: decode_body(loaded, data, length, max_depth=64))

    expected = seen(slow)
    assert seen(fast) == expected
    assert seen(fast) == expected


@settings(max_examples=1000)
@given(
    data=st.binary(max_size=200) | mutations(400).map(lambda mutate: mutate(JSON_BODY)),
    length=st.none() | st.binary(),
)
@example(data=JSON_BODY, length=None)
def test_any_body_decodes_or_is_refused(data: bytes, length: bytes | None) -> None:
    outcome(lambda: decode_body(ctr(), data, length, max_depth=64))


@settings(max_examples=500)
@given(data=st.binary(max_size=200))
def test_any_message_decodes_or_is_refused(data: bytes) -> None:
    outcome(lambda: InferDecoder(ServiceDouble(ctr()).loaded).decode(data))


@settings(max_examples=500)
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
    assert split_strings(join_strings(strings), "x") == strings


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
@settings(max_examples=40)
@given(data=st.data())
def test_every_datatype_and_shape_comes_back_over_grpc(datatype: str, data: st.DataObject) -> None:
    array = data.draw(arrays(datatype))
    service = ServiceDouble(echo(datatype, *[None] * (array.ndim - 1)))
    message = InferRequest(model_name="echo", raw_input_contents=[raw(array)])
    message.inputs.add(name="x", datatype=datatype, shape=array.shape)
    inference = InferDecoder(service.loaded).decode(message.SerializeToString())
    response = InferResponse.FromString(inference.writer.write(answer_of(_column(inference, array))))
    assert list(response.outputs[0].shape) == list(array.shape)
    assert list(response.raw_output_contents) == [raw(array)]


@pytest.mark.parametrize("datatype", [one.oip for one in DATATYPES])
@settings(max_examples=40)
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
    inference = decode_body(loaded, body, None, max_depth=64)
    reply = encode_answer(loaded, inference, answer_of(_column(inference, array)))
    (output,) = json.loads(reply.body)["outputs"]
    assert output["shape"] == list(array.shape)
    assert output["data"] == text.ravel().tolist()


def _column(inference: Inference | JsonInference, like: Array) -> Array:
    (column,) = inference.inputs.columns
    return column if isinstance(column, np.ndarray) else np.frombuffer(column, like.dtype).reshape(like.shape)
