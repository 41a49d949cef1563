"""What decoding protobuf messages costs is linear in the bytes, in time and in memory, whatever their shape.

A table of shapes for each method: each makes a message of about so many bytes. A byte of the largest must
cost about what a byte of the middle one costs. The calls of functions are counted; memory is what Python
holds, beside what protobuf's own parser takes while it parses. Tests marked `timing` measure the processor's
time, the least of several runs.
"""

from __future__ import annotations

import asyncio
import gc
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest

from headrace.base.errors import HeadraceError, TooLarge
from headrace.config import Limits
from headrace.frontends.calls import GrpcCall, GrpcMethod
from headrace.frontends.oip.grpc import grpc_methods as oip_methods
from headrace.frontends.oip.request_messages import InferRequest
from headrace.frontends.tfserving.grpc import grpc_methods as tfserving_methods
from headrace.frontends.wire.protobuf_fields import length_prefix
from headrace.frontends.wire.texts import join_strings
from tests.properties.calls import check_calls_are_linear
from tests.properties.costs import check_time_is_linear, peak_bytes
from tests.unit.frontends.oip.doubles import echo
from tests.unit.frontends.tfserving.doubles import ServiceDouble, classifier
from tests.unit.frontends.tfserving.doubles import message as serving_message
from tests.unit.frontends.tfserving.test_message_examples import example, with_context
from tests.unit.frontends.tfserving.test_predict_grpc import tensor

MIDDLE, LARGEST = 128 * 1024, 512 * 1024
RUNS = 3
MOST_GROWTH = 2.5  # of what a byte costs, over four times the bytes: 4 would be quadratic
MOST_SECONDS_A_BYTE = 16e-6  # four times what the worst takes, which docs/limits.md says: 3.8 µs
MOST_MEMORY_A_BYTE = 40  # an empty text takes two bytes of a message, and eight in each array it passes

INFER, PREDICT, REGRESS, TASKS, METADATA = (
    "ModelInfer",
    "Predict",
    "Regress",
    "MultiInference",
    "GetModelMetadata",
)


@dataclass(frozen=True)
class Shape:
    """One kind of message to one method.

    Attributes:
        name: What it is called in a failing test.
        method: What it is sent to.
        make: Makes one of about so many bytes.
        ends: What the error says that refuses it; empty where it is answered.
    """

    name: str
    method: str
    make: Callable[[int], bytes]
    ends: str = ""


def handlers(limits: Limits) -> dict[str, GrpcMethod]:
    """Methods in front of models that take numbers, texts and examples."""
    service = ServiceDouble(
        echo("FP32", name="floats"), echo("INT64", name="integers"), echo("BYTES", name="words"), classifier()
    )
    service.limits = limits
    for model in service.versions.values():
        batching = msgspec.structs.replace(model.config.batching, max_queue_rows=limits.max_values)
        model.config = msgspec.structs.replace(model.config, batching=batching)
    methods = [*oip_methods(service), *tfserving_methods(service)]  # type: ignore[arg-type]
    return {method.path.rpartition("/")[2]: method for method in methods}


WITHOUT_LIMIT = handlers(Limits(max_values=1 << 30))
"""So that all of a message is decoded, and not refused half way."""


def within(*path: int, value: bytes) -> bytes:
    for number in reversed(path):
        value = length_prefix(number, len(value)) + value
    return value


def infer(model: str, datatype: str, rows: int, contents: bytes = b"", *raw: bytes) -> bytes:
    request = InferRequest(model_name=model, raw_input_contents=raw)
    request.inputs.add(name="x", datatype=datatype, shape=[rows])
    if contents:
        request.inputs[0].contents.MergeFromString(contents)
    written: bytes = request.SerializeToString()
    return written


def again(unit: bytes, model: str = "floats") -> Callable[[int], bytes]:
    """A good request to ModelInfer, and a field again and again."""
    good = infer(model, "FP32", 1, b"", bytes(4))
    return lambda size: good + unit * (size // len(unit))


def dimensions(size: int) -> bytes:
    request = InferRequest(model_name="floats", raw_input_contents=[bytes(4)])
    request.inputs.add(name="x", datatype="FP32", shape=[1] * size)
    written: bytes = request.SerializeToString()
    return written


def texts(size: int, text: bytes) -> bytes:
    count = size // (len(text) + 2)
    return infer("words", "BYTES", count, within(8, value=text) * count)


def raw_texts(size: int) -> bytes:
    return infer("words", "BYTES", size // 8, b"", join_strings([b"text"] * (size // 8)))


def predict(model: str, *inputs: bytes) -> bytes:
    spec: bytes = serving_message("PredictRequest", model_spec={"name": model}).SerializeToString()
    return spec + b"".join(inputs)


def entry(name: bytes, value: bytes) -> bytes:
    return within(2, value=within(1, value=name) + within(2, value=value))


def one_tensor(model: str, dtype: int, rows: int, **values: object) -> bytes:
    return predict(model, entry(b"x", tensor(dtype, (rows,), **values).SerializeToString()))


def floats(size: int, **values: object) -> bytes:
    return one_tensor("floats", 1, size // 4, **values)


def tensor_of_texts(size: int) -> bytes:
    return one_tensor("words", 7, size // 10, string_val=[b"12345678"] * (size // 10))


def tensor_of_dimensions(size: int) -> bytes:
    return predict("floats", entry(b"x", b"\x08\x01" + within(2, value=b"\x12\x00" * (size // 2))))


def outputs(size: int) -> bytes:
    return one_tensor("floats", 1, 1, float_val=[1.0]) + b"\x1a\x01y" * (size // 3)


def tasks(size: int) -> bytes:
    one = within(1, value=example(age=[1.0], city=[b"B"]).SerializeToString())
    return within(2, 1, value=one) + b"\x0a\x00" * (size // 2)


def entries_of_names(size: int) -> bytes:
    return predict("floats", *(entry(b"%06d" % one, b"") for one in range(size // 12)))


def regress(examples: bytes) -> bytes:
    spec: bytes = serving_message("RegressionRequest", model_spec={"name": "people"}).SerializeToString()
    return spec + within(2, 1, value=examples)


def people(size: int) -> bytes:
    one = within(1, value=example(age=[1.0], city=[b"B"]).SerializeToString())
    return regress(one * (size // len(one)))


def empty_features(size: int) -> bytes:
    return regress(within(1, 1, value=b"\x0a\x00" * (size // 2)))


def many_features(size: int) -> bytes:
    names = b"".join(within(1, value=within(1, value=b"%07d" % number)) for number in range(size // 11))
    return regress(within(1, 1, value=names))


def in_a_context(size: int) -> bytes:
    """Half of it examples that say nothing, half of it the context."""
    context = example(age=[1.0], city=[b"c"], other=[b"x" * (size // 2)])
    return predict("people", with_context(context, *[example()] * (size // 4)))


LACKS = "age: example 0 lacks it"
SHAPES = [
    Shape("raw numbers", INFER, lambda size: infer("floats", "FP32", size // 4, b"", bytes(size))),
    Shape("raw texts", INFER, raw_texts),
    Shape("floats", INFER, lambda size: infer("floats", "FP32", size // 4, within(6, value=bytes(size)))),
    Shape("integers", INFER, lambda size: infer("integers", "INT64", size, within(3, value=b"\1" * size))),
    Shape("integers one by one", INFER, lambda size: infer("integers", "INT64", size, b"\x18\1" * size)),
    Shape("texts", INFER, lambda size: texts(size, b"twenty bytes of text")),
    Shape("empty texts", INFER, lambda size: texts(size, b"")),
    Shape("an id again and again", INFER, again(b"\x1a\x00")),
    Shape("a field that is not known", INFER, again(b"\x78\x01")),
    Shape("empty inputs", INFER, again(b"\x2a\x00"), "given twice"),
    Shape("inputs of one name", INFER, again(within(5, value=within(1, value=b"x"))), "given twice"),
    Shape("empty outputs", INFER, again(b"\x32\x00"), "unknown output"),
    Shape("parameters", INFER, again(b"\x22\x00")),
    Shape("dimensions", INFER, dimensions, "at most 32 dimensions"),
    Shape("a tensor's content", PREDICT, lambda size: floats(size, tensor_content=bytes(size))),
    Shape("a tensor's floats", PREDICT, lambda size: floats(size, float_val=np.ones(size // 4))),
    Shape("a tensor's texts", PREDICT, tensor_of_texts),
    Shape("empty entries", PREDICT, lambda size: predict("floats", b"\x12\x00" * (size // 2)), "missing"),
    Shape("entries of names", PREDICT, entries_of_names, "missing input"),
    Shape("outputs", PREDICT, outputs, "asked for twice"),
    Shape("dimensions of a tensor", PREDICT, tensor_of_dimensions, "at most 32 dimensions"),
    Shape("people", REGRESS, people),
    Shape("empty examples", REGRESS, lambda size: regress(b"\x0a\x00" * (size // 2)), LACKS),
    Shape("an example of empty features", REGRESS, empty_features, LACKS),
    Shape("an example of many features", REGRESS, many_features, LACKS),
    Shape("examples in a context", REGRESS, in_a_context),
    Shape("tasks", TASKS, tasks, "at most 65536 bytes"),
    Shape("a long question", METADATA, lambda size: b"\x12\x00" * (size // 2), "at most 65536 bytes"),
]  # fmt: skip
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=[shape.name for shape in SHAPES])


@every_shape
def test_calls_of_functions_are_linear_in_the_bytes(shape: Shape) -> None:
    given = {size: shape.make(size) for size in (MIDDLE, 2 * MIDDLE)}
    check_calls_are_linear(lambda size: decoded(shape, given[size]), MIDDLE)


@pytest.mark.timing
@every_shape
def test_time_is_linear_in_the_bytes(shape: Shape) -> None:
    given = {size: shape.make(size) for size in (MIDDLE, LARGEST)}
    check_time_is_linear(
        lambda size: seconds(shape, given[size]),
        *(MIDDLE, LARGEST),
        most_growth=MOST_GROWTH,
        most_seconds=MOST_SECONDS_A_BYTE,
    )


@every_shape
def test_memory_is_a_small_factor_of_the_bytes(shape: Shape) -> None:
    data = shape.make(MIDDLE)
    methods = handlers(Limits())
    assert peak_bytes(lambda: decoded(shape, data, methods)) < MOST_MEMORY_A_BYTE * len(data) + 4 * 2**20


def beside(start: bytes, unit: bytes) -> bytes:
    """A good request, and so many fields that they are more values than a request may have."""
    return start + unit * (Limits().max_values + 1)


def examples_for(kind: str, **fields: object) -> bytes:
    one = within(1, value=example(age=[1.0], city=[b"B"]).SerializeToString())
    spec: bytes = serving_message(kind, **fields).SerializeToString()
    return spec + within(2, 1, value=one)


SPEC = {"name": "people"}
TASK = [{"model_spec": SPEC, "method_name": "tensorflow/serving/regress"}]
UNKNOWN = b"\x78\x01"
TOO_MANY = {
    "ModelInfer, an id": (INFER, infer("floats", "FP32", 1, b"", bytes(4)), b"\x1a\x00"),
    "ModelInfer, unknown": (INFER, infer("floats", "FP32", 1, b"", bytes(4)), UNKNOWN),
    "Predict, unknown": (PREDICT, one_tensor("floats", 1, 1, float_val=[1.0]), UNKNOWN),
    "Classify, unknown": ("Classify", examples_for("ClassificationRequest", model_spec=SPEC), UNKNOWN),
    "Regress, unknown": (REGRESS, examples_for("RegressionRequest", model_spec=SPEC), UNKNOWN),
    "MultiInference, unknown": (TASKS, examples_for("MultiInferenceRequest", tasks=TASK), UNKNOWN),
}


@pytest.mark.parametrize(("method", "start", "unit"), TOO_MANY.values(), ids=TOO_MANY)
def test_fields_are_counted_before_a_message_is_parsed(method: str, start: bytes, unit: bytes) -> None:
    async def answer(message: bytes) -> bytes:
        handler = handlers(Limits())[method].unary
        assert handler is not None
        return await handler(message, GrpcCall())

    assert asyncio.run(answer(start))  # which is good without them
    with pytest.raises(TooLarge, match=r"limits\.max_values"):
        asyncio.run(answer(beside(start, unit)))


def decoded(shape: Shape, data: bytes, methods: dict[str, GrpcMethod] = WITHOUT_LIMIT) -> object:
    """What is answered, or the error that refuses it; where there is no limit, it ends as it shall."""

    async def answer() -> bytes:
        call = GrpcCall()
        handler = methods[shape.method].unary
        assert handler is not None
        return await handler(data, call)

    said, found = "", None
    try:
        found = asyncio.run(answer())
    except HeadraceError as error:
        said = error.message
    if methods is WITHOUT_LIMIT:
        assert bool(said) == bool(shape.ends), said[:200]
        assert re.search(shape.ends, said), said[:200]
    return found


def seconds(shape: Shape, data: bytes, methods: dict[str, GrpcMethod] = WITHOUT_LIMIT) -> float:
    """The least processor time that it took."""
    times = []
    for _ in range(RUNS):
        gc.collect()
        started = time.thread_time()
        decoded(shape, data, methods)
        times.append(time.thread_time() - started)
    return min(times)
