"""Classify, Regress and MultiInference over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from headrace.base.errors import InvalidRequest, Unsupported
from headrace.base.tensors import Array
from headrace.batching.request import Answer
from headrace.frontends.calls import GrpcCall, UnaryHandler
from headrace.frontends.tfserving import descriptions, examples, results
from headrace.frontends.tfserving.message_examples import find_examples, read_columns
from headrace.frontends.tfserving.model_specs import ModelChoice, answered, choice, find, find_signature
from headrace.frontends.wire import protos
from headrace.frontends.wire.protobuf_cost import AT_ONCE_BYTES
from headrace.frontends.wire.protobuf_fields import length_prefix
from headrace.frontends.wire.request_budget import RequestBudget
from headrace.frontends.wire.time_slicer import Steps, in_steps, run
from headrace.lifecycle.leases import Lease
from headrace.model.servable import CheckedInputs, Signature

if TYPE_CHECKING:
    from headrace.config import SignatureConfig
    from headrace.frontends.service import Service
    from headrace.serving.loaded_version import LoadedVersion

_Message = protos.Message

_InferenceResult = protos.message("tensorflow.serving.InferenceResult")

_RESULT = 1  # of a ClassificationResponse or RegressionResponse
_RESULTS_OF_TASKS = 1  # of a MultiInferenceResponse

CLASSIFY, REGRESS = descriptions.METHODS["classify"], descriptions.METHODS["regress"]
_TASK_RESULTS = {CLASSIFY: 2, REGRESS: 3}  # of an InferenceResult


class Task(NamedTuple):
    """One task of a request.

    Attributes:
        chosen: The model, version and signature.
        method: ``CLASSIFY`` or ``REGRESS``.
    """

    chosen: ModelChoice
    method: str


class _Ready(NamedTuple):
    """A task with checked inputs."""

    signature: Signature
    method: str
    inputs: CheckedInputs


def inferring(
    service: Service,
    request_name: str,
    tasks_of: Callable[[_Message], list[Task]],
    response_of: _Response,
) -> UnaryHandler:
    """Return the handler of a method that takes examples.

    Args:
        service: The Service.
        request_name: Name of the request message.
        tasks_of: Returns the tasks of a request, all of one model and version.
        response_of: Makes the response from each task's signature, method and result.
    """
    request_class = protos.message(f"tensorflow.serving.{request_name}")

    async def handle(message: bytes, call: GrpcCall) -> bytes:
        with RequestBudget.of(service.limits, call) as budget:
            return await answer(message, call, budget)

    async def answer(message: bytes, call: GrpcCall, budget: RequestBudget) -> bytes:
        steps = decode(message, budget)
        # Submit all tasks in one turn of the event loop: the version stays loaded until the last answer.
        if len(message) > AT_ONCE_BYTES:
            async with service.slicer as slicer:
                loaded, ready = await in_steps(steps, slicer)
                answers = [service.predict(loaded, one.inputs, call.deadline, call) for one in ready]
        else:
            loaded, ready = run(steps)
            answers = [service.predict(loaded, one.inputs, call.deadline, call) for one in ready]
        found = [
            _RESULTS[method](answer, signature, loaded.config.signature)
            for (signature, method, _), answer in zip(ready, await asyncio.gather(*answers), strict=True)
        ]
        writing = _written(ready, found)
        if results.needs_slices(*found):
            async with service.slicer as slicer:
                return response_of(loaded, await in_steps(writing, slicer))
        return response_of(loaded, run(writing))

    def decode(message: bytes, budget: RequestBudget) -> Steps[tuple[LoadedVersion, list[_Ready]]]:
        given = yield from find_examples(message, budget)
        tasks = tasks_of(protos.parse(request_class, given.request))
        with Lease(find(service, tasks[0].chosen)) as loaded:
            budget.most_rows = loaded.config.batching.max_queue_rows
            budget.rows(len(given.starts), "input")
            signatures = _signatures(loaded, tasks)
            columns: dict[str, dict[str, Array]] = {}
            for signature, _ in signatures:
                if signature.name not in columns:
                    columns[signature.name] = yield from read_columns(signature, message, given, budget)
            ready = [
                _Ready(signature, method, signature.check(columns[signature.name], budget=budget))
                for signature, method in signatures
            ]
        return loaded, ready

    return handle


def _signatures(loaded: LoadedVersion, tasks: Sequence[Task]) -> list[tuple[Signature, str]]:
    """Return the signature and method of each task, after checking that all tasks can be answered."""
    found: dict[tuple[str, str], tuple[Signature, str]] = {}
    for chosen, method in tasks:
        if method not in _CHECKS:
            raise Unsupported(
                f"tasks: method {method!r:.60} is not supported; expected {' or '.join(_CHECKS)}"
            )
        signature = find_signature(loaded, chosen.signature)
        if (signature.name, method) in found:
            raise InvalidRequest(f"signature {signature.name!r} is asked for twice", field="tasks")
        _CHECKS[method](signature, loaded.config.signature)
        found[signature.name, method] = signature, method
    return list(found.values())


class _Written(NamedTuple):
    """A task with its serialized result."""

    signature: Signature
    method: str
    result: bytes


def _written(ready: list[_Ready], found: list[results.Result]) -> Steps[list[_Written]]:
    written = []
    for (signature, method, _), result in zip(ready, found, strict=True):
        written.append(_Written(signature, method, (yield from results.serialized(result))))
    return written


_Response = Callable[["LoadedVersion", list[_Written]], bytes]


# ---- By kind of task ----


_CHECKS = {CLASSIFY: examples.check_classify, REGRESS: examples.check_regress}
_RESULTS: dict[str, Callable[[Answer, Signature, SignatureConfig], results.Result]] = {
    CLASSIFY: examples.classes_of,
    REGRESS: examples.values_of,
}


# ---- By method ----


def one_task(method: str) -> Callable[[_Message], list[Task]]:
    """Return a function that returns the single task of a request."""
    return lambda request: [Task(choice(request), method)]


def tasks_of(request: _Message) -> list[Task]:
    """Return the tasks of a MultiInferenceRequest.

    Raises:
        InvalidRequest: There are none, or they ask for several models or versions.
    """
    if not request.tasks:
        raise InvalidRequest("expected at least one task, got none", field="tasks")
    tasks = [Task(choice(task), task.method_name) for task in request.tasks]
    if len({task.chosen[:3] for task in tasks}) > 1:
        raise InvalidRequest("all tasks must name the same model and version", field="tasks")
    return tasks


def one_response(
    name: str,
) -> _Response:
    """Return a function that makes the response message ``name`` of a single task."""
    response_class = protos.message(f"tensorflow.serving.{name}")

    def response_of(loaded: LoadedVersion, written: list[_Written]) -> bytes:
        ((signature, _, result),) = written
        rest = response_class(model_spec=answered(loaded, signature.name)).SerializeToString()
        return b"".join((length_prefix(_RESULT, len(result)), result, rest))

    return response_of


def response_of_tasks(loaded: LoadedVersion, written: list[_Written]) -> bytes:
    """Make the MultiInferenceResponse."""
    parts = []
    for signature, method, result in written:
        spec = _InferenceResult(model_spec=answered(loaded, signature.name)).SerializeToString()
        prefix = length_prefix(_TASK_RESULTS[method], len(result))
        size = len(spec) + len(prefix) + len(result)
        parts += [length_prefix(_RESULTS_OF_TASKS, size), spec, prefix, result]
    return b"".join(parts)
