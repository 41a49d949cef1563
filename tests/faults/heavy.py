"""Messages over gRPC that are small to send and dear to decode, each with what may be answered."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.frontends.wire import protos
from tests.faults.still_serves import MODEL, infer_message

INFER = "/inference.GRPCInferenceService/ModelInfer"
PREDICT = "/tensorflow.serving.PredictionService/Predict"
REGRESS = "/tensorflow.serving.PredictionService/Regress"
TASKS = "/tensorflow.serving.PredictionService/MultiInference"
METADATA = "/tensorflow.serving.PredictionService/GetModelMetadata"

WORDS = """
import numpy as np

class Model:
    inputs = [("city", "BYTES", []), ("age", "FP32", [])]
    outputs = [("outputs", "FP32", [])]

    def predict(self, inputs):
        return {"outputs": inputs["age"] + np.array([len(one) for one in inputs["city"]], np.float32)}
"""
"""The model that takes texts and Examples: the text's length, and the age."""

MANY = """
class Model:
    inputs = [(f"x{number}", "FP32", []) for number in range(300)]
    outputs = [("y", "FP32", [])]

    def predict(self, inputs):
        return {"y": sum(inputs.values())}
"""
"""The model of many inputs."""

_Tensor = protos.message("tensorflow.TensorProto")
_Example = protos.message("tensorflow.Example")
_Infer = protos.message("inference.ModelInferRequest")


@dataclass(frozen=True)
class Heavy:
    """One kind of message.

    Attributes:
        name: What it is called in a failing test.
        method: What it is sent to.
        message: Its bytes.
        expected: The names of the statuses that may be answered.
    """

    name: str
    method: str
    message: bytes
    expected: tuple[str, ...]


def heavy_messages(scale: int = 1) -> list[Heavy]:
    """Messages of about a megabyte, or so many, most of it the same again and again.

    Args:
        scale: How many megabytes.
    """
    size, wrong, large = scale << 20, ("INVALID_ARGUMENT",), ("RESOURCE_EXHAUSTED",)
    either = wrong + large
    good, predict = infer_message(MODEL, 1.0), predict_message()
    any_of = (*either, "OK", "UNAVAILABLE")
    return [
        Heavy("an empty id again and again", INFER, good + b"\x1a\x00" * (size // 2), any_of),
        Heavy("a field that is not known", INFER, good + b"\x7a\x00" * (size // 2), any_of),
        Heavy("the same to Predict", PREDICT, predict + b"\x7a\x00" * (size // 2), any_of),
        Heavy("empty inputs", INFER, good + b"\x2a\x00" * (size // 2), either),
        Heavy("empty entries", PREDICT, predict + b"\x12\x00" * (size // 2), either),
        Heavy("many inputs, the last two of one name", INFER, many_inputs(20_000 * scale), either),
        Heavy("inputs nobody knows, of one repeated text", PREDICT, repeated("u", 30, 8 << 20), wrong),
        Heavy("one text for very many rows", PREDICT, repeated("city", 1, 1 << 40), large),
        Heavy("empty texts", INFER, texts_infer(size // 2), any_of),
        Heavy(
            "a long text in the context of many",
            REGRESS,
            context_of_many(scale * 1_000_000, 500),
            large,
        ),
        Heavy("empty examples", REGRESS, regress_of(b"\x0a\x00" * (size // 2)), either),
        Heavy("one example of empty features", REGRESS, regress_of(_features(size // 2)), either),
        Heavy("a task again and again", TASKS, b"\x0a\x00" * (size // 2), either),
        Heavy("a question as long as a book", METADATA, b"\x12\x00" * (size // 2), large),
        Heavy(
            "more rows than the queue takes", INFER, infer_message(MODEL, *np.zeros(20_000 * scale)), large
        ),
    ]


def predict_message(model: str = MODEL) -> bytes:
    """A good Predict of one number.

    Args:
        model: What is asked.
    """
    one = {"x": _tensor(1, [1], float_val=[1])}
    return _serialized("PredictRequest", model_spec={"name": model}, inputs=one)


def _serialized(kind: str, **fields: object) -> bytes:
    written: bytes = protos.message(f"tensorflow.serving.{kind}")(**fields).SerializeToString()
    return written


def _tensor(dtype: int, shape: list[int], **values: object) -> object:
    return _Tensor(dtype=dtype, tensor_shape={"dim": [{"size": size} for size in shape]}, **values)


def _within(number: int, value: bytes) -> bytes:
    length, size = bytearray(), len(value)
    while size >= 0x80:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return bytes([number << 3 | 2]) + bytes(length) + value


def many_inputs(inputs: int, alike: int = 2) -> bytes:
    """A ModelInfer of many inputs.

    Args:
        inputs: How many.
        alike: How many of the last have one name.
    """
    request = _Infer(model_name="many")
    for number in range(inputs):
        name = f"x{min(number, inputs - alike)}"
        request.inputs.add(name=name, datatype="FP32", shape=[1]).contents.fp32_contents.append(1.0)
    written: bytes = request.SerializeToString()
    return written


def repeated(name: str, inputs: int, rows: int) -> bytes:
    """A Predict of one letter that stands for many rows.

    Args:
        name: The input's name, or the beginning of all names.
        inputs: How many inputs say so.
        rows: How many rows it stands for.
    """
    text = _tensor(7, [rows], string_val=[b"a"])
    given = {f"{name}{number}" if inputs > 1 else name: text for number in range(inputs)}
    if inputs == 1:
        given["age"] = _tensor(1, [rows], float_val=[1.0])
    return _serialized("PredictRequest", model_spec={"name": "words"}, inputs=given)


def texts_infer(count: int, text: bytes = b"") -> bytes:
    """A ModelInfer of many texts, all alike, and one age.

    Args:
        count: How many.
        text: What they say.
    """
    request = _Infer(model_name="words")
    request.inputs.add(name="city", datatype="BYTES", shape=[count])
    request.inputs.add(name="age", datatype="FP32", shape=[1]).contents.fp32_contents.append(1.0)
    request.inputs[0].contents.bytes_contents.extend([text] * count)
    written: bytes = request.SerializeToString()
    return written


def context_of_many(length: int, examples: int, model: str = "words") -> bytes:
    """A Regress with one text in the context of many empty Examples.

    Args:
        length: The text's.
        examples: How many share it.
        model: What is asked.
    """
    context = _Example(
        features={
            "feature": {
                "city": {"bytes_list": {"value": [b"x" * length]}},
                "age": {"float_list": {"value": [1.0]}},
            }
        }
    )
    given = {"example_list_with_context": {"context": context, "examples": [_Example()] * examples}}
    return _serialized("RegressionRequest", model_spec={"name": model}, input=given)


def _features(count: int) -> bytes:
    return _within(1, _within(1, b"\x0a\x00" * count))


def regress_of(examples: bytes, model: str = "words") -> bytes:
    """A Regress with Examples as they stand on the wire.

    Args:
        examples: Their fields.
        model: What is asked.
    """
    return _serialized("RegressionRequest", model_spec={"name": model}) + _within(2, _within(1, examples))
