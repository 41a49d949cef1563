"""Descriptions of models as in TensorFlow Serving, over REST and gRPC: signatures and version states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.access.caller import as_permitted
from headrace.base.errors import NotFound, shown
from headrace.base.tensors import BY_DTYPE
from headrace.frontends.tfserving.model_specs import ModelChoice
from headrace.frontends.wire import protos
from headrace.lifecycle.version_states import State, VersionStatus
from headrace.model.servable import Signature, TensorSpec

if TYPE_CHECKING:
    from headrace.frontends.service import Service

METHODS = {kind: f"tensorflow/serving/{kind}" for kind in ("predict", "classify", "regress")}
"""The method names in SignatureDefs, by kind of signature."""

# TensorFlow Serving has no state for a failed version: it reports END with an error.
_STATES = {
    State.NEW: "START",
    State.LOADING: "LOADING",
    State.WARMING: "LOADING",
    State.READY: "AVAILABLE",
    State.DRAINING: "UNLOADING",
    State.UNLOADED: "END",
    State.FAILED: "END",
}


def signature_def(signature: Signature) -> dict[str, object]:
    """Return a signature as the fields of a SignatureDef."""
    return {
        "inputs": {spec.name: _tensor_info(signature, spec) for spec in signature.inputs},
        "outputs": {spec.name: _tensor_info(signature, spec) for spec in signature.outputs},
        "method_name": METHODS[signature.kind],
    }


def _tensor_info(signature: Signature, spec: TensorSpec) -> dict[str, object]:
    sizes = (signature.rows or -1, *(-1 if size is None else size for size in spec.shape))
    return {
        "dtype": BY_DTYPE[spec.dtype].tensorflow_name,
        "tensor_shape": {"dim": [{"size": size, "name": ""} for size in sizes], "unknown_rank": False},
        "name": f"{spec.name}:0",
    }


def version_statuses(service: Service, chosen: ModelChoice) -> list[dict[str, object]]:
    """Return the states of the versions that a request asks for, as the fields of ModelVersionStatus.

    Args:
        service: The Service.
        chosen: A model, and optionally one of its versions.

    Raises:
        NotFound: There is no such model, version or label, or the model has no versions.
    """
    statuses = service.status(chosen.model)
    if not statuses:
        why = service.problem(chosen.model)
        raise NotFound(f"Could not find any versions of model {chosen.model}: {why}")
    version = chosen.version
    if chosen.label is not None:
        version = service.labels(chosen.model).get(chosen.label)
        if version is None:
            raise NotFound(f"model {shown(chosen.model)} has no label {shown(chosen.label)}")
    if version is not None:
        statuses = [status for status in statuses if status.version == version]
        if not statuses:
            raise NotFound(f"Could not find version {version} of model {chosen.model}")
    return [_status(status) for status in statuses]


def _status(status: VersionStatus) -> dict[str, object]:
    code = "UNKNOWN" if status.error else "OK"
    return {
        "version": status.version,
        "state": _STATES[status.state],
        "status": {"error_code": code, "error_message": as_permitted(status.error, status.reason)},
    }


def as_json(value: object) -> object:
    """Return the fields of a message as in protobuf's JSON, where 64-bit integers are strings.

    All integers in the messages described here have 64 bits.
    """
    if isinstance(value, dict):
        return {key: as_json(one) for key, one in value.items()}
    if isinstance(value, list):
        return [as_json(one) for one in value]
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


SignatureDefMap = protos.message("tensorflow.serving.SignatureDefMap")
