"""Large legal bodies: what each of them may cost others is told by `benchmarks.door`, in the same table."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.door_requests import MEGABYTE, Call, Line, grpc_call, http_call
from headrace.frontends.wire import protos
from tests.faults.heavy import INFER, PREDICT, REGRESS
from tests.faults.still_serves import http_request
from tests.faults.worst_bodies import binary_texts, large_numbers, large_text, too_many_binary_texts

_LARGE = 64 * MEGABYTE - 4096


def legal_lines() -> Iterator[tuple[str, Callable[[], Line]]]:
    """All of them by their names; each is made when it is its turn."""
    for name, made in _CALLS.items():
        yield f"64 MB: {name}", lambda made=made: Line(_LARGE, made())


def _one_text() -> Call:
    return http_call(
        http_request("/v1/models/words:predict", b'{"instances":["' + b"word " * (_LARGE // 5 - 20) + b'"]}')
    )


def _one_number() -> Call:
    return http_call(
        http_request("/v1/models/half_plus_two:predict", b'{"instances":[' + b"7" * (60_000_000) + b"]}")
    )


def _binary_texts(count: int, *, binary: bool = True) -> Call:
    return http_call(binary_texts(count, _LARGE // count - 8, binary_answer=binary))


def _infer_texts(count: int, *, raw: bool) -> Call:
    text = b"w" * (_LARGE // count - 64)
    request = protos.message("inference.ModelInferRequest")(model_name="words")
    one = request.inputs.add(name="text", datatype="BYTES", shape=[count])
    if raw:
        request.raw_input_contents.append((len(text).to_bytes(4, "little") + text) * count)
    else:
        one.contents.bytes_contents.extend([text] * count)
    return grpc_call(INFER, request.SerializeToString())


def _predict_texts(count: int) -> Call:
    text = b"w" * (_LARGE // count - 64)
    tensor = protos.message("tensorflow.TensorProto")(
        dtype=7, tensor_shape={"dim": [{"size": count}]}, string_val=[text] * count
    )
    request = protos.message("tensorflow.serving.PredictRequest")(
        model_spec={"name": "words"}, inputs={"text": tensor}
    )
    return grpc_call(PREDICT, request.SerializeToString())


def _example(feature: dict[str, object]) -> Call:
    given = {"city": {"bytes_list": {"value": [b"x"]}}, "age": {"float_list": {"value": [1.0]}}, **feature}
    example = protos.message("tensorflow.Example")(features={"feature": given})
    request = protos.message("tensorflow.serving.RegressionRequest")(
        model_spec={"name": "ages"}, input={"example_list": {"examples": [example]}}
    )
    return grpc_call(REGRESS, request.SerializeToString())


def _example_text() -> Call:
    return _example({"city": {"bytes_list": {"value": [b"x" * 57 * MEGABYTE]}}})


def _example_texts() -> Call:
    return _example({"other": {"bytes_list": {"value": [b"x" * 57] * MEGABYTE}}})


def _example_numbers() -> Call:
    return _example({"other": {"float_list": {"value": np.zeros(57 * MEGABYTE // 4, np.float32)}}})


def _example_integers() -> Call:
    return _example({"other": {"int64_list": {"value": np.full(1_000_000, 1 << 60)}}})


_CALLS: dict[str, Callable[[], Call]] = {
    "a million numbers, rows": lambda: http_call(large_numbers(_LARGE, "rows")),
    "a million numbers, columns": lambda: http_call(large_numbers(_LARGE, "columns")),
    "a million numbers, flat": lambda: http_call(large_numbers(_LARGE, "flat")),
    "a million numbers, nested": lambda: http_call(large_numbers(_LARGE, "nested")),
    "1,000 texts": lambda: http_call(large_text(_LARGE)),
    "one text": _one_text,
    "one number": _one_number,
    "1,000 binary texts": lambda: _binary_texts(1000),
    "a million binary texts, too many": lambda: http_call(too_many_binary_texts(_LARGE)),
    "one binary text": lambda: _binary_texts(1),
    "1,000 binary texts, answer in JSON": lambda: _binary_texts(1000, binary=False),
    "ModelInfer, 1,000 raw texts": lambda: _infer_texts(1000, raw=True),
    "ModelInfer, 1,000 typed texts": lambda: _infer_texts(1000, raw=False),
    "ModelInfer, one raw text": lambda: _infer_texts(1, raw=True),
    "Predict, 1,000 texts": lambda: _predict_texts(1000),
    "Regress, an Example of one text": _example_text,
    "Regress, an Example of texts": _example_texts,
    "Regress, an Example of numbers": _example_numbers,
    "Regress, an Example of integers": _example_integers,
}
