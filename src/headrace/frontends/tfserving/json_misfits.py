"""Errors for JSON bodies that do not fit the model: they name the row, the value, and the way out.

This code runs only for requests that are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import cast

import msgspec

from headrace.base.errors import InvalidRequest, listed, shown
from headrace.frontends.wire.json_misfits import place_of
from headrace.frontends.wire.json_text import Json
from headrace.model.misfits import is_beyond, misfit, position, ragged, wrong_element
from headrace.model.servable import TensorSpec

_NAMES_TOLD = 20
BINARY = 'send {"instances": [{"b64": "…"}]}, with the data in base64'
"""The way out for binary data in place of JSON."""


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


def too_large(spec: TensorSpec, rows: Json) -> InvalidRequest:
    """Return the error for the first number beyond the limits of the input's dtype.

    Args:
        spec: The input.
        rows: All its rows.
    """
    place, found = next((place, one) for place, one in _elements(rows, ()) if is_beyond(spec.dtype, one))
    return wrong_element(spec, found, position(place))


def _elements(value: Json, place: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Json]]:
    """Yield the elements of nested lists, each after its indices."""
    if not isinstance(value, list):
        yield place, value
        return
    for index, one in enumerate(value):
        yield from _elements(one, (*place, index))


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
