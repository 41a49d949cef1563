"""The Open Inference Protocol over REST, as a client speaks it: binary tensors, metadata, a remote model."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import numpy as np

from headrace.base.errors import ModelError, shown
from headrace.base.tensors import BY_DTYPE, BY_OIP, STRING, Array, describe
from headrace.client.rest import Reply, RestClient
from headrace.model.servable import TensorSpec

LARGEST_METADATA_BYTES = 2**20
"""Maximum size of the JSON of an answer; limits what a server can make a client hold."""

_LARGEST_ROW_BYTES = 65_536 * 8  # the longest vector supported, in float64
_HEADER = "Inference-Header-Content-Length"
_LENGTH = struct.Struct("<I")
_MOST_DIMENSIONS = 32
_MOST_DIGITS = 19
_MOST_VALUES = 2**59


class _Tensor(msgspec.Struct):
    """The description of a tensor in JSON.

    Attributes:
        name: Name of the input or output.
        datatype: The protocol's name for its datatype.
        shape: Sizes of all axes; the first one is rows.
        parameters: Further properties, such as the number of bytes.
    """

    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Any] = {}


class _Answer(msgspec.Struct):
    outputs: list[_Tensor]
    model_version: str = ""


class _Metadata(msgspec.Struct):
    inputs: list[_Tensor]
    outputs: list[_Tensor]


def _decoded(text: bytes, kind: type[Any]) -> Any:
    """Decode the JSON of an answer.

    Raises:
        ModelError: It is not of that kind.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"expected an answer of the Open Inference Protocol: {error}") from error


class Input(NamedTuple):
    """One input of a request.

    Attributes:
        described: Its description in JSON.
        raw: Its values in binary form; empty if the description contains them.
    """

    described: bytes
    raw: bytes


def packed(name: str, values: Array) -> Input:
    """Return an input in binary form.

    Args:
        name: Name of the input.
        values: Its values, of a dtype of ``DATATYPES``.
    """
    raw = _texts_packed(values) if values.dtype == STRING else values.tobytes()
    described = {
        "name": name,
        "datatype": BY_DTYPE[values.dtype].oip,
        "shape": values.shape,
        "parameters": {"binary_data_size": len(raw)},
    }
    return Input(json.dumps(described).encode(), raw)


def _texts_packed(values: Array) -> bytes:
    parts: list[bytes] = []
    for one in values.flat:
        parts += (_LENGTH.pack(len(one)), one)
    return b"".join(parts)


def message(inputs: Sequence[Input], outputs: Sequence[str]) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of a request whose outputs are wanted in binary form.

    Args:
        inputs: The inputs.
        outputs: Names of the outputs; all if empty.
    """
    wanted = b'"parameters": {"binary_data_output": true}'
    if outputs:
        named = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
        wanted = b'"outputs": ' + json.dumps(named).encode()
    text = b'{"inputs": [%b], %b}' % (b", ".join(one.described for one in inputs), wanted)
    headers = {_HEADER: str(len(text)), "Content-Type": "application/octet-stream"}
    return headers, b"".join([text, *(one.raw for one in inputs)])


def answered(reply: Reply) -> tuple[int | None, dict[str, Array]]:
    """Read an answer.

    Args:
        reply: The response to a request.

    Returns:
        The version that answered, if the server names it, and the outputs by name, which may be written to.

    Raises:
        ModelError: The answer is not of the protocol, or contains an output that is not in binary form.
    """
    size = _number(reply.headers.get(_HEADER, ""))
    if size is None:
        size = len(reply.body)
    answer: _Answer = _decoded(reply.body[:size], _Answer)
    raw, found, start = bytearray(memoryview(reply.body)[size:]), {}, 0
    for one in answer.outputs:
        stop = start + _size_of(one, len(raw) - start)
        found[one.name] = _unpacked(one, memoryview(raw)[start:stop])
        start = stop
    if start != len(raw):
        raise ModelError(f"expected {start} bytes of binary data, got {len(raw)}")
    return _number(answer.model_version), found


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def _size_of(output: _Tensor, left: int) -> int:
    size = output.parameters.get("binary_data_size")
    if not isinstance(size, int) or not 0 <= size <= left:
        raise ModelError(
            f"the output {shown(output.name)}: expected a binary_data_size from 0 to {left}, "
            f"got {shown(str(size))}"
        )
    return size


def _unpacked(output: _Tensor, raw: memoryview) -> Array:
    known = BY_OIP.get(output.datatype)
    if known is None:
        raise ModelError(f"the output {shown(output.name)} has the datatype {shown(output.datatype)}")
    if len(output.shape) > _MOST_DIMENSIONS or any(size < 0 for size in output.shape):
        raise ModelError(f"the output {shown(output.name)}: expected sizes, got {output.shape[:8]}")
    count = math.prod(output.shape)
    if not count and math.prod(filter(None, output.shape)) > _MOST_VALUES:  # NumPy refuses such arrays
        raise ModelError(f"the output {shown(output.name)}: expected smaller sizes, got {output.shape[:8]}")
    if known.dtype == STRING:
        return _texts(output, raw, count).reshape(output.shape)
    if len(raw) != count * known.dtype.itemsize:
        expected = f"{count * known.dtype.itemsize} bytes of binary data"
        raise ModelError(f"the output {shown(output.name)}: expected {expected}, got {len(raw)}")
    return np.frombuffer(raw, known.dtype).reshape(output.shape)


def _texts(output: _Tensor, raw: memoryview, count: int) -> Array:
    texts: list[bytes] = []
    start, end = 0, len(raw)
    while start + _LENGTH.size <= end and len(texts) < count:
        first = start + _LENGTH.size
        start = first + _LENGTH.unpack_from(raw, start)[0]
        texts.append(bytes(raw[first:start]))
    if start != end or len(texts) != count:
        raise ModelError(f"the output {shown(output.name)}: expected {count} texts in {end} bytes")
    made = np.empty(count, STRING)
    made[:] = texts
    return made


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


def read_metadata(body: bytes) -> tuple[tuple[TensorSpec, ...], tuple[str, ...]]:
    """Return the inputs of a model, and the names of its outputs.

    Args:
        body: Body of the response to a request for the model's metadata.

    Raises:
        ModelError: It is not of the protocol.
    """
    found: _Metadata = _decoded(body, _Metadata)
    return tuple(map(_spec, found.inputs)), tuple(one.name for one in found.outputs)


def model_path(model: str, version: int | None) -> str:
    """Return the path of a model, or of one of its versions."""
    path = f"/v2/models/{quote(model, safe='', errors='replace')}"
    return path if version is None else f"{path}/versions/{quote(str(version), safe='')}"


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
        self._model = model
        self._version = version
        self._timeout_seconds = timeout_seconds

    def describe(self) -> CalledModel:
        """Request the metadata; see ``model_embedder.Served``. Version 0 means that none is known yet."""
        reply = self._client.ask(self._path(), b"", {}, self._timeout_seconds, LARGEST_METADATA_BYTES)
        inputs, outputs = read_metadata(reply.body)
        return CalledModel(self._version or 0, inputs, outputs)

    def predict(self, name: str, values: Array, output: str) -> Array:
        """Predict a batch; see ``model_embedder.Served``. Later calls use the first version that is named."""
        headers, body = message([packed(name, values)], [output])
        most_bytes = LARGEST_METADATA_BYTES + len(values) * _LARGEST_ROW_BYTES
        path = f"{self._path()}/infer"
        version, found = answered(self._client.ask(path, body, headers, self._timeout_seconds, most_bytes))
        if output not in found:
            raise ModelError(f"the answer has no output {shown(output)}")
        if found[output].dtype.kind not in "iuf":
            raise ModelError(f"the output {shown(output)} is {describe(found[output])}; expected numbers")
        self._version = self._version or version
        return found[output]

    @property
    def version(self) -> int:
        """Version called; 0 until a prediction names it."""
        return self._version or 0

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _path(self) -> str:
        return model_path(self._model, self._version)


def _spec(tensor: _Tensor) -> TensorSpec:
    known = BY_OIP.get(tensor.datatype)
    if known is None:
        raise ModelError(f"the input {shown(tensor.name)} has the datatype {shown(tensor.datatype)}")
    return TensorSpec(tensor.name, known.dtype, tuple(None if one < 0 else one for one in tensor.shape[1:]))
