"""The archive over REST: all routes under ``/v1/archive``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.access.permissions import ARCHIVE_READ, ARCHIVE_WRITE, DESCRIBE_ARCHIVE
from headrace.archive.model.keys import checked
from headrace.base.errors import InvalidRequest
from headrace.frontends.archive import json_bodies
from headrace.frontends.calls import HttpCall, HttpHandler, HttpReply, HttpRoute
from headrace.frontends.wire.json_cost import at_once_bytes
from headrace.frontends.wire.request_budget import RequestBudget

if TYPE_CHECKING:
    from headrace.frontends.archive.service import ArchiveService, Values

_SPACE = "/v1/archive/{space}"
_NOTHING = b"{}"
_LOOKUP_MEMBERS = frozenset(("keys", "version", "timeout_seconds", "written"))
_PUT_MEMBERS = frozenset(("keys", "vectors", "columns", "version"))

Change = Callable[[str, dict[str, Any], HttpCall, RequestBudget], Awaitable[None]]
"""Applies the change in a body to a space; its arrays are charged to the budget."""


def http_routes(service: ArchiveService) -> list[HttpRoute]:
    """Return the routes of the archive.

    Args:
        service: The archive's service.
    """

    async def put(space: str, document: dict[str, Any], call: HttpCall, budget: RequestBudget) -> None:
        json_bodies.check_members(document, _PUT_MEMBERS)
        keys, version = json_bodies.keys_of(document), json_bodies.version_of(document)
        reader = service.reader(space, version)
        checked(keys, reader.settings.max_keys)
        values: Values
        if reader.version.columns:
            service.hold_rows(reader, len(keys), budget)
            values = await json_bodies.values_of(document, len(keys), reader.version.columns, service)
        else:
            values = await json_bodies.vectors_of(document, len(keys), reader.version.dimension, service)
        await service.put(space, keys, values, version, call)

    async def invalidate(space: str, document: dict[str, Any], call: HttpCall, _: RequestBudget) -> None:
        await service.invalidate(space, _only_keys(document), call)

    async def forget(space: str, document: dict[str, Any], call: HttpCall, _: RequestBudget) -> None:
        await service.forget(space, _only_keys(document), call)

    describe = _describing(service)
    return [
        HttpRoute("POST", f"{_SPACE}:lookup", _looking_up(service), ARCHIVE_READ),
        HttpRoute("POST", f"{_SPACE}:put", _changing(service, put), ARCHIVE_WRITE),
        HttpRoute(
            "POST",
            f"{_SPACE}:invalidate",
            _changing(service, invalidate),
            ARCHIVE_WRITE,
            is_administration=True,
        ),
        HttpRoute(
            "POST", f"{_SPACE}:forget", _changing(service, forget), ARCHIVE_WRITE, is_administration=True
        ),
        HttpRoute("GET", "/v1/archive", describe, DESCRIBE_ARCHIVE),
        HttpRoute("GET", _SPACE, describe, DESCRIBE_ARCHIVE),
    ]


def _looking_up(service: ArchiveService) -> HttpHandler:
    at_once = at_once_bytes(service.limits)

    async def lookup(call: HttpCall) -> HttpReply:
        with RequestBudget.of(service.limits, call) as budget:
            document = await json_bodies.parsed(service, call, at_once, budget)
            json_bodies.check_members(document, _LOOKUP_MEMBERS)
            keys, version = json_bodies.keys_of(document), json_bodies.version_of(document)
            seconds = json_bodies.timeout_of(document)
            with_written = json_bodies.switch_of(document, "written")
            reader = service.answering(call.parameters["space"], version)
            found = await service.lookup(reader, keys, call, seconds, budget)
            answer = json_bodies.answer_rows if found.columns else json_bodies.answer_vectors
            return HttpReply(await answer(service, found, budget, with_written=with_written))

    return lookup


def _changing(service: ArchiveService, change: Change) -> HttpHandler:
    at_once = at_once_bytes(service.limits)

    async def handle(call: HttpCall) -> HttpReply:
        with RequestBudget.of(service.limits, call) as budget:
            document = await json_bodies.parsed(service, call, at_once, budget)
            await change(call.parameters["space"], document, call, budget)
        return HttpReply(_NOTHING)

    return handle


def _only_keys(document: dict[str, Any]) -> list[str]:
    json_bodies.check_members(document, ("keys",))
    keys = json_bodies.keys_of(document)
    if not keys:
        raise InvalidRequest("expected at least one key", field="keys")
    return keys


def _describing(service: ArchiveService) -> HttpHandler:
    async def handle(call: HttpCall) -> HttpReply:
        space = call.parameters.get("space", "")
        described = service.described(space)
        return HttpReply(msgspec.json.encode(described[0] if space else {"spaces": described}))

    return handle
