"""Rows of feature tables as JSON: a list of values for each column, processed in slices where long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from headrace.archive.lookup.space_reader import Lookup
from headrace.archive.model.columns import TEXT, Columns, renumbered, row_dtype, rows_of
from headrace.base.errors import InvalidRequest
from headrace.base.tensors import STRING, Array
from headrace.frontends.archive.json_bodies import BYTES_A_NUMBER, hold_text, kind, rest_of
from headrace.frontends.wire import json_output, long_lists
from headrace.frontends.wire.request_budget import RequestBudget

if TYPE_CHECKING:
    from headrace.frontends.archive.service import ArchiveService

_MADE_AT_ONCE_BYTES = 256 * 1024
_TEXT_BYTES_A_NUMBER = 64  # bytes of text that are written in the time of one number


async def values_of(
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
        got = "vectors" if "vectors" in document else kind(given)
        raise InvalidRequest(
            f"expected an object with a list of values for each column, got {got}", field="columns"
        )
    if not keys:
        raise InvalidRequest("expected at least one key", field="keys")
    for name, values in given.items():
        if not isinstance(values, list) or len(values) != keys:
            got = f"a list of {len(values)}" if isinstance(values, list) else kind(values)
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


async def answer(
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
    end, rows = rest_of(lookup, with_written=with_written), len(lookup.vectors)
    cost = sum(1 + (one.bytes if one.dtype == TEXT else 0) // _TEXT_BYTES_A_NUMBER for one in lookup.columns)
    if rows * cost <= json_output.PRINTED_AT_ONCE:
        values = {name: _listed(one) for name, one in lookup.values().items()}
        return b'{"columns":' + msgspec.json.encode(values) + end
    texts = sum(one.bytes if one.dtype == TEXT else BYTES_A_NUMBER for one in lookup.columns)
    hold_text(service, rows * texts, budget)
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
