"""A model of a remote server, called over the Open Inference Protocol's REST API with binary tensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import msgspec

from headrace.base.errors import ModelError, shown
from headrace.base.tensors import BY_OIP, Array, describe
from headrace.client.binary_tensors import Tensor, answered, decoded, message, packed
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


LARGEST_METADATA_BYTES = 2**20
"""Maximum size of the JSON of an answer; limits what a server can make a client hold."""

_LARGEST_ROW_BYTES = 65_536 * 8  # the longest vector supported, in float64


class _Metadata(msgspec.Struct):
    inputs: list[Tensor]
    outputs: list[Tensor]


def read_metadata(body: bytes) -> tuple[tuple[TensorSpec, ...], tuple[str, ...]]:
    """Return the inputs of a model, and the names of its outputs.

    Args:
        body: Body of the response to a request for the model's metadata.

    Raises:
        ModelError: It is not of the protocol.
    """
    found: _Metadata = decoded(body, _Metadata)
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


def _spec(tensor: Tensor) -> TensorSpec:
    known = BY_OIP.get(tensor.datatype)
    if known is None:
        raise ModelError(f"the input {shown(tensor.name)} has the datatype {shown(tensor.datatype)}")
    return TensorSpec(tensor.name, known.dtype, tuple(None if one < 0 else one for one in tensor.shape[1:]))
