"""ModelInfer's messages, decoded and written; the fast way is the slow way, only faster."""

from __future__ import annotations

import gc
import time
import weakref
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import HeadraceError, InvalidRequest, NotFound, Unsupported
from headrace.base.tensors import Array
from headrace.batching.request import NO_DEADLINE, Answer, BatchOutputs, Timings
from headrace.config import Limits
from headrace.frontends.calls import Account
from headrace.frontends.oip.request_messages import InferDecoder, Inference, InferRequest
from headrace.frontends.oip.response_messages import InferResponse
from headrace.frontends.wire import protos
from headrace.frontends.wire.request_budget import RequestBudget
from headrace.frontends.wire.texts import splitting
from headrace.frontends.wire.time_slicer import run
from headrace.model.servable import Signature
from tests.unit.frontends.decoding import infer
from tests.unit.frontends.oip.doubles import LoadedDouble, ServiceDouble, ctr, echo, spec


def message(rows: int = 1, **fields: Any) -> Any:
    request = InferRequest(model_name="ctr", **fields)
    rng = np.random.default_rng(rows)
    cat = rng.integers(0, 1000, (rows, 26), np.int32)
    dense = rng.random((rows, 13), np.float32)
    for name, datatype, values in (("cat", "INT32", cat), ("dense", "FP32", dense)):
        request.inputs.add(name=name, datatype=datatype, shape=values.shape)
        request.raw_input_contents.append(values.tobytes())
    return request


def decoder(*versions: LoadedDouble) -> InferDecoder:
    return InferDecoder(ServiceDouble(*versions or (ctr(),)).loaded)


def one(datatype: str, shape: list[int], **contents: Any) -> Any:
    request = InferRequest(model_name="echo")
    tensor = request.inputs.add(name="x", datatype=datatype, shape=shape)
    for name, values in contents.items():
        getattr(tensor.contents, name).extend(values)
    return request


def answer_of(**outputs: Array) -> Answer:
    rows = len(next(iter(outputs.values())))
    return Answer(BatchOutputs(outputs), 0, rows, Timings(0.0, rows, 1))


def columns(inference: Inference) -> list[bytes]:
    return [bytes(memoryview(column).cast("B")) for column in inference.inputs.columns]


@pytest.mark.parametrize("request_id", ["", "abc", "ключ"])
@pytest.mark.parametrize("rows", [1, 32])
def test_a_request_that_repeats_gives_what_parsing_it_gives(rows: int, request_id: str) -> None:
    learning, version = message(rows, id=request_id), ctr()
    fast = decoder(version)
    infer(fast, learning.SerializeToString())
    again = message(rows, id=request_id[::-1])
    again.raw_input_contents[0] = bytes(rows * 26 * 4)
    data = again.SerializeToString()
    assert fast.recognise(data) is not None
    quick, slow = infer(fast, data), infer(decoder(version), data)
    assert quick == slow
    assert quick.request_id == request_id[::-1]
    assert columns(quick)[0] == bytes(rows * 26 * 4)


def test_inputs_in_another_order_are_put_right() -> None:
    request = message()
    swapped = InferRequest(
        model_name="ctr", inputs=request.inputs[::-1], raw_input_contents=request.raw_input_contents[::-1]
    )
    fast = decoder()
    data = swapped.SerializeToString()
    first, second = infer(fast, data), infer(fast, data)
    assert fast.recognise(data) is not None
    assert columns(first) == columns(second) == list(request.raw_input_contents)


def test_an_id_that_is_not_utf8_is_refused_the_fast_way_too() -> None:
    fast = decoder()
    data = message(id="abc").SerializeToString()
    infer(fast, data)
    with pytest.raises(InvalidRequest, match="not one"):
        infer(fast, data.replace(b"abc", b"a\xffc"))


def test_a_new_version_is_checked_anew() -> None:
    data = message().SerializeToString()
    service = ServiceDouble(ctr())
    fast = InferDecoder(service.loaded)
    infer(fast, data)
    renamed = Signature("serving_default", (spec("cat", "INT32", 26),), (spec("p", "FP32", 1),))
    service.versions["ctr", 4] = LoadedDouble(renamed, lambda inputs: {}, version=4)
    with pytest.raises(InvalidRequest, match="unknown input 'dense'"):
        infer(fast, data)
    del service.versions["ctr", 4], service.versions["ctr", 3]
    with pytest.raises(NotFound):
        infer(fast, data)


def test_what_was_learnt_does_not_keep_an_unloaded_version_alive() -> None:
    service = ServiceDouble(ctr())
    fast = InferDecoder(service.loaded)
    data = message().SerializeToString()
    infer(fast, data)
    dead = weakref.ref(service.versions.pop(("ctr", 3)))
    gc.collect()
    assert dead() is None


@pytest.mark.parametrize(
    "change",
    [
        lambda request: request.parameters["timeout"].CopyFrom(parameter(int64_param=1000)),
        lambda request: request.ParseFromString(one("FP32", [1], fp32_contents=[1.0]).SerializeToString()),
    ],
    ids=["parameters", "typed"],
)
def test_what_is_not_the_same_each_time_is_not_learnt(change: Any) -> None:
    request = message()
    change(request)
    fast = decoder(ctr(), echo("FP32"))
    data = request.SerializeToString()
    infer(fast, data)
    assert fast.recognise(data) is None


def test_strings_and_booleans_are_not_learnt() -> None:
    request = one("BOOL", [2])
    request.raw_input_contents.append(b"\2\0")
    fast = decoder(echo("BOOL"))
    assert columns(infer(fast, request.SerializeToString())) == [b"\1\0"]
    assert fast.recognise(request.SerializeToString()) is None


def parameter(**value: Any) -> Any:
    return protos.message("inference.InferParameter")(**value)


@pytest.mark.parametrize(
    ("datatype", "field", "values"),
    [
        ("BOOL", "bool_contents", [True, False]),
        ("INT8", "int_contents", [-128, 127]),
        ("INT16", "int_contents", [-32768, 32767]),
        ("INT32", "int_contents", [-(1 << 31), 5]),
        ("INT64", "int64_contents", [-(1 << 63), 5]),
        ("UINT8", "uint_contents", [0, 255]),
        ("UINT16", "uint_contents", [0, 65535]),
        ("UINT32", "uint_contents", [0, (1 << 32) - 1]),
        ("UINT64", "uint64_contents", [0, (1 << 64) - 1]),
        ("FP32", "fp32_contents", [0.5, float("inf")]),
        ("FP64", "fp64_contents", [0.1, -1e300]),
        ("BYTES", "bytes_contents", [b"a\0", b"\xff"]),
    ],
)
def test_typed_contents_come_back_typed(datatype: str, field: str, values: list[Any]) -> None:
    loaded = echo(datatype, 2)
    inference = infer(decoder(loaded), one(datatype, [1, 2], **{field: values}).SerializeToString())
    tensor = np.array(
        [values], object if datatype == "BYTES" else loaded.signatures["serving_default"].inputs[0].dtype
    )
    response = InferResponse.FromString(inference.writer.write(answer_of(y=tensor)))
    assert list(getattr(response.outputs[0].contents, field)) == values
    assert not response.raw_output_contents
    assert (response.outputs[0].datatype, list(response.outputs[0].shape)) == (datatype, [1, 2])


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (one("INT8", [1], int_contents=[128]), "x: a value does not fit in INT8"),
        (one("UINT8", [1], uint_contents=[256]), "x: a value does not fit in UINT8"),
        (one("FP32", [1], int_contents=[1]), "x: expected fp32_contents for FP32, got int_contents"),
        (
            one("FP32", [1], fp32_contents=[1], int_contents=[1]),
            "x: expected fp32_contents for FP32, got int_c",
        ),
        (one("FP32", [1]), r"x: expected 4 bytes for FP32 \[1\], got 0"),
        (one("FP32", [2], fp32_contents=[1]), r"x: expected 8 bytes for FP32 \[2\], got 4"),
        (one("FP16", [1]), "x: datatype 'FP16' has no contents; send raw_input_contents"),
        (one("FLOAT", [1]), "x: datatype 'FLOAT' has no contents"),
        (InferRequest(model_name="echo"), "missing input 'x'"),
        (InferRequest(model_name="echo", model_version="one"), "version: expected a number, got 'one'"),
    ],
)
def test_wrong_contents_are_refused(request_: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        infer(decoder(echo("FP32")), request_.SerializeToString())


def _too_few(request: Any) -> None:
    del request.raw_input_contents[1]


def _too_many(request: Any) -> None:
    request.raw_input_contents.append(b"")


def _both(request: Any) -> None:
    request.inputs[0].contents.int_contents.append(1)


def _unknown_output(request: Any) -> None:
    request.outputs.add(name="q")


def _output_twice(request: Any) -> None:
    request.outputs.add(name="p")
    request.outputs.add(name="p")


def _shared_memory(request: Any) -> None:
    request.inputs[0].parameters["shared_memory_region"].string_param = "r"


def _classification(request: Any) -> None:
    request.outputs.add(name="p").parameters["classification"].int64_param = 3


def _timeout_of_text(request: Any) -> None:
    request.parameters["timeout"].string_param = "1s"


def _negative_timeout(request: Any) -> None:
    request.parameters["timeout"].int64_param = -1


def _unknown_model(request: Any) -> None:
    request.model_name = "other"


def _short(request: Any) -> None:
    request.raw_input_contents[0] = request.raw_input_contents[0][1:]


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (_too_few, InvalidRequest, "raw_input_contents: expected one for each of the 2 inputs, got 1"),
        (_too_many, InvalidRequest, "raw_input_contents: expected one for each of the 2 inputs, got 3"),
        (_both, InvalidRequest, "cat: given both in contents and in raw_input_contents; use one of them"),
        (_short, InvalidRequest, r"cat: expected 104 bytes for INT32 \[1, 26\], got 103"),
        (_unknown_output, InvalidRequest, "outputs: unknown output 'q'; the model gives 'p'"),
        (_output_twice, InvalidRequest, "outputs: output 'p' is asked for twice"),
        (_shared_memory, Unsupported, "cat: shared memory is not supported"),
        (_classification, Unsupported, "p: classification is not supported"),
        (_timeout_of_text, InvalidRequest, "timeout: expected microseconds as int64_param, got string_param"),
        (_negative_timeout, InvalidRequest, "timeout: expected microseconds from 0 to 2.64 - 1, got -1"),
        (_unknown_model, NotFound, "model 'other' version None is not here"),
    ],
)
def test_wrong_requests_are_refused_with_the_reason(
    change: Any, error: type[HeadraceError], said: str
) -> None:
    request = message()
    change(request)
    with pytest.raises(error, match=said):
        infer(decoder(), request.SerializeToString())


def test_a_timeout_is_a_deadline_but_never_later_than_the_calls_own() -> None:
    request = message()
    request.parameters["timeout"].int64_param = 5_000_000
    request.parameters["ignored"].string_param = "x"
    before = time.monotonic()
    inference = infer(decoder(), request.SerializeToString())
    assert before + 5 <= inference.deadline <= time.monotonic() + 5
    assert infer(decoder(), request.SerializeToString(), before).deadline == before
    request.parameters["timeout"].uint64_param = 0
    assert infer(decoder(), request.SerializeToString()).deadline == NO_DEADLINE


def test_an_answer_is_the_message_that_protobuf_would_write() -> None:
    writer = infer(decoder(), message(2).SerializeToString()).writer
    values = np.array([[0.25], [0.5]], np.float32)
    expected = InferResponse(
        model_name="ctr", model_version="3", id="abc", raw_output_contents=[values.tobytes()]
    )
    expected.outputs.add(name="p", datatype="FP32", shape=[2, 1])
    batch = BatchOutputs({"p": np.concatenate([np.zeros((3, 1), np.float32), values])})
    for _ in range(2):
        written = writer.write(Answer(batch, 3, 5, Timings(0.0, 5, 2)), "abc")
        assert InferResponse.FromString(written) == expected


def test_outputs_come_in_the_order_asked_for_strings_included() -> None:
    signature = Signature(
        "serving_default", (spec("x", "FP32"),), (spec("n", "INT64", None), spec("s", "BYTES"))
    )
    request = one("FP32", [1])
    request.raw_input_contents.append(bytes(4))
    request.outputs.add(name="s")
    request.outputs.add(name="n")
    loaded = LoadedDouble(signature, lambda inputs: {}, name="echo")
    writer = infer(decoder(loaded), request.SerializeToString()).writer
    for width in (3, 200, 0):
        numbers = np.arange(width, dtype=np.int64).reshape(1, width)
        response = InferResponse.FromString(writer.write(answer_of(n=numbers, s=np.array([b"ab\0"], object))))
        assert [output.name for output in response.outputs] == ["s", "n"]
        assert list(response.outputs[1].shape) == [1, width]
        assert list(response.raw_output_contents) == [b"\3\0\0\0ab\0", numbers.tobytes()]


@pytest.mark.parametrize("texts", [[b"w" * 40_000] * 50, [b"w" * 2_000_000], [b"a", b"b" * 2_000_000, b""]])
@pytest.mark.parametrize("typed", [False, True])
def test_a_few_long_texts_are_written_in_steps(texts: list[bytes], typed: bool) -> None:
    loaded = echo("BYTES")
    request = one("BYTES", [1], **({"bytes_contents": [b""]} if typed else {}))
    if not typed:
        request.raw_input_contents.append(bytes(4))
    writer = infer(decoder(loaded), request.SerializeToString()).writer
    answer = answer_of(y=np.array(texts, object))
    assert writer.write(answer) is None
    assert len(list(writer.writing(answer, "", RequestBudget(Limits())))) >= 5
    response = InferResponse.FromString(run(writer.writing(answer, "", RequestBudget(Limits()))))
    if typed:
        assert list(response.outputs[0].contents.bytes_contents) == texts
    else:
        assert run(splitting("y", response.raw_output_contents[0], len(texts))).tolist() == texts


def test_many_numbers_are_written_in_steps_and_count_as_held() -> None:
    writer = infer(decoder(), message().SerializeToString()).writer
    values = np.arange(600_000, dtype=np.float32).reshape(-1, 1)
    account = Account(lambda size: None)
    assert writer.write(answer_of(p=values)) is None
    written = run(writer.writing(answer_of(p=values), "", RequestBudget(Limits(), account)))
    assert list(InferResponse.FromString(written).raw_output_contents) == [values.tobytes()]
    assert account.held == values.nbytes


def test_writers_and_heads_do_not_take_endless_memory() -> None:
    loaded = echo("FP32", None)
    fast = decoder(loaded)
    request = one("FP32", [1, 1])
    request.raw_input_contents.append(bytes(4))
    writer = infer(fast, request.SerializeToString()).writer
    for width in range(1000):
        writer.write(answer_of(y=np.zeros((1, width), np.float32)))
    assert len(writer._parts) <= 512


def test_half_precision_is_answered_raw_even_to_typed_requests() -> None:
    signature = Signature("serving_default", (spec("x", "FP32"),), (spec("y", "FP16"),))
    loaded = LoadedDouble(signature, lambda inputs: {}, name="echo")
    writer = infer(decoder(loaded), one("FP32", [1], fp32_contents=[1]).SerializeToString()).writer
    response = InferResponse.FromString(writer.write(answer_of(y=np.float16([0.5]))))
    assert list(response.raw_output_contents) == [np.float16(0.5).tobytes()]


def test_a_message_of_many_fields_is_parsed_but_never_walked_for_a_template() -> None:
    fast = decoder()
    data = message().SerializeToString()
    assert infer(fast, data + b"\x1a\x00" * 30_000).inputs.rows == 1
    assert fast.recognise(data + b"\x1a\x00" * 30_000) is None
    infer(fast, data)
    assert fast.recognise(data) is not None


def test_of_many_inputs_too_many_only_the_first_are_looked_at() -> None:
    request = InferRequest(model_name="ctr")
    for number in range(5000):
        request.inputs.add(name=f"x{number}", datatype="nothing", shape=[1] * 100)
    with pytest.raises(InvalidRequest, match="missing input 'cat', 'dense', unknown input 'x0', ") as refused:
        infer(decoder(), request.SerializeToString())
    assert "'x99'" in refused.value.message
    assert "x200" not in refused.value.message


def test_a_request_holds_its_version_while_it_is_decoded() -> None:
    old, new = echo("BYTES"), echo("BYTES")
    service = ServiceDouble(old)
    request = one("BYTES", [5000], bytes_contents=[b"a"] * 5000)
    steps = InferDecoder(service.loaded).parse(
        request.SerializeToString(), NO_DEADLINE, RequestBudget(Limits())
    )
    next(steps)
    assert old.leases == 1
    service.versions = dict.fromkeys(service.versions, new)
    inference = run(steps)
    assert inference.loaded is old  # type: ignore[comparison-overlap]
    assert old.leases == 0


def test_a_request_that_is_given_up_while_it_is_decoded_lets_go_of_its_version() -> None:
    version = echo("BYTES")
    request = one("BYTES", [5000], bytes_contents=[b"a"] * 5000)
    decoder = InferDecoder(ServiceDouble(version).loaded)
    steps = decoder.parse(request.SerializeToString(), NO_DEADLINE, RequestBudget(Limits()))
    next(steps)
    assert version.leases == 1
    steps.close()
    assert version.leases == 0


@pytest.mark.parametrize("shape", [[1] * 33, [2] * 30_000], ids=len)
def test_a_shape_of_many_dimensions_is_refused_before_it_is_multiplied(shape: list[int]) -> None:
    request = one("FP32", shape, fp32_contents=[1.0])
    with pytest.raises(InvalidRequest, match=f"x: expected at most 32 dimensions, got {len(shape)}"):
        infer(decoder(echo("FP32")), request.SerializeToString())
