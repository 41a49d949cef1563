"""Descriptions of the server and its models as plain values, for JSON or the fields of messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.access.caller import as_permitted
from headrace.base.errors import Unsupported
from headrace.frontends.oip.datatypes import datatype_name, metadata_shape
from headrace.frontends.wire.tensors import BYTES
from headrace.lifecycle.version_states import State
from headrace.model.servable import Signature, TensorSpec, signature_named

if TYPE_CHECKING:
    from headrace.batching.statistics import VersionCounts
    from headrace.frontends.service import Service
    from headrace.serving.loaded_version import LoadedVersion

Description = dict[str, object]

EXTENSIONS = (
    "binary_tensor_data",
    "generate",
    "model_configuration",
    "model_repository",
    "parameters",
    "statistics",
)
"""The supported extensions of the protocol, by Triton's names."""

_STATES = {
    State.NEW: "LOADING",
    State.LOADING: "LOADING",
    State.WARMING: "LOADING",
    State.READY: "READY",
    State.DRAINING: "UNLOADING",
    State.UNLOADED: "UNAVAILABLE",
    State.FAILED: "UNAVAILABLE",
}


def server_metadata(service: Service) -> Description:
    """Return the server's name, version and extensions."""
    return {"name": service.name, "version": service.version, "extensions": list(EXTENSIONS)}


def model_metadata(service: Service, loaded: LoadedVersion) -> Description:
    """Return the inputs and outputs of a model."""
    signature = signature_named(loaded.signatures, "")
    return {
        "name": loaded.name,
        "versions": [str(number) for number in _ready_versions(service, loaded.name)],
        "platform": loaded.platform,
        "inputs": [_tensor_metadata(signature, spec) for spec in signature.inputs],
        "outputs": [_tensor_metadata(signature, spec) for spec in signature.outputs],
    }


def _ready_versions(service: Service, model: str) -> list[int]:
    return sorted(one.version for one in service.status(model) if one.state is State.READY)


def _tensor_metadata(signature: Signature, spec: TensorSpec) -> Description:
    return {"name": spec.name, "datatype": datatype_name(spec), "shape": metadata_shape(signature, spec)}


def model_config(loaded: LoadedVersion) -> Description:
    """Return a model's settings as Triton's ModelConfig, as far as they have a counterpart.

    A model with a fixed number of rows does not batch in Triton's sense: its rows are part of the dims.
    """
    signature = signature_named(loaded.signatures, "")
    batching, versions = loaded.config.batching, loaded.config.versions
    instances = batching.instance_processes or batching.instances or 1
    policies: dict[str, Description] = {
        "latest": {"latest": {"num_versions": versions.count}},
        "all": {"all": {}},
        "specific": {"specific": {"versions": list(versions.numbers)}},
    }
    return {
        "name": loaded.name,
        "platform": loaded.platform,
        "backend": loaded.platform.partition("_")[0],
        "version_policy": policies[versions.policy],
        "max_batch_size": 0 if signature.rows else batching.max_batch_rows,
        "input": [_tensor_config(signature, spec) for spec in signature.inputs],
        "output": [_tensor_config(signature, spec) for spec in signature.outputs],
        "dynamic_batching": {
            "preferred_batch_size": list(batching.allowed_batch_rows),
            "max_queue_delay_microseconds": round(batching.max_wait_seconds * 1e6),
            "preserve_ordering": False,
        },
        "instance_group": [{"name": loaded.name, "kind": "KIND_CPU", "count": instances}],
        "model_transaction_policy": {"decoupled": loaded.streams is not None},
    }


def _tensor_config(signature: Signature, spec: TensorSpec) -> Description:
    datatype = datatype_name(spec)
    dimensions = metadata_shape(signature, spec)
    return {
        "name": spec.name,
        "data_type": "TYPE_STRING" if datatype == BYTES else f"TYPE_{datatype}",
        "dims": dimensions if signature.rows else dimensions[1:],
    }


async def statistics(service: Service, model: str = "", version: int | None = None) -> Description:
    """Return the statistics of one version, of all ready versions of a model, or of all models.

    Raises:
        HeadraceError: There is no such model or version, or it is not ready.
    """
    return {"model_stats": [_version_statistics(one) for one in await service.counts(model, version)]}


def _version_statistics(counted: VersionCounts) -> Description:
    nothing = _duration(0, 0.0)
    return {
        "name": counted.model,
        "version": str(counted.version),
        "last_inference": round(counted.last_request_unix_seconds * 1e3),
        "inference_count": counted.rows,
        "execution_count": counted.batches,
        "inference_stats": {
            "success": _duration(counted.requests, counted.request_seconds),
            "fail": _duration(counted.failures, counted.failure_seconds),
            "queue": _duration(counted.requests, counted.queue_seconds),
            "compute_input": nothing,
            # Per request, as clients expect: each counts the time of its whole batch, from start to answer.
            "compute_infer": _duration(counted.requests, counted.request_seconds - counted.queue_seconds),
            "compute_output": nothing,
            "cache_hit": nothing,
            "cache_miss": nothing,
        },
        "batch_stats": [
            {
                "batch_size": rows,
                "compute_input": nothing,
                "compute_infer": _duration(count, seconds),
                "compute_output": nothing,
            }
            for rows, (count, seconds) in sorted(counted.batch_rows.items())
        ],
    }


def _duration(count: int, seconds: float) -> Description:
    return {"count": count, "ns": max(0, round(seconds * 1e9))}


def repository_index(service: Service, *, only_ready: bool) -> list[Description]:
    """List every version of every model with its state, and models without versions with the reason.

    Args:
        service: The Service.
        only_ready: Whether to list ready versions only.
    """
    without: list[Description] = [
        {"name": name, "version": "", "state": "UNAVAILABLE", "reason": service.problem(name)}
        for name in service.models()
        if not only_ready and not service.status(name)
    ]
    return without + [
        {
            "name": name,
            "version": str(status.version),
            "state": _STATES[status.state],
            "reason": as_permitted(status.error, status.reason),
        }
        for name in service.models()
        for status in service.status(name)
        if status.state is State.READY or not only_ready
    ]


def refuse_load_parameters(parameters: Iterable[str]) -> None:
    """Refuse a load request that contains settings or files.

    Raises:
        Unsupported: The parameters contain a config or a file.
    """
    for name in parameters:
        if name == "config" or name.startswith("file:"):
            raise Unsupported(
                f"{name}: models are loaded from the server's disk with their own settings; "
                "publish a version directory instead"
            )
