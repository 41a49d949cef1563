"""A model of a remote server, called over the Open Inference Protocol's REST API with binary tensors."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import numpy as np

from headrace.base.errors import ModelError, shown
from headrace.base.tensors import BY_DTYPE, BY_OIP, STRING, Array
from headrace.client.rest import RestClient
from headrace.model.servable import TensorSpec


@dataclass(frozen=True, slots=True)
class CalledModel:
    """Description of a served version.

    Attributes:
        version: Number of the version.
        inputs: Inputs of the model.
        outputs: Names of its outputs.
        files: Files that it was loaded from; empty if unknown, as for a remote model.
    """

    version: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    files: tuple[Path, ...] = ()


_HEADER = "Inference-Header-Content-Length"
_LARGEST_JSON_BYTES = 2**20
_LARGEST_ROW_BYTES = 65_536 * 8  # the longest vector supported, in float64


class _Tensor(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Any] = {}


class _Metadata(msgspec.Struct):
    inputs: list[_Tensor]
    outputs: list[_Tensor]


class _Answer(msgspec.Struct):
    outputs: list[_Tensor]
    model_version: str = ""


class RemoteServed:
    """One version of a remote model: the configured one, or the first one that a prediction names."""

    def __init__(self, client: RestClient, model: str, version: int | None, timeout_seconds: float) -> None:
        """Keep the settings; nothing is connected.

        Args:
            client: Client of the server; ``close`` closes it.
            model: Name of the model.
            version: Version of the model; None for the default.
            timeout_seconds: Timeout of one call in seconds.
        """
        self._client = client
        self._model = quote(model, safe="")
        self._version = version
        self._timeout_seconds = timeout_seconds

    def describe(self) -> CalledModel:
        """Request the metadata; see ``model_embedder.Served``. Version 0 means that none is known yet."""
        reply = self._client.ask(self._path(), b"", {}, self._timeout_seconds, _LARGEST_JSON_BYTES)
        found = _decoded(reply.body, _Metadata)
        outputs = tuple(one.name for one in found.outputs)
        return CalledModel(self._version or 0, tuple(map(_spec, found.inputs)), outputs)

    def predict(self, name: str, values: Array, output: str) -> Array:
        """Predict a batch; see ``model_embedder.Served``. Later calls use the first version that is named."""
        raw = _packed(values)
        tensor = {
            "name": name,
            "datatype": BY_DTYPE[values.dtype].oip,
            "shape": list(values.shape),
            "parameters": {"binary_data_size": len(raw)},
        }
        wanted = [{"name": output, "parameters": {"binary_data": True}}]
        head = json.dumps({"inputs": [tensor], "outputs": wanted}).encode()
        most_bytes = _LARGEST_JSON_BYTES + len(values) * _LARGEST_ROW_BYTES
        headers = {_HEADER: str(len(head)), "Content-Type": "application/octet-stream"}
        path = f"{self._path()}/infer"
        reply = self._client.ask(path, head + raw, headers, self._timeout_seconds, most_bytes)
        told = reply.headers.get(_HEADER, "")
        size = int(told) if told.isdecimal() else len(reply.body)
        answer = _decoded(reply.body[:size], _Answer)
        if self._version is None and answer.model_version.isdecimal():
            self._version = int(answer.model_version)
        return _unpacked(answer, output, reply.body[size:])

    @property
    def version(self) -> int:
        """Version called; 0 until a prediction names it."""
        return self._version or 0

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _path(self) -> str:
        path = f"/v2/models/{self._model}"
        return path if self._version is None else f"{path}/versions/{self._version}"


def _decoded(text: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"expected an answer of the Open Inference Protocol: {error}") from error


def _spec(tensor: _Tensor) -> TensorSpec:
    found = BY_OIP.get(tensor.datatype)
    if found is None:
        raise ModelError(f"the input {shown(tensor.name)} has the datatype {shown(tensor.datatype)}")
    return TensorSpec(tensor.name, found.dtype, tuple(None if one < 0 else one for one in tensor.shape[1:]))


def _packed(values: Array) -> bytes:
    if values.dtype != STRING:
        return values.tobytes()
    return b"".join(struct.pack("<I", len(one)) + one for one in values.flat)


def _unpacked(answer: _Answer, output: str, raw: bytes) -> Array:
    found = next((one for one in answer.outputs if one.name == output), None)
    if found is None:
        raise ModelError(f"the answer has no output {shown(output)}")
    known = BY_OIP.get(found.datatype)
    if known is None or known.dtype.kind not in "iuf":
        raise ModelError(f"the output {shown(output)} is {shown(found.datatype)}; expected numbers")
    expected = _size(found.shape) * known.dtype.itemsize
    declared = found.parameters.get("binary_data_size")
    if declared != expected or len(raw) != expected:
        raise ModelError(
            f"the output {shown(output)}: expected {expected} bytes of binary data, got {len(raw)} "
            f"(binary_data_size {shown(str(declared))})"
        )
    return np.frombuffer(raw, known.dtype).reshape(found.shape)


def _size(shape: Sequence[int]) -> int:
    if any(one < 0 for one in shape):
        raise ModelError(f"expected a shape of sizes, got {list(shape)[:8]}")
    size = 1
    for one in shape:
        size *= one
    return size
