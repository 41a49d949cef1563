"""Administration over the network: the ports that serve it, and its records in the audit log.

Administration means calls that change what is served: loading, unloading, and forgetting keys of the archive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from headrace.access.caller import ASKING, AT_ADMINISTRATION, NOT_ADMITTED
from headrace.access.permissions import ADMIN, ARCHIVE_WRITE, HEALTH, METRICS
from headrace.base.errors import FailedPrecondition, HeadraceError, InvalidRequest
from headrace.frontends.calls import (
    Call,
    GrpcCall,
    GrpcMethod,
    HttpCall,
    HttpHandler,
    HttpReply,
    HttpRoute,
    UnaryHandler,
)
from headrace.frontends.wire import protos
from headrace.frontends.wire.protobuf_fields import text_in
from headrace.telemetry.outcomes import Outcomes

if TYPE_CHECKING:
    from headrace.telemetry.audit_log import AuditLog

Given = ParamSpec("Given")
Reply = TypeVar("Reply")
Told = TypeVar("Told")
_SERVED = ADMIN | ARCHIVE_WRITE | HEALTH | METRICS

_OF_MODELS = {
    "RepositoryModelLoad": ("load", "inference.RepositoryModelLoadRequest"),
    "RepositoryModelUnload": ("unload", "inference.RepositoryModelUnloadRequest"),
    "HandleReloadConfigRequest": ("reload", "tensorflow.serving.ReloadConfigRequest"),
}

_SPACE = 1
"""Number of the field ``space`` in the messages of the archive."""

_MOST_FIELDS = 2**20


def _is_administration(one: HttpRoute | GrpcMethod) -> bool:
    """Return whether a route or a method changes what is served."""
    return one.is_administration or one.verbs == ADMIN


def administrative(
    routes: Iterable[HttpRoute], methods: Iterable[GrpcMethod]
) -> tuple[list[HttpRoute], list[GrpcMethod]]:
    """Return what the administration port serves: administration, the calls it needs, health and metrics.

    Args:
        routes: All routes of the server.
        methods: All methods of the server.
    """
    return (
        [
            one if one.handler is None else replace(one, handler=_for_operators(one.handler))
            for one in routes
            if one.verbs & _SERVED
        ],
        [
            one if one.unary is None else replace(one, unary=_for_operators(one.unary))
            for one in methods
            if one.verbs & _SERVED
        ],
    )


def public(
    routes: Iterable[HttpRoute], methods: Iterable[GrpcMethod], *, metrics: bool
) -> tuple[list[HttpRoute], list[GrpcMethod]]:
    """Return what the other ports serve: everything except, on request, metrics.

    Administration calls are refused.

    Args:
        routes: All routes of the server.
        methods: All methods of the server.
        metrics: Whether these ports serve metrics.
    """
    shown = [one for one in routes if metrics or one.verbs != METRICS]
    return (
        [replace(one, handler=_refuse_http) if _is_administration(one) else one for one in shown],
        [replace(one, unary=_refuse_grpc) if _is_administration(one) else one for one in methods],
    )


def _for_operators(handler: Callable[Given, Awaitable[Reply]]) -> Callable[Given, Awaitable[Reply]]:
    async def handle(*args: Given.args, **named: Given.kwargs) -> Reply:
        AT_ADMINISTRATION.set(True)  # a context variable of the task that answers this one call
        return await handler(*args, **named)

    return handle


async def _refuse_http(_call: HttpCall) -> HttpReply:
    raise _refusal()


async def _refuse_grpc(_message: bytes, _call: GrpcCall) -> bytes:
    raise _refusal()


def _refusal() -> FailedPrecondition:
    return FailedPrecondition("this port does not serve administration; use the server's administration port")


# --- the audit log: each action is written before and after it ---


def audited(
    routes: Iterable[HttpRoute], methods: Iterable[GrpcMethod], log: AuditLog, outcomes: Outcomes
) -> tuple[list[HttpRoute], list[GrpcMethod]]:
    """Return the routes and methods with administration written to the audit log.

    Args:
        routes: All routes of the server.
        methods: All methods of the server.
        log: The audit log.
        outcomes: Told to record these calls, since the log needs the callers' addresses.
    """
    routes, methods = list(routes), list(methods)
    paths = {one.path for one in methods if _is_administration(one)}
    ends = tuple(_action(one) for one in routes if _is_administration(one))
    outcomes.record_paths(lambda path: path in paths or path.endswith(ends))
    shown = [
        replace(one, handler=_http(_action(one), one.handler, log))
        if one.handler and _is_administration(one)
        else one
        for one in routes
    ]
    given = [
        replace(one, unary=_grpc(one.path, one.unary, log)) if one.unary and one.path in paths else one
        for one in methods
    ]
    return shown, given


def _action(route: HttpRoute) -> str:
    """Return the action of a route: the last word of its pattern."""
    return route.pattern.replace(":", "/").rpartition("/")[2]


def _http(action: str, handler: HttpHandler, log: AuditLog) -> HttpHandler:
    async def handle(call: HttpCall) -> object:
        on = call.parameters.get("model") or call.parameters.get("space") or ""
        return await _told(log, action, on, call, lambda: handler(call))

    return handle  # type: ignore[return-value]


def _grpc(path: str, handler: UnaryHandler, log: AuditLog) -> UnaryHandler:
    method = path.rpartition("/")[2]

    async def handle(message: bytes, call: GrpcCall) -> object:
        action, on = await asyncio.to_thread(_asked, method, message)
        return await _told(log, action, on, call, lambda: handler(message, call))

    return handle  # type: ignore[return-value]


def _asked(method: str, message: bytes) -> tuple[str, str]:
    """Return the action that a message asks for, and the models or space that it names, or "" for none.

    Raises:
        InvalidRequest: The space cannot be read from the message.
    """
    if method not in _OF_MODELS:  # a message of the archive, which may be too large to parse
        try:
            return method.lower(), text_in(message, _SPACE, _MOST_FIELDS)
        except ValueError as error:
            raise InvalidRequest(
                f"expected a message of at most {_MOST_FIELDS} fields, without groups: {error}"
            ) from error
    action, kind = _OF_MODELS[method]
    try:
        asked = protos.parse(protos.message(kind), message)
    except HeadraceError:
        return action, ""
    if action == "reload":
        return action, ", ".join(one.name for one in asked.config.model_config_list.config)
    return action, asked.model_name


async def _told(
    log: AuditLog, action: str, on: str, call: Call, act: Callable[[], Awaitable[Reply]]
) -> Reply:
    """Log that the action begins, run it, and log its result. Disk writes run in a thread."""
    by: dict[str, str] = {}
    if (caller := ASKING.get()) is not NOT_ADMITTED:
        by["caller"] = caller.name
    if call.outcome is not None and call.outcome.caller:
        by["address"] = call.outcome.caller
    name, left = await _whole(partial(log.begin, action, on, by))
    result = "done"
    try:
        if left is not None:
            raise left
        return await act()
    except BaseException as error:
        from headrace.telemetry.audit_log import result_of  # noqa: PLC0415 - loaded with the log

        result = result_of(error)
        raise
    finally:
        _, left = await _whole(partial(log.end, name, action, on, by, result))
        if left is not None:
            raise left


async def _whole(tell: Callable[[], Told]) -> tuple[Told, asyncio.CancelledError | None]:
    """Write a line to the end even if the caller leaves meanwhile: each start line needs an end line.

    Returns:
        The result, and the last cancellation that arrived meanwhile, or None.
    """
    telling, left = asyncio.get_running_loop().run_in_executor(None, tell), None
    while not telling.done():
        try:
            await asyncio.wait((telling,))
        except asyncio.CancelledError as error:
            left = error
    return telling.result(), left
