"""The archive over REST: all routes under ``/v1/archive``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.access.verbs import ARCHIVE_READ, ARCHIVE_WRITE, DESCRIBE_ARCHIVE
from headrace.archive.model.keys import checked
from headrace.base.errors import InvalidRequest
from headrace.frontends.archive import json_bodies, json_columns
from headrace.frontends.calls import HttpCall, HttpHandler, HttpReply, HttpRoute
from headrace.frontends.wire.json_cost import at_once_bytes
from headrace.frontends.wire.request_budget import Allowance

if TYPE_CHECKING:
    from headrace.frontends.archive.service import Door, Values

_SPACE = "/v1/archive/{space}"
_NOTHING = b"{}"
_LOOKUP_MEMBERS = frozenset(("keys", "version", "timeout_seconds", "written"))
_PUT_MEMBERS = frozenset(("keys", "vectors", "columns", "version"))

Change = Callable[[str, dict[str, Any], HttpCall, Allowance], Awaitable[None]]
"""Applies the change in a body to a space; its arrays are charged to the allowance."""


def http_routes(door: Door) -> list[HttpRoute]:
    """Return the routes of the archive.

    Args:
        door: The Door of the archive.
    """

    async def put(space: str, document: dict[str, Any], call: HttpCall, allowance: Allowance) -> None:
        json_bodies.check_members(document, _PUT_MEMBERS)
        keys, version = json_bodies.keys_of(document), json_bodies.version_of(document)
        reader = door.reader(space, version)
        checked(keys, reader.settings.max_keys)
        values: Values
        if reader.version.columns:
            door.hold_rows(reader, len(keys), allowance)
            values = await json_columns.values_of(document, len(keys), reader.version.columns, door)
        else:
            values = await json_bodies.vectors_of(document, len(keys), reader.version.dimension, door)
        await door.put(space, keys, values, version, call)

    async def invalidate(space: str, document: dict[str, Any], call: HttpCall, _: Allowance) -> None:
        await door.invalidate(space, _only_keys(document), call)

    async def forget(space: str, document: dict[str, Any], call: HttpCall, _: Allowance) -> None:
        await door.forget(space, _only_keys(document), call)

    describe = _describing(door)
    return [
        HttpRoute("POST", f"{_SPACE}:lookup", _looking_up(door), ARCHIVE_READ),
        HttpRoute("POST", f"{_SPACE}:put", _changing(door, put), ARCHIVE_WRITE),
        HttpRoute(
            "POST", f"{_SPACE}:invalidate", _changing(door, invalidate), ARCHIVE_WRITE, is_administration=True
        ),
        HttpRoute("POST", f"{_SPACE}:forget", _changing(door, forget), ARCHIVE_WRITE, is_administration=True),
        HttpRoute("GET", "/v1/archive", describe, DESCRIBE_ARCHIVE),
        HttpRoute("GET", _SPACE, describe, DESCRIBE_ARCHIVE),
    ]


def _looking_up(door: Door) -> HttpHandler:
    at_once = at_once_bytes(door.limits)

    async def lookup(call: HttpCall) -> HttpReply:
        with Allowance.of(door.limits, call) as allowance:
            document = await json_bodies.parsed(door, call, at_once, allowance)
            json_bodies.check_members(document, _LOOKUP_MEMBERS)
            keys, version = json_bodies.keys_of(document), json_bodies.version_of(document)
            seconds = json_bodies.timeout_of(document)
            with_written = json_bodies.switch_of(document, "written")
            reader = door.answering(call.parameters["space"], version)
            found = await door.lookup(reader, keys, call, seconds, allowance)
            answer = json_columns.answer if found.columns else json_bodies.answer
            return HttpReply(await answer(door, found, allowance, with_written=with_written))

    return lookup


def _changing(door: Door, change: Change) -> HttpHandler:
    at_once = at_once_bytes(door.limits)

    async def handle(call: HttpCall) -> HttpReply:
        with Allowance.of(door.limits, call) as allowance:
            document = await json_bodies.parsed(door, call, at_once, allowance)
            await change(call.parameters["space"], document, call, allowance)
        return HttpReply(_NOTHING)

    return handle


def _only_keys(document: dict[str, Any]) -> list[str]:
    json_bodies.check_members(document, ("keys",))
    keys = json_bodies.keys_of(document)
    if not keys:
        raise InvalidRequest("expected at least one key", field="keys")
    return keys


def _describing(door: Door) -> HttpHandler:
    async def handle(call: HttpCall) -> HttpReply:
        space = call.parameters.get("space", "")
        described = door.described(space)
        return HttpReply(msgspec.json.encode(described[0] if space else {"spaces": described}))

    return handle
