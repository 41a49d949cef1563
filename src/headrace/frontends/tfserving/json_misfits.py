"""Errors for JSON bodies that do not fit the model: they name the row, the value, and the way out.

This code runs only for requests that are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import cast

import msgspec

from headrace.base.errors import InvalidRequest, listed, shown
from headrace.frontends.wire.json_text import Json
from headrace.model.misfits import misfit, ragged
from headrace.model.servable import TensorSpec

_NAMES_TOLD = 20
_INDEX = re.compile(r"\[(\d+)\]")
_BINARY = re.compile(rb"(?!\xef\xbb\xbf|\s*[\[{\"])[\s\S]{0,8}?[^\t\n\r -~]")


def binary_instead(body: bytes) -> InvalidRequest | None:
    """Return the error for a body that is binary data, such as an image; None for any other body."""
    if not _BINARY.match(body):
        return None
    return InvalidRequest(
        'expected JSON, got binary data; send {"instances": [{"b64": "…"}]}, with the data in base64',
        field="body",
    )


def wrong_names(names: Sequence[str], row: Mapping[str, Json], index: int) -> InvalidRequest:
    """Return the error for a row whose names are not exactly the inputs.

    Args:
        names: The inputs.
        row: The row.
        index: Its number.
    """
    missing, known = [name for name in names if name not in row], set(names)
    unknown = list(islice((name for name in row if name not in known), _NAMES_TOLD))
    told = [f"missing {listed(map(shown, missing))}"] if missing else []
    told += [f"unexpected {listed(map(shown, unknown))}"] if unknown else []
    wanted = f"every row needs {listed(map(shown, names))}{' and nothing else' if unknown else ''}"
    way_out = wanted if missing else f"remove {'it' if len(unknown) == 1 else 'them'}"
    return InvalidRequest(f"{', '.join(told)}; {way_out}", field=f"instances[{index}]")


def wrong_value(spec: TensorSpec, value: Json, error: msgspec.ValidationError) -> InvalidRequest:
    """Return the error for the value that msgspec refused.

    Args:
        spec: The input.
        value: All its rows.
        error: The refusal.
    """
    place, found = place_of(error), value
    for index in place:
        found = cast("list[Json]", found)[index]
    return misfit(spec, found, place)


def place_of(error: msgspec.ValidationError) -> list[int]:
    """Return the indices in the path with which msgspec's messages end: 3 and 0 in ``- at `$[3][0]```."""
    return [int(index) for index in _INDEX.findall(str(error).rpartition(" - at ")[2])]


def wrong_lists(spec: TensorSpec, flat: Sequence[Json], level: int) -> InvalidRequest:
    """Return the error for values that are not all lists of one length.

    Args:
        spec: The input.
        flat: The values of one level of nesting.
        level: That level: 0 for all rows together, 1 for the rows.
    """
    if level == 0:
        return misfit(spec, flat[0], ())
    if level == 1 and not spec.shorter:
        for row, value in enumerate(flat):
            if not isinstance(value, list):
                return misfit(spec, value, (row,))
        return ragged(spec, flat)
    return ragged(spec, None)
