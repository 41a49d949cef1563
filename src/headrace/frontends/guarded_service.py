"""The Service behind a Gate: it checks that the models of a call are permitted to the caller.

The caller is read from a context variable that the transport sets in the call's task. Without one, nothing is
permitted.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from headrace.access.caller import ASKING, Caller
from headrace.base.errors import InvalidRequest, NotFound
from headrace.batching.part_streams import OnePart, PartStream
from headrace.batching.request import NO_DEADLINE, Answer
from headrace.frontends.calls import Call as ReceivedCall
from headrace.telemetry.outcomes import Call

if TYPE_CHECKING:
    from headrace.access.gate import Gate
    from headrace.frontends.service import Service
    from headrace.model.servable import CheckedInputs
    from headrace.serving.loaded_version import LoadedVersion

PRIORITY = b"headrace-priority"
"""The header, or the key of metadata, that holds a request's priority class."""

_PRIORITIES = (b"1", b"2", b"3")
Rest = ParamSpec("Rest")
Told = TypeVar("Told")


def guard(service: Service, gate: Gate) -> None:
    """Restrict callers to their own models; call this before any codec is given the service.

    Args:
        service: A Service of any class; each method whose parameters include a model is guarded.
        gate: Counts the rows that callers request.
    """
    for name in questions(type(service)):
        ask = getattr(service, name)
        setattr(service, name, _awaited_first(ask) if iscoroutinefunction(ask) else _asked_first(ask))
    predict, models, loaded_of = service.predict, service.models, service.loaded

    def his_loaded(model: str, version: int | None = None, label: str | None = None) -> LoadedVersion:
        caller = ASKING.get()
        if not caller.models.match(model):
            caller.check_model(model)
        try:
            return loaded_of(model, version, label)
        except NotFound as error:
            raise _told_to(caller, error) from None

    def predict_his(
        loaded: LoadedVersion,
        inputs: CheckedInputs,
        deadline: float = NO_DEADLINE,
        call: Call | None = None,
    ) -> asyncio.Future[Answer]:
        caller = ASKING.get()
        if not caller.models.match(loaded.name):
            caller.check_model(loaded.name)
        if isinstance(call, ReceivedCall):
            priority = call.header(PRIORITY)
            if priority is not None:
                call.priority = _checked_priority(priority, caller)
        if caller.limits is not None:
            gate.take_rows(caller, inputs.rows)
        return predict(loaded, inputs, deadline, call)

    def his_models() -> list[str]:
        his = ASKING.get().models
        return [model for model in models() if his.match(model)]

    service.loaded = his_loaded
    service.predict = predict_his
    service.parts = _his_parts(service.parts, predict_his, gate)
    service.models = his_models  # type: ignore[method-assign]  # set on the instance, of any class
    service.guarded = True


def _his_parts(
    parts: Callable[..., PartStream | OnePart], predict_his: Callable[..., asyncio.Future[Answer]], gate: Gate
) -> Callable[..., PartStream | OnePart]:
    def parts_his(
        loaded: LoadedVersion,
        inputs: CheckedInputs,
        deadline: float = NO_DEADLINE,
        call: Call | None = None,
    ) -> PartStream | OnePart:
        if loaded.streams is None:
            return OnePart(predict_his(loaded, inputs, deadline, call))
        caller = ASKING.get()
        caller.check_model(loaded.name)
        if caller.limits is not None:
            gate.take_rows(caller, inputs.rows)
        return parts(loaded, inputs, deadline, call)

    return parts_his


def _checked_priority(text: bytes, caller: Caller) -> int:
    if text not in _PRIORITIES:
        came = text[:40].decode("latin-1")
        raise InvalidRequest(f"expected 1, 2 or 3, got {came!r}; 1 is served first", field=PRIORITY.decode())
    priority = int(text)
    caller.check_priority(priority)
    return priority


def questions(kind: type[Service]) -> list[str]:
    """Return the names of a Service's methods that take a model."""
    return [
        name
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and "model" in inspect.signature(member).parameters
    ]


def _awaited_first(ask: Callable[..., Awaitable[Told]]) -> Callable[..., Awaitable[Told]]:
    """Check the model before awaiting ``ask``; an empty name means all models of the caller."""

    async def checked(model: str = "", *args: object) -> Told:
        caller = ASKING.get()
        if model:
            caller.check_model(model)
        try:
            return await ask(model, *args)
        except NotFound as error:
            raise _told_to(caller, error) from None

    return checked


def _asked_first(ask: Callable[Concatenate[str, Rest], Told]) -> Callable[Concatenate[str, Rest], Told]:
    def checked(model: str, /, *args: Rest.args, **named: Rest.kwargs) -> Told:
        caller = ASKING.get()
        caller.check_model(model)
        try:
            return ask(model, *args, **named)
        except NotFound as error:
            raise _told_to(caller, error) from None

    return checked


def _told_to(caller: Caller, error: NotFound) -> NotFound:
    """Return the error without the names of other models, unless the caller may use all of them."""
    return error if caller.models.everything else error.without_others()
