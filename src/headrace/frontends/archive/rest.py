"""The archive over REST: all routes under ``/v1/archive``, and their JSON.

Bodies are checked member by member, and many vectors or rows are written in slices. Numbers are written as
doubles with all digits, so that they are read back exactly. Finding the fewest digits that still tell two
float32 values apart takes six times as long.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from headrace.access.permissions import ARCHIVE_READ, ARCHIVE_WRITE, DESCRIBE_ARCHIVE
from headrace.archive.lookup.space_reader import Lookup
from headrace.archive.model.columns import TEXT, Columns, renumbered, row_dtype, rows_of
from headrace.archive.model.keys import checked
from headrace.base.errors import InvalidRequest, TooLarge
from headrace.base.tensors import STRING, Array
from headrace.frontends.calls import HttpCall, HttpHandler, HttpReply, HttpRoute
from headrace.frontends.wire import json_output, long_lists
from headrace.frontends.wire.json_cost import at_once_bytes, parsed_at_once
from headrace.frontends.wire.json_text import parse_at_once, parse_in_slices
from headrace.frontends.wire.request_budget import RequestBudget

if TYPE_CHECKING:
    from headrace.frontends.archive.service import ArchiveService, Values
    from headrace.frontends.wire.time_slicer import TimeSlicer

_SPACE = "/v1/archive/{space}"
_NOTHING = b"{}"
_LOOKUP_MEMBERS = frozenset(("keys", "version", "timeout_seconds", "written"))
_PUT_MEMBERS = frozenset(("keys", "vectors", "columns", "version"))
_LONGEST_SECONDS = 60.0
_HIGHEST_VERSION = 2**63 - 1
_BYTES_A_NUMBER = 24
"""Size of a number as text, in bytes."""
_MADE_AT_ONCE_BYTES = 256 * 1024
_TEXT_BYTES_A_NUMBER = 64  # bytes of text that are written in the time of one number

Change = Callable[[str, dict[str, Any], HttpCall, RequestBudget], Awaitable[None]]
"""Applies the change in a body to a space; its arrays are charged to the budget."""


def http_routes(service: ArchiveService) -> list[HttpRoute]:
    """Return the routes of the archive.

    Args:
        service: The archive's service.
    """

    async def put(space: str, document: dict[str, Any], call: HttpCall, budget: RequestBudget) -> None:
        _check_members(document, _PUT_MEMBERS)
        keys, version = _keys_of(document), _version_of(document)
        reader = service.reader(space, version)
        checked(keys, reader.settings.max_keys)
        values: Values
        if reader.version.columns:
            service.hold_rows(reader, len(keys), budget)
            values = await _values_of(document, len(keys), reader.version.columns, service)
        else:
            values = await _vectors_of(document, len(keys), reader.version.dimension, service)
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
            document = await _parsed(service, call, at_once, budget)
            _check_members(document, _LOOKUP_MEMBERS)
            keys, version = _keys_of(document), _version_of(document)
            seconds = _timeout_of(document)
            with_written = _switch_of(document, "written")
            reader = service.answering(call.parameters["space"], version)
            found = await service.lookup(reader, keys, call, seconds, budget)
            answer = _answer_rows if found.columns else _answer_vectors
            return HttpReply(await answer(service, found, budget, with_written=with_written))

    return lookup


def _changing(service: ArchiveService, change: Change) -> HttpHandler:
    at_once = at_once_bytes(service.limits)

    async def handle(call: HttpCall) -> HttpReply:
        with RequestBudget.of(service.limits, call) as budget:
            document = await _parsed(service, call, at_once, budget)
            await change(call.parameters["space"], document, call, budget)
        return HttpReply(_NOTHING)

    return handle


def _only_keys(document: dict[str, Any]) -> list[str]:
    _check_members(document, ("keys",))
    keys = _keys_of(document)
    if not keys:
        raise InvalidRequest("expected at least one key", field="keys")
    return keys


def _describing(service: ArchiveService) -> HttpHandler:
    async def handle(call: HttpCall) -> HttpReply:
        space = call.parameters.get("space", "")
        described = service.described(space)
        return HttpReply(msgspec.json.encode(described[0] if space else {"spaces": described}))

    return handle


# --- bodies ---


async def _parsed(
    service: ArchiveService, call: HttpCall, at_once: int, budget: RequestBudget
) -> dict[str, Any]:
    """Parse a body, in one step if it is short or light, else in slices.

    Args:
        service: The archive's service.
        call: The call.
        at_once: Largest body in bytes that is always parsed in one step.
        budget: Limits the cost of the body.

    Raises:
        InvalidRequest: The body is not a JSON object.
        TooLarge: It has too many values.
    """
    limits = service.limits
    if not call.body:
        raise InvalidRequest('expected an object, such as {"keys": ["…"]}, got nothing', field="body")
    if parsed_at_once(call.body, at_once, limits):
        document = parse_at_once(call.body, limits.max_json_depth)
    else:
        async with service.slicer as slicer:
            document = await parse_in_slices(call.body, limits.max_json_depth, budget, slicer, nan=False)
    if not isinstance(document, dict):
        expected = 'expected an object, such as {"keys": ["…"]}'
        raise InvalidRequest(f"{expected}, got {_kind(document)}", field="body")
    return document


def _check_members(document: dict[str, Any], known: Collection[str]) -> None:
    """Check that a body has no unknown members.

    Raises:
        InvalidRequest: There is an unknown member.
    """
    for name in document:
        if name not in known:
            raise InvalidRequest(f"unknown; expected one of {', '.join(sorted(known))}", field=name[:100])


def _keys_of(document: dict[str, Any]) -> list[Any]:
    """Return the keys; their types are checked when they are hashed.

    Raises:
        InvalidRequest: There are no keys, or they are not a list.
    """
    if "keys" not in document:
        raise InvalidRequest("expected a list of texts, got none", field="keys")
    keys = document["keys"]
    if not isinstance(keys, list):
        raise InvalidRequest(f"expected a list of texts, got {_kind(keys)}", field="keys")
    return keys


def _version_of(document: dict[str, Any]) -> int:
    """Return the version of the space; 0 for the default.

    Raises:
        InvalidRequest: The version is not a version number.
    """
    version = document.get("version", 0)
    if type(version) is not int or not 0 <= version <= _HIGHEST_VERSION:
        raise InvalidRequest(f"expected a whole number, 0 or more, got {_kind(version)}", field="version")
    return version


def _timeout_of(document: dict[str, Any]) -> float:
    """Return the longest wait for a remote store in seconds; 0 for the default.

    Raises:
        InvalidRequest: The value is not a number above 0 and up to the maximum.
    """
    if "timeout_seconds" not in document:
        return 0.0
    seconds = document["timeout_seconds"]
    if type(seconds) not in (int, float) or not 0 < seconds <= _LONGEST_SECONDS:
        expected = f"seconds, more than 0 and at most {_LONGEST_SECONDS:g}"
        raise InvalidRequest(f"expected {expected}, got {_kind(seconds)}", field="timeout_seconds")
    return float(seconds)


def _switch_of(document: dict[str, Any], name: str) -> bool:
    """Return a boolean member; False if it is absent.

    Raises:
        InvalidRequest: The value is not a boolean.
    """
    value = document.get(name, False)
    if type(value) is not bool:
        raise InvalidRequest(f"expected true or false, got {_kind(value)}", field=name)
    return value


async def _vectors_of(document: dict[str, Any], keys: int, dimension: int, service: ArchiveService) -> Array:
    """Return the vectors of a body to be stored, float64 ``[N, dimension]``; empties the body's list.

    Args:
        document: The body.
        keys: Number of keys, at most as many as the space accepts.
        dimension: Dimension of the space.
        service: The archive's service, whose time slicer is used.

    Raises:
        InvalidRequest: The vectors are not one list of ``dimension`` numbers for each key.
    """
    rows = document.get("vectors")
    if not isinstance(rows, list) or len(rows) != keys:
        got = f"a list of {len(rows)}" if isinstance(rows, list) else _kind(rows)
        if rows is None and "columns" in document:
            got = "columns, which only feature tables have"
        raise InvalidRequest(f"expected a list of {keys} vectors, one per key, got {got}", field="vectors")
    if not keys:
        raise InvalidRequest("expected at least one key", field="keys")
    step = max(1, long_lists.STEP // dimension)
    async with service.slicer as slicer:
        for row in range(keys):  # before the array is allocated, which few short rows could make large
            _check_length(rows[row], dimension, row)
            if row % long_lists.STEP == 0:
                await slicer.breathe()
        vectors = np.empty((keys, dimension))
        for start in range(0, keys, step):
            for row in range(start, min(start + step, keys)):
                vectors[row] = _vector(rows[row], row)
                rows[row] = None
            await slicer.breathe()
    return vectors


def _check_length(numbers: object, dimension: int, row: int) -> None:
    if not isinstance(numbers, list):
        raise InvalidRequest(f"expected a list of numbers, got {_kind(numbers)}", field=f"vectors[{row}]")
    if len(numbers) != dimension:
        raise InvalidRequest(f"expected {dimension} numbers, got {len(numbers)}", field=f"vectors[{row}]")


def _vector(numbers: list[Any], row: int) -> list[float]:
    field = f"vectors[{row}]"
    for place, number in enumerate(numbers):
        if type(number) not in (int, float):
            raise InvalidRequest(f"expected a number, got {_kind(number)}", field=f"{field}[{place}]")
    try:
        return [float(number) for number in numbers]
    except OverflowError:
        raise InvalidRequest("a number is too large for float32", field=field) from None


def _kind(value: object) -> str:
    """Return the kind of a JSON value, or the value itself if it is short, for error messages."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        is_short = isinstance(value, float) or abs(value) < 10**20
        return str(value) if is_short and math.isfinite(value) else "a number that is too large"
    kinds: dict[type, str] = {str: "a text", list: "a list"}
    return kinds.get(type(value), "an object")


# --- answers ---


async def _answer_vectors(
    service: ArchiveService, lookup: Lookup, budget: RequestBudget, *, with_written: bool
) -> bytes:
    """Serialize the vectors that were found.

    Args:
        service: The archive's service, whose time slicer is used for a long answer.
        lookup: The result of the lookup.
        budget: Charged with the bytes of a long answer.
        with_written: Whether to include the write time of each vector.

    Raises:
        TooLarge: The answer would be too long.
        Overloaded: The byte budget of all requests is exhausted.
    """
    end = _rest_of(lookup, with_written=with_written)
    vectors = lookup.vectors
    if vectors.size <= json_output.PRINTED_AT_ONCE:
        return b'{"vectors":' + msgspec.json.encode(vectors.tolist()) + end
    _hold_text(service, vectors.size * _BYTES_A_NUMBER, budget)
    async with service.slicer as slicer:
        return await _printed(vectors, end, slicer)


def _rest_of(lookup: Lookup, *, with_written: bool) -> bytes:
    """Return the end of an answer from the comma on: which keys were found, and the version."""
    rest: dict[str, object] = {"found": lookup.found.tolist(), "version": lookup.version}
    if with_written:
        rest["written"] = lookup.written.tolist()
    return b"," + msgspec.json.encode(rest)[1:]


def _hold_text(service: ArchiveService, size: int, budget: RequestBudget) -> None:
    """Charge the bytes of a long answer.

    Raises:
        TooLarge: The answer would be too long.
        Overloaded: The byte budget of all requests is exhausted.
    """
    most = service.limits.max_expanded_bytes
    if size > most:
        raise TooLarge(
            f"the answer would take about {size} bytes as text; expected at most {most} "
            "(limits.max_expanded_bytes); ask for fewer keys at once, or over gRPC",
            field="keys",
        )
    budget.hold(size)


async def _printed(vectors: Array, end: bytes, slicer: TimeSlicer) -> bytes:
    parts = []
    if vectors.shape[1] > json_output.PRINTED_AT_ONCE:  # one row takes more than a step
        for row in vectors:
            pieces = []
            for cut in json_output.row_slices([row]):
                pieces.append(msgspec.json.encode(row[cut].tolist())[1:-1])
                await slicer.breathe()
            parts.append(b"[" + b",".join(pieces) + b"]")
    else:
        for cut in json_output.row_slices([vectors]):
            parts.append(msgspec.json.encode(vectors[cut].tolist())[1:-1])
            await slicer.breathe()
    return await json_output.joined_by_commas(b'{"vectors":[', parts, b"]" + end, slicer)


async def _values_of(
    document: dict[str, Any], keys: int, columns: Columns, service: ArchiveService
) -> dict[str, Array]:
    """Return the values of a body to be stored, by column, each ``[N]``; empties the body's lists.

    Args:
        document: The body.
        keys: Number of keys.
        columns: Columns of the table.
        service: The archive's service, whose time slicer is used.

    Raises:
        InvalidRequest: The values do not fit the columns, or are not one for each key.
    """
    given = document.get("columns")
    if not isinstance(given, dict) or "vectors" in document:
        got = "vectors" if "vectors" in document else _kind(given)
        raise InvalidRequest(
            f"expected an object with a list of values for each column, got {got}", field="columns"
        )
    if not keys:
        raise InvalidRequest("expected at least one key", field="keys")
    for name, values in given.items():
        if not isinstance(values, list) or len(values) != keys:
            got = f"a list of {len(values)}" if isinstance(values, list) else _kind(values)
            problem = f"expected a list of {keys} values, one per key, got {got}"
            raise InvalidRequest(problem, field=f"columns.{name[:100]}")
    rows = np.empty(keys, row_dtype(columns))
    step = max(1, min(long_lists.STEP // max(1, len(columns)), _MADE_AT_ONCE_BYTES // rows.itemsize))
    async with service.slicer as slicer:
        for start in range(0, keys, step):
            part = {name: one[start : start + step] for name, one in given.items()}
            try:
                rows[start : start + step] = rows_of(columns, part)
            except InvalidRequest as error:
                raise renumbered(error, start) from None
            for one in given.values():
                one[start : start + step] = [None] * len(one[start : start + step])
            await slicer.breathe()
    return {column.name: rows[column.name] for column in columns}


async def _answer_rows(
    service: ArchiveService, lookup: Lookup, budget: RequestBudget, *, with_written: bool
) -> bytes:
    """Serialize the rows that were found.

    Args:
        service: The archive's service, whose time slicer is used for a long answer.
        lookup: The result of the lookup.
        budget: Charged with the bytes of a long answer.
        with_written: Whether to include the write time of each row.

    Raises:
        TooLarge: The answer would be too long.
        Overloaded: The byte budget of all requests is exhausted.
    """
    end, rows = _rest_of(lookup, with_written=with_written), len(lookup.vectors)
    cost = sum(1 + (one.bytes if one.dtype == TEXT else 0) // _TEXT_BYTES_A_NUMBER for one in lookup.columns)
    if rows * cost <= json_output.PRINTED_AT_ONCE:
        values = {name: _listed(one) for name, one in lookup.values().items()}
        return b'{"columns":' + msgspec.json.encode(values) + end
    texts = sum(one.bytes if one.dtype == TEXT else _BYTES_A_NUMBER for one in lookup.columns)
    _hold_text(service, rows * texts, budget)
    async with service.slicer as slicer:
        pieces = [b'{"columns":{']
        for place, column in enumerate(lookup.columns):
            name = msgspec.json.encode(column.name)
            pieces.append((b"," if place else b"") + name + b":[")
            one_cost = 1 + (column.bytes if column.dtype == TEXT else 0) // _TEXT_BYTES_A_NUMBER
            step = max(1, json_output.PRINTED_AT_ONCE // one_cost)
            for start in range(0, rows, step):
                part = lookup.part(column.name, slice(start, start + step))
                pieces.append((b"," if start else b"") + msgspec.json.encode(_listed(part))[1:-1])
                await slicer.breathe()
            pieces.append(b"]")
        pieces.append(b"}" + end)
        await slicer.breathe()
        return b"".join(pieces)


def _listed(values: Array) -> list[Any]:
    """Return the values of a column as JSON values."""
    listed: list[Any] = values.tolist()
    if values.dtype == STRING:
        return [text.decode(errors="replace") for text in listed]
    return listed
