"""The split between public ports and a separate administration port.

Administration means calls that change what is served: loading, unloading, and forgetting keys of the archive.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import ParamSpec, TypeVar

from headrace.access.caller import AT_ADMINISTRATION
from headrace.access.permissions import ADMIN, ARCHIVE_WRITE, HEALTH, METRICS
from headrace.base.errors import FailedPrecondition
from headrace.frontends.calls import GrpcCall, GrpcMethod, HttpCall, HttpReply, HttpRoute

Given = ParamSpec("Given")
Reply = TypeVar("Reply")
_SERVED = ADMIN | ARCHIVE_WRITE | HEALTH | METRICS


def is_administration(one: HttpRoute | GrpcMethod) -> bool:
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
        [replace(one, handler=_refuse_http) if is_administration(one) else one for one in shown],
        [replace(one, unary=_refuse_grpc) if is_administration(one) else one for one in methods],
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
