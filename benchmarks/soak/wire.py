"""One question in the words of each protocol, and the answer back in NumPy's: pure functions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.frontends.wire import protos

Array = npt.NDArray[Any]
Tensors = Mapping[str, Array]

PredictRequest = protos.message("tensorflow.serving.PredictRequest")
PredictResponse = protos.message("tensorflow.serving.PredictResponse")
InferRequest = protos.message("inference.ModelInferRequest")
InferResponse = protos.message("inference.ModelInferResponse")
StreamResponse = protos.message("inference.ModelStreamInferResponse")

_DATATYPES = {"int64": "INT64", "float32": "FP32", "float64": "FP64", "object": "BYTES"}
_DTYPES = {"INT64": np.int64, "FP32": np.float32, "FP64": np.float64}
_DT = {"int64": 9, "float32": 1, "float64": 2, "object": 7}
_DT_FIELDS = {9: ("int64_val", np.int64), 1: ("float_val", np.float32), 2: ("double_val", np.float64)}
_STRING = 7
_LENGTH = 4


# ---- TensorFlow Serving ----


def tfs_path(model: str, version: int | None) -> str:
    """Where predictions are asked for."""
    return f"/v1/models/{model}{'' if version is None else f'/versions/{version}'}:predict"


def tfs_json(tensors: Tensors, *, by_row: bool) -> bytes:
    """A body of rows, or of columns."""
    columns = {name: _plain(array) for name, array in tensors.items()}
    if not by_row:
        return json.dumps({"inputs": columns}).encode()
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return json.dumps({"instances": rows}).encode()


def of_tfs_json(body: bytes, outputs: Tensors) -> dict[str, Array]:
    """The outputs of an answer, in the dtypes of those that are expected."""
    answer = json.loads(body)
    only = next(iter(outputs)) if len(outputs) == 1 else None
    if "outputs" in answer:
        columns = {only: answer["outputs"]} if only else answer["outputs"]
    else:
        rows = answer["predictions"]
        columns = {only: rows} if only else {name: [row[name] for row in rows] for name in rows[0]}
    return {name: _array(values, outputs[name].dtype) for name, values in columns.items() if name in outputs}


def tfs_message(model: str, version: int | None, tensors: Tensors) -> bytes:
    """A PredictRequest: numbers as bytes, texts one by one."""
    request = PredictRequest()
    request.model_spec.name = model
    if version is not None:
        request.model_spec.version.value = version
    for name, array in tensors.items():
        tensor = request.inputs[name]
        tensor.dtype = _DT[array.dtype.name]
        for size in array.shape:
            tensor.tensor_shape.dim.add(size=size)
        if array.dtype == object:
            tensor.string_val.extend(array.ravel().tolist())
        else:
            tensor.tensor_content = array.tobytes()
    return _written(request)


def of_tfs_message(message: bytes) -> dict[str, Array]:
    """The outputs of a PredictResponse."""
    found = {}
    for name, tensor in PredictResponse.FromString(message).outputs.items():
        shape = [dim.size for dim in tensor.tensor_shape.dim]
        if tensor.dtype == _STRING:
            found[name] = np.array(list(tensor.string_val), object).reshape(shape)
        else:
            field, dtype = _DT_FIELDS[tensor.dtype]
            found[name] = np.array(getattr(tensor, field), dtype).reshape(shape)
    return found


# ---- The Open Inference Protocol ----


def oip_path(model: str, version: int | None) -> str:
    """Where inferences are asked for."""
    return f"/v2/models/{model}{'' if version is None else f'/versions/{version}'}/infer"


def oip_json(identity: str, tensors: Tensors) -> bytes:
    """A body of JSON alone."""
    inputs = [{**_about(name, array), "data": _plain(array.ravel())} for name, array in tensors.items()]
    return json.dumps({"id": identity, "inputs": inputs}).encode()


def of_oip_json(body: bytes, identity: str) -> dict[str, Array]:
    """The outputs of an answer in JSON.

    Raises:
        ValueError: It is the answer to another request.
    """
    answer = json.loads(body)
    _check(answer.get("id"), identity)
    return {
        one["name"]: _array(one["data"], np.dtype(_DTYPES.get(one["datatype"], object))).reshape(one["shape"])
        for one in answer["outputs"]
    }


def oip_binary(identity: str, tensors: Tensors) -> tuple[int, bytes]:
    """A body of JSON with the tensors behind it, and how long the JSON is."""
    inputs, parts = [], []
    for name, array in tensors.items():
        parts.append(raw(array))
        inputs.append({**_about(name, array), "parameters": {"binary_data_size": len(parts[-1])}})
    head = json.dumps({"id": identity, "inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    return len(head), head + b"".join(parts)


def of_oip_binary(body: bytes, head_bytes: int, identity: str) -> dict[str, Array]:
    """The outputs of an answer in the binary form.

    Raises:
        ValueError: It is the answer to another request.
    """
    answer = json.loads(body[:head_bytes])
    _check(answer.get("id"), identity)
    found, at = {}, head_bytes
    for one in answer["outputs"]:
        size = one["parameters"]["binary_data_size"]
        found[one["name"]] = of_raw(body[at : at + size], one["datatype"]).reshape(one["shape"])
        at += size
    return found


def oip_message(identity: str, model: str, version: int | None, tensors: Tensors) -> bytes:
    """A ModelInferRequest with raw tensors."""
    request = InferRequest(id=identity, model_name=model)
    if version is not None:
        request.model_version = str(version)
    for name, array in tensors.items():
        request.inputs.add(**_about(name, array))
        request.raw_input_contents.append(raw(array))
    return _written(request)


def of_oip_message(message: bytes, identity: str) -> dict[str, Array]:
    """The outputs of a ModelInferResponse.

    Raises:
        ValueError: It is the answer to another request.
    """
    return of_response(InferResponse.FromString(message), identity)


def of_response(response: Any, identity: str) -> dict[str, Array]:
    """The outputs of a ModelInferResponse that has been parsed.

    Raises:
        ValueError: It is the answer to another request.
    """
    _check(response.id, identity)
    return {
        one.name: of_raw(content, one.datatype).reshape(list(one.shape))
        for one, content in zip(response.outputs, response.raw_output_contents, strict=True)
    }


def raw(array: Array) -> bytes:
    """A tensor's bytes: of texts each after its length."""
    if array.dtype != object:
        return array.tobytes()
    return b"".join(len(text).to_bytes(_LENGTH, "little") + text for text in array.ravel().tolist())


def of_raw(content: bytes, datatype: str) -> Array:
    """A tensor from its bytes, in one axis."""
    if datatype != "BYTES":
        return np.frombuffer(content, _DTYPES[datatype])
    texts, at = [], 0
    while at < len(content):
        size = int.from_bytes(content[at : at + _LENGTH], "little")
        texts.append(content[at + _LENGTH : at + _LENGTH + size])
        at += _LENGTH + size
    return np.array(texts, object)


# ---- Both ----


def _about(name: str, array: Array) -> dict[str, Any]:
    return {"name": name, "datatype": _DATATYPES[array.dtype.name], "shape": list(array.shape)}


def _plain(array: Array) -> list[Any]:
    return [text.decode() for text in array.tolist()] if array.dtype == object else array.tolist()


def _array(values: list[Any], dtype: np.dtype[Any]) -> Array:
    is_text = dtype.kind == "O"
    return np.array([text.encode() for text in values], object) if is_text else np.array(values, dtype)


def _check(given: object, identity: str) -> None:
    if given != identity:
        raise ValueError(f"the answer is to {given!r}, not to {identity!r}")


def _written(message: Any) -> bytes:
    written: bytes = message.SerializeToString()
    return written
