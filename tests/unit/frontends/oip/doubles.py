"""A Service for codec tests: the documented door, and behind it a function instead of batches and files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import numpy as np

from headrace.base.errors import FailedPrecondition, NotFound
from headrace.base.tensors import BY_OIP, Tensors
from headrace.batching.concatenation import join
from headrace.batching.request import NO_DEADLINE, Answer, BatchOutputs, Call, Timings
from headrace.batching.statistics import VersionCounts, VersionStatistics
from headrace.config import Limits, ModelConfig
from headrace.frontends.metrics.tensorflow_names import TensorFlowMetrics
from headrace.frontends.wire import protos
from headrace.frontends.wire.json_cost import at_once_bytes
from headrace.frontends.wire.time_slicer import TimeSlicer
from headrace.lifecycle.version_states import State, VersionStatus
from headrace.model.servable import CheckedInputs, Signature, TensorSpec
from headrace.telemetry.outcomes import Outcomes

Model = Callable[[Tensors], Tensors]


def spec(name: str, datatype: str, *shape: int | None) -> TensorSpec:
    return TensorSpec(name, BY_OIP[datatype].dtype, shape)


def body(datatype: str, shape: list[int], data: Any, **more: Any) -> bytes:
    """Return a body of ``/infer`` with one input ``x``."""
    return json.dumps(
        {"inputs": [{"name": "x", "datatype": datatype, "shape": shape, "data": data}], **more}
    ).encode()


class LoadedDouble:
    """One version: a signature and a function.

    Attributes:
        leases: How many hold it.
    """

    def __init__(self, signature: Signature, model: Model, *, name: str = "ctr", version: int = 3) -> None:
        self.name = name
        self.version = version
        self.signatures: Mapping[str, Signature] = {signature.name: signature}
        self.platform = "onnxruntime_onnx"
        self.servable: Any = None
        self.statistics = VersionStatistics()
        self.config = ModelConfig()
        self.codec_cache: dict[object, object] = {}
        self.streams = None
        self.model = model
        self.leases = 0

    def acquire(self) -> None:
        self.leases += 1

    def release(self) -> None:
        self.leases -= 1


class ServiceDouble:
    """The door to some versions of models; the highest one of a model is its default."""

    name = "headrace"
    version = "0.0.0"
    going = False
    limits = Limits()

    def __init__(self, *versions: LoadedDouble, admin: bool = False) -> None:
        self.versions = {(one.name, one.version): one for one in versions}
        self.admin = admin
        self.at_once_bytes = at_once_bytes(self.limits)
        self.is_ready = True
        self.services = protos.services()
        self.outcomes = Outcomes()
        self.slicer = TimeSlicer()
        self.tensorflow_metrics: TensorFlowMetrics | None = None
        self.deadlines: list[float] = []
        self.asked: list[tuple[str, str]] = []

    def loaded(self, model: str, version: int | None = None, label: str | None = None) -> Any:
        numbers = [number for name, number in self.versions if name == model]
        found = self.versions.get((model, version or max(numbers, default=0)))
        if found is None:
            raise NotFound(f"model {model!r} version {version} is not here")
        return found

    async def predict(
        self,
        loaded: LoadedDouble,
        inputs: CheckedInputs,
        deadline: float = NO_DEADLINE,
        call: Call | None = None,
    ) -> Answer:
        self.deadlines.append(deadline)
        await asyncio.sleep(0)
        tensors = join(inputs.layout, [inputs.columns], inputs.rows, inputs.rows)
        outputs = loaded.model(tensors)
        return Answer(BatchOutputs(outputs), 0, inputs.rows, Timings(0.0, inputs.rows, 1))

    def models(self) -> list[str]:
        return sorted({name for name, _ in self.versions})

    def status(self, model: str) -> list[VersionStatus]:
        found = [VersionStatus(number, State.READY) for name, number in self.versions if name == model]
        if not found:
            raise NotFound(f"model {model!r} is not here")
        failed = VersionStatus(1, State.FAILED, error="corrupt", attempts=5)
        return [*sorted(found, key=lambda one: -one.version), failed]

    async def counts(self, model: str = "", version: int | None = None) -> list[VersionCounts]:
        if model:
            self.status(model)
        return [
            VersionCounts.of(name, number, one.statistics)
            for (name, number), one in self.versions.items()
            if model in ("", name) and version in (None, number)
        ]

    def live(self) -> bool:
        return True

    def ready(self) -> bool:
        return self.is_ready

    def model_ready(self, model: str, version: int | None = None) -> bool:
        numbers = [one.version for one in self.status(model)]
        if version is not None and version not in numbers:
            raise NotFound(f"model {model!r} version {version} is not here")
        return self.is_ready and version != 1

    def reload(self, model: str) -> None:
        self._administer("reload", model)

    def unload(self, model: str) -> None:
        self._administer("unload", model)

    def _administer(self, what: str, model: str) -> None:
        if not self.admin:
            raise FailedPrecondition("administration is off")
        self.status(model)
        self.asked.append((what, model))


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(coroutine)


def ctr() -> LoadedDouble:
    """The shape of a click model: 26 categories and 13 numbers a row, one probability."""
    signature = Signature(
        "serving_default",
        (spec("cat", "INT32", 26), spec("dense", "FP32", 13)),
        (spec("p", "FP32", 1),),
    )
    return LoadedDouble(signature, _sums)


def _sums(inputs: Tensors) -> Tensors:
    total = inputs["cat"].sum(axis=1, keepdims=True) + inputs["dense"].sum(axis=1, keepdims=True)
    return {"p": total.astype(np.float32)}


def echo(datatype: str, *shape: int | None, name: str = "echo") -> LoadedDouble:
    """Answers its one input."""
    signature = Signature("serving_default", (spec("x", datatype, *shape),), (spec("y", datatype, *shape),))
    return LoadedDouble(signature, lambda inputs: {"y": inputs["x"]}, name=name)
