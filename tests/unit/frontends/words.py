"""A model of texts that takes them packed, and requests to it by gRPC."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from headrace.base.tensors import BY_OIP, STRING, Array
from headrace.frontends.oip.request_messages import InferRequest
from headrace.frontends.tfserving.messages import PredictRequest
from headrace.frontends.wire.texts import join_strings
from headrace.model.servable import Signature, TensorSpec
from tests.unit.frontends.oip.doubles import LoadedDouble, spec

Texts = Sequence[bytes]


def words(*, takes_packed: bool = True) -> LoadedDouble:
    """A user for all rows, two words and a price a row."""
    user = TensorSpec("user", STRING, (), context=True)
    inputs = (user, spec("words", "BYTES", 2), spec("price", "FP32"))
    signature = Signature("serving_default", inputs, (spec("p", "FP32"),))
    made = LoadedDouble(signature, lambda tensors: {"p": tensors["price"]}, name="words")
    made.servable = SimpleNamespace(takes_packed=takes_packed)
    return made


def plain(column: Any) -> Any:
    """An input's values, comparable whatever holds them: a list of texts, or the bytes of numbers."""
    if isinstance(column, np.ndarray) and column.dtype == STRING:
        return column.tolist()
    return np.asarray(column).tobytes() if isinstance(column, np.ndarray) else bytes(column)


def arrays(users: Texts, words: Texts, price: float = 0.5) -> dict[str, Array]:
    rows = len(words) // 2
    return {
        "price": np.full(rows, price, np.float32),
        "user": np.array([*users, None], STRING)[:-1],
        "words": np.array([*words, None], STRING)[:-1].reshape(rows, 2),
    }


def infer_request(users: Texts, words: Texts, request_id: str = "", price: float = 0.5) -> bytes:
    request = InferRequest(model_name="words", id=request_id)
    for name, array in arrays(users, words, price).items():
        datatype = "BYTES" if array.dtype == STRING else "FP32"
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        raw = join_strings(array.ravel()) if array.dtype == STRING else array.tobytes()
        request.raw_input_contents.append(raw)
    return bytes(request.SerializeToString())


def predict_request(users: Texts, words: Texts, price: float = 0.5) -> bytes:
    request: Any = PredictRequest()
    request.model_spec.name = "words"
    for name, array in arrays(users, words, price).items():
        tensor = request.inputs[name]
        tensor.dtype = BY_OIP["BYTES" if array.dtype == STRING else "FP32"].tensorflow
        for size in array.shape:
            tensor.tensor_shape.dim.add(size=size)
        if array.dtype == STRING:
            tensor.string_val.extend(array.ravel().tolist())
        else:
            tensor.tensor_content = array.tobytes()
    return bytes(request.SerializeToString())
