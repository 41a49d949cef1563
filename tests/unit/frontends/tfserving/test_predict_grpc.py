"""Predict's messages, decoded and written; the fast way is the slow way, only faster."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
import weakref
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import HeadraceError, InvalidRequest, NotFound, Overloaded, TooLarge
from headrace.base.tensors import BY_OIP
from headrace.config import Limits
from headrace.frontends.calls import GrpcCall
from headrace.frontends.tfserving.grpc import grpc_methods
from headrace.frontends.tfserving.messages import PredictDecoder
from headrace.frontends.transport.bodies import Bodies
from headrace.frontends.wire import protos
from headrace.model.servable import Signature, TensorSpec
from tests.unit.frontends.decoding import parsed, predict
from tests.unit.frontends.oip.doubles import LoadedDouble, ctr, echo, spec
from tests.unit.frontends.tfserving.doubles import ServiceDouble, call, message, rows_model
from tests.unit.frontends.turns import Turns

DTYPES = {"FP32": 1, "FP64": 2, "INT32": 3, "UINT8": 4, "INT16": 5, "INT8": 6, "BYTES": 7, "INT64": 9}
DTYPES |= {"BOOL": 10, "UINT16": 17, "FP16": 19, "UINT32": 22, "UINT64": 23}


def tensor(dtype: int, shape: Any, **values: Any) -> Any:
    return protos.message("tensorflow.TensorProto")(
        dtype=dtype, tensor_shape={"dim": [{"size": size} for size in shape]}, **values
    )


def request(rows: int = 1, seed: int = 0, **fields: Any) -> Any:
    random = np.random.default_rng(seed)
    cat = random.integers(0, 1000, (rows, 26), np.int32)
    dense = random.random((rows, 13), np.float32)
    inputs = {
        "cat": tensor(3, cat.shape, tensor_content=cat.tobytes()),
        "dense": tensor(1, dense.shape, tensor_content=dense.tobytes()),
    }
    return message(
        "PredictRequest", model_spec={"name": "ctr", **fields.pop("model_spec", {})}, inputs=inputs, **fields
    )


def predict_x(value: Any, model: Any) -> Any:
    asked = message("PredictRequest", model_spec={"name": model.name}, inputs={"x": value})
    return call(ServiceDouble(model), "Predict", asked).outputs["y"]


def test_an_answer_names_the_version_and_signature_and_has_values_one_by_one() -> None:
    response = call(ServiceDouble(ctr()), "Predict", request(rows=2))
    assert (response.model_spec.name, response.model_spec.version.value) == ("ctr", 3)
    assert response.model_spec.signature_name == "serving_default"
    found = response.outputs["p"]
    assert [one.size for one in found.tensor_shape.dim] == [2, 1]
    raw = [
        np.frombuffer(request(2).inputs[name].tensor_content, kind)
        for name, kind in (("cat", "i4"), ("dense", "f4"))
    ]
    expected = raw[0].reshape(2, 26).sum(1) + raw[1].reshape(2, 13).sum(1)
    np.testing.assert_allclose(found.float_val, expected, rtol=1e-5)


def test_a_request_that_repeats_is_recognised_and_gives_what_parsing_gives() -> None:
    decoder = PredictDecoder(ServiceDouble(ctr()))  # type: ignore[arg-type]
    first = predict(decoder, request(seed=1).SerializeToString())
    other = request(seed=2).SerializeToString()
    fast, slow = predict(decoder, other), parsed(decoder, other)
    assert fast.inputs == slow.inputs
    assert fast.inputs != first.inputs
    assert fast.writer is slow.writer
    assert all(type(column) is bytes for column in fast.inputs.columns)


@pytest.mark.parametrize("order", [("cat", "dense"), ("dense", "cat")])
def test_inputs_may_come_in_any_order(order: tuple[str, str]) -> None:
    whole = request()
    parts = [
        message("PredictRequest", inputs={name: whole.inputs[name]}).SerializeToString() for name in order
    ]
    spec_bytes = message("PredictRequest", model_spec=whole.model_spec).SerializeToString()
    decoder = PredictDecoder(ServiceDouble(ctr()))  # type: ignore[arg-type]
    for _ in range(2):
        columns = predict(decoder, spec_bytes + b"".join(parts)).inputs.columns
        assert columns == (whole.inputs["cat"].tensor_content, whole.inputs["dense"].tensor_content)


def test_a_template_says_nothing_about_another_version() -> None:
    service = ServiceDouble(ctr())
    decoder = PredictDecoder(service)  # type: ignore[arg-type]
    data = request().SerializeToString()
    old = weakref.ref(predict(decoder, data).loaded)
    newer = ctr()
    newer.version = 4
    service.versions = {("ctr", 4): newer}
    gc.collect()
    assert old() is None
    assert predict(decoder, data).loaded is newer  # type: ignore[comparison-overlap]


def test_packed_floats_are_recognised_too() -> None:
    model = echo("FP32", 2)
    decoder = PredictDecoder(ServiceDouble(model))  # type: ignore[arg-type]

    def asked(*values: float) -> bytes:
        inputs = {"x": tensor(1, (1, 2), float_val=values)}
        data = message("PredictRequest", model_spec={"name": "echo"}, inputs=inputs).SerializeToString()
        assert isinstance(data, bytes)
        return data

    predict(decoder, asked(1, 2))
    decoder.parse = pytest.fail  # type: ignore[method-assign]
    assert predict(decoder, asked(3, 4)).inputs.columns == (np.array([3, 4], "f4").tobytes(),)


@pytest.mark.parametrize("datatype", [name for name in DTYPES if name != "BYTES"])
def test_every_datatype_comes_and_goes_in_either_form(datatype: str) -> None:
    model = echo(datatype, 2)
    dtype = model.signatures["serving_default"].inputs[0].dtype
    values = np.array([[0, 1], [1, 0]]).astype(dtype)
    field = protos.message("tensorflow.TensorProto")().DESCRIPTOR
    names = {
        "FP32": "float_val",
        "FP64": "double_val",
        "INT64": "int64_val",
        "BOOL": "bool_val",
        "FP16": "half_val",
    }
    names |= {"UINT32": "uint32_val", "UINT64": "uint64_val"}
    name = names.get(datatype, "int_val")
    assert name in field.fields_by_name
    plain = (values.view("u2") if datatype == "FP16" else values).ravel().tolist()
    as_content = predict_x(tensor(DTYPES[datatype], (2, 2), tensor_content=values.tobytes()), model)
    as_values = predict_x(tensor(DTYPES[datatype], (2, 2), **{name: plain}), model)
    assert list(getattr(as_content, name)) == list(getattr(as_values, name)) == plain
    assert as_content.dtype == DTYPES[datatype]


def test_strings_come_and_go() -> None:
    found = predict_x(tensor(7, (1, 2), string_val=[b"\xff\0", b""]), echo("BYTES", 2))
    assert list(found.string_val) == [b"\xff\0", b""]


def test_bfloat16_is_widened() -> None:
    found = predict_x(tensor(14, (1, 2), half_val=[0x3F80, 0xC000]), echo("FP32", 2))
    assert list(found.float_val) == [1.0, -2.0]


@pytest.mark.parametrize(
    ("given", "expected"), [([7], [7, 7, 7, 7]), ([1, 2], [1, 2, 2, 2]), ([], [0, 0, 0, 0])]
)
def test_the_last_value_stands_for_those_that_are_missing(given: list[int], expected: list[int]) -> None:
    assert list(predict_x(tensor(3, (2, 2), int_val=given), echo("INT32", 2)).int_val) == expected


def test_output_filter_chooses_and_is_checked() -> None:
    model = rows_model(spec("a", "FP32", 1), spec("b", "INT64", 1))
    inputs = {"a": tensor(1, (1, 1), float_val=[1]), "b": tensor(9, (1, 1), int64_val=[-5])}

    def ask(*names: str) -> Any:
        asked = message("PredictRequest", model_spec={"name": "m"}, inputs=inputs, output_filter=names)
        return call(ServiceDouble(model), "Predict", asked).outputs

    assert set(ask()) == {"a", "b"}
    assert list(ask("b")["b"].int64_val) == [-5]
    assert set(ask("b")) == {"b"}
    with pytest.raises(InvalidRequest, match="unknown output 'c'"):
        ask("c")
    with pytest.raises(InvalidRequest, match="'a' is asked for twice"):
        ask("a", "a")


def test_versions_and_labels_choose() -> None:
    newer = ctr()
    newer.version = 4
    service = ServiceDouble(ctr(), newer)
    for chosen, version in ({}, 4), ({"version": {"value": 3}}, 3), ({"version_label": "stable"}, 3):
        response = call(service, "Predict", request(model_spec=chosen))
        assert response.model_spec.version.value == version


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"name": "other"}, NotFound, "other"),
        ({"name": ""}, InvalidRequest, "model_spec.name"),
        ({"version": {"value": 9}}, NotFound, "9"),
        ({"version_label": "canary"}, NotFound, "canary"),
        ({"signature_name": "other"}, InvalidRequest, "'other' not found; the model has 'serving_default'"),
        (
            {"signature_name": "explain"},
            InvalidRequest,
            "cannot explain its answers; most models of LightGBM",
        ),
    ],
)
def test_what_is_not_there_is_named(fields: Any, error: type[HeadraceError], text: str) -> None:
    with pytest.raises(error, match=text):
        call(ServiceDouble(ctr()), "Predict", request(model_spec=fields))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (tensor(1, (1, 2), tensor_content=b"12345678", float_val=[1]), "tensor_content and in float_val"),
        (
            tensor(1, (1, 2), double_val=[1]),
            "expected tensor_content or float_val for DT_FLOAT, got double_val",
        ),
        (tensor(1, (1, 2), tensor_content=b"1234567"), "expected 8 bytes"),
        (tensor(1, (1, 2), float_val=[1, 2, 3]), "expected 2 values for its shape, got 3"),
        (tensor(1, (1, 3), float_val=[1]), r"expected x FP32 \[rows, 2\]"),
        (tensor(1, (2,), float_val=[1]), r"expected x FP32 \[rows, 2\]"),
        (tensor(1, (), float_val=[1]), r"expected a list of rows, got 1.0; .*x FP32 \[rows, 2\]"),
        (tensor(1, (0, 2)), "at least one row"),
        (tensor(1, (-1, 2), float_val=[1]), "sizes of 0 or more"),
        (tensor(1, (-1, -2), tensor_content=b"12345678"), "sizes of 0 or more"),
        (tensor(1, (1 << 62, 2), float_val=[1]), "max_queue_rows"),
        (tensor(1, (1 << 62, 1 << 62), tensor_content=b"1"), "max_queue_rows"),
        (tensor(1, [1] * 40, float_val=[1]), "at most 32 dimensions"),
        (tensor(2, (1, 2), double_val=[1]), "convert it before sending, as headrace does not"),
        (tensor(8, (1, 2)), "datatype 8 is not supported"),
        (tensor(7, (1, 2), string_val=[b"a"]), "expected x FP32"),
        (tensor(7, (1, 2), tensor_content=b"abc"), "send string_val"),
        (tensor(6, (1, 2), int_val=[300]), "does not fit in INT8"),
    ],
)
def test_a_wrong_tensor_is_refused_by_name(value: Any, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text) as raised:
        predict_x(value, echo("FP32", 2))
    assert raised.value.field == "x"


def test_a_shape_of_unknown_rank_is_refused() -> None:
    value = tensor(1, (), float_val=[1])
    value.tensor_shape.unknown_rank = True
    with pytest.raises(InvalidRequest, match="unknown rank"):
        predict_x(value, echo("FP32", 2))


def test_missing_and_unknown_inputs_are_named() -> None:
    asked = request()
    asked.inputs["other"].CopyFrom(asked.inputs.pop("cat"))
    with pytest.raises(InvalidRequest, match="missing input 'cat', unknown input 'other'"):
        call(ServiceDouble(ctr()), "Predict", asked)


def test_bytes_that_are_no_message_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"expected a tensorflow\.serving\.PredictRequest"):
        predict(PredictDecoder(ServiceDouble(ctr())), b"\xff\xff")  # type: ignore[arg-type]


def test_names_are_checked_before_anything_is_repeated_for_them() -> None:
    spread = tensor(7, (8 << 20,), string_val=[b"a"])
    asked = message(
        "PredictRequest", model_spec={"name": "ctr"}, inputs={f"u{number}": spread for number in range(30)}
    )
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="missing input 'cat', 'dense', unknown input 'u"):
            predict(PredictDecoder(ServiceDouble(ctr())), asked.SerializeToString())  # type: ignore[arg-type]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("one", "size"),
    [
        (tensor(1, (1 << 14,), float_val=[1]), 1 << 16),
        (tensor(7, (1 << 14,), string_val=[b"x" * 56]), 1 << 20),  # a text counts with its length
    ],
    ids=["numbers", "texts"],
)
def test_what_is_repeated_is_limited_for_all_inputs_together(one: Any, size: int) -> None:
    datatype = "FP32" if one.dtype == 1 else "BYTES"
    inputs = tuple(spec(name, datatype) for name in "abc")
    loaded = LoadedDouble(Signature("serving_default", inputs, ()), lambda inputs: {}, name="ctr")
    decoder = PredictDecoder(ServiceDouble(loaded))  # type: ignore[arg-type]
    asked = message("PredictRequest", model_spec={"name": "ctr"}, inputs=dict.fromkeys("abc", one))
    data = asked.SerializeToString()
    enough = Limits(max_expanded_bytes=3 * size)
    assert predict(decoder, data, limits=enough).inputs.rows == 1 << 14
    with pytest.raises(TooLarge, match=rf"would take {3 * size - 3 * size // (1 << 14)} bytes or more"):
        predict(decoder, data, limits=Limits(max_expanded_bytes=3 * size - 3 * size // (1 << 14) - 1))


def filling(*shape: int, model: Any = None) -> tuple[Any, bytes]:
    """A service, and a message of some 32 bytes that asks it for many values."""
    loaded = model or echo("FP32", None)
    asked = message("PredictRequest", model_spec={"name": loaded.name}, inputs={"x": tensor(1, shape)})
    return ServiceDouble(loaded), asked.SerializeToString()


def handler(service: Any) -> Any:
    return next(one.unary for one in grpc_methods(service) if one.path.endswith("/Predict"))


@pytest.mark.parametrize(
    ("shape", "error", "said"),
    [
        ((60_000_000, 1), TooLarge, "60000000 rows, and at most max_queue_rows = 16384"),
        ((1, 60_000_000), InvalidRequest, r"expected x FP32 \[rows, 2\], got shape \[1, 60000000\]"),
    ],
)
def test_what_is_refused_for_its_shape_is_not_filled_before(shape: Any, error: Any, said: str) -> None:
    service, data = filling(*shape, model=echo("FP32", 2))
    tracemalloc.start()
    try:
        with pytest.raises(error, match=said):
            predict(PredictDecoder(service), data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_value_for_many_is_filled_in_once() -> None:
    service, data = filling(1, 4 << 20)
    tracemalloc.start()
    try:
        (column,) = predict(PredictDecoder(service), data).inputs.columns
        assert memoryview(column).nbytes == 16 << 20  # type: ignore[arg-type]
        assert tracemalloc.get_traced_memory()[1] < 18 << 20
    finally:
        tracemalloc.stop()


def test_what_small_messages_are_filled_to_counts_until_they_are_answered() -> None:
    bodies = Bodies(Limits(max_message_bytes=1 << 20, max_inflight_bytes=20 << 20))
    held = []

    def model(inputs: Any) -> Any:
        held.append(bodies.held_bytes)
        return {"y": inputs["x"][:, :1]}

    service, data = filling(1, 3 << 20, model=rows_model(spec("x", "FP32", None), model=lambda _: {}))
    service.versions["m", 3].model = lambda inputs: {"x": model(inputs)["y"]}

    async def both() -> list[Any]:
        calls = [handler(service)(data, GrpcCall(budget=bodies)) for _ in range(2)]
        return await asyncio.gather(*calls, return_exceptions=True)

    first, second = asyncio.run(both())
    assert isinstance(first, bytes)
    assert isinstance(second, Overloaded)  # 12 MB and 12 MB
    assert held == [12 << 20]
    assert bodies.held_bytes == 0


def test_others_go_on_while_a_small_message_is_filled() -> None:
    service, data = filling(1, 16 << 20, model=rows_model(spec("x", "FP32", None)))
    service.versions["m", 3].model = lambda inputs: {"x": inputs["x"][:, :1]}
    others = Turns()

    async def ask() -> None:
        async with others:
            await handler(service)(data, GrpcCall())

    asyncio.run(ask())
    assert others.count > 8


@pytest.mark.parametrize("datatype", ["INT64", "BYTES"])
def test_others_go_on_while_a_large_answer_is_written_and_it_counts(datatype: str) -> None:
    values = np.full((1, 1 << 18), b"text" if datatype == "BYTES" else -1, BY_OIP[datatype].dtype)
    loaded = rows_model(
        spec("x", "FP32", 1), outputs=[spec("y", datatype, None)], model=lambda _: {"y": values}
    )
    bodies = Bodies(Limits())
    asked = message("PredictRequest", model_spec={"name": "m"}, inputs={"x": tensor(1, (1, 1))})
    others = Turns(lambda: bodies.held_bytes)

    async def ask() -> bytes:
        call = GrpcCall(budget=bodies)
        async with others:
            answer: bytes = await handler(ServiceDouble(loaded))(asked.SerializeToString(), call)
        return answer

    response = protos.message("tensorflow.serving.PredictResponse").FromString(asyncio.run(ask()))
    assert others.count > 8
    assert max(others.seen) > 1 << 20
    assert bodies.held_bytes == 0
    given = response.outputs["y"]
    assert [size.size for size in given.tensor_shape.dim] == [1, 1 << 18]
    assert list(given.string_val or given.int64_val) == values[0].tolist()


def test_what_is_spread_for_many_rows_is_not_learnt() -> None:
    inputs = (spec("row", "FP32", 1), TensorSpec("shared", np.dtype(np.float32), (100,), context=True))
    loaded = LoadedDouble(Signature("serving_default", inputs, ()), lambda inputs: {}, name="m")
    decoder = PredictDecoder(ServiceDouble(loaded))  # type: ignore[arg-type]
    for rows, learnt in ((10, True), (1000, False)):
        given = {
            "row": tensor(1, (rows, 1), tensor_content=bytes(4 * rows)),
            "shared": tensor(1, (1, 100), tensor_content=bytes(range(100)) * 4),
        }
        data = message("PredictRequest", model_spec={"name": "m"}, inputs=given).SerializeToString()
        found = predict(decoder, data).inputs
        assert (decoder.recognise(data) is not None) == learnt
        (shared,) = [one for one in found.columns if memoryview(one).nbytes == 400 * rows]  # type: ignore[arg-type]
        assert bytes(shared) == bytes(range(100)) * 4 * rows


def test_more_outputs_than_there_are_end_at_the_first_that_is_wrong() -> None:
    asked = request(output_filter=["p"] * 200_000)
    with pytest.raises(InvalidRequest, match="output 'p' is asked for twice"):
        predict(PredictDecoder(ServiceDouble(ctr())), asked.SerializeToString())  # type: ignore[arg-type]


def test_a_message_of_many_fields_is_parsed_but_never_walked_for_a_template() -> None:
    decoder = PredictDecoder(ServiceDouble(ctr()))  # type: ignore[arg-type]
    data = request().SerializeToString()
    assert predict(decoder, data + b"\x7a\x00" * 30_000).inputs.rows
    assert decoder.recognise(data + b"\x7a\x00" * 30_000) is None
    predict(decoder, data)
    assert decoder.recognise(data) is not None
