"""Packing of rows with texts, as JSON's decoder returns them, without an object array for each input."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from headrace.base.tensors import STRING
from headrace.model.packed_columns import HEAD, PLACE, PackedColumns, PackedInput
from headrace.model.servable import RowLayout

_FORMS_KEPT = 512

Get = Callable[[Any], Any]
Packer = tuple[Callable[..., Iterable[bytes]], Callable[..., bytes]]
"""How to iterate over a column's values, and what packs each: a number, or the numbers of a list."""


class _Form(NamedTuple):
    """The layout of requests with the same number of rows.

    Attributes:
        inputs: The inputs.
        numbers: Size of each numeric input's values in bytes.
    """

    inputs: tuple[PackedInput, ...]
    numbers: tuple[int, ...]


class TextRowsPacker:
    """Packs rows for one layout, with the same result as for a message with these texts."""

    __slots__ = ("_forms", "_layout", "_numbers", "_texts")

    def __init__(self, layout: RowLayout, getters: Sequence[Get], packers: Sequence[Packer | None]) -> None:
        """Prepare the parts that all requests share.

        Args:
            layout: Layout of a row in memory; texts have at most one axis besides rows.
            getters: Get each input from a row.
            packers: Convert each input's values to bytes; None for texts.
        """
        self._layout = layout
        inputs = list(zip(getters, packers, layout.shapes, strict=True))
        self._texts = [(get, bool(shape)) for get, packer, shape in inputs if packer is None]
        self._numbers = [(get, *packer) for get, packer, _ in inputs if packer is not None]
        self._forms: dict[int, _Form] = {}

    def pack(self, rows: Sequence[Any]) -> PackedColumns:
        """Pack rows.

        Raises:
            UnicodeEncodeError: A text contains half a surrogate pair.
        """
        texts: list[str] = []
        for get, several in self._texts:
            column = map(get, rows)
            texts += chain.from_iterable(column) if several else column
        form = self._forms.get(len(rows)) or self._form(len(rows))
        message, sizes = _encoded(texts)
        text_bytes, head = len(message), HEAD + len(self._texts)
        starts = head + 2 * len(texts)
        places = np.empty(starts + 2 * len(form.numbers), PLACE)
        ends = np.cumsum(np.array(sizes, PLACE), dtype=PLACE)
        places[head + 1 : starts : 2] = sizes
        places[head:starts:2] = ends - places[head + 1 : starts : 2]
        if self._numbers:
            columns = [each(pack, map(get, rows)) for get, each, pack in self._numbers]
            message += b"".join(chain.from_iterable(columns))
            stops = text_bytes + np.cumsum(form.numbers)
            places[starts + 1 :: 2] = stops
            places[starts::2] = stops - form.numbers
        places[:HEAD] = len(places), len(rows), len(message)
        places[HEAD:head] = len(rows)
        return PackedColumns(message, places, form.inputs, text_bytes)

    def _form(self, rows: int) -> _Form:
        """Return the form of requests with this number of rows: the same object each time."""
        layout = self._layout
        specs = list(zip(layout.specs, layout.shapes, layout.row_bytes, strict=True))
        at, inputs, numbers = HEAD + len(self._texts), dict[str, PackedInput](), list[int]()
        for spec, shape, _ in specs:
            if spec.dtype == STRING:
                count = rows * math.prod(shape)
                inputs[spec.name] = PackedInput(True, at, count, (rows, *shape), rows)
                at += 2 * count
        for spec, shape, row_bytes in specs:
            if spec.dtype != STRING:
                inputs[spec.name] = PackedInput(False, at, rows * row_bytes, (rows, *shape), rows)
                numbers.append(rows * row_bytes)
                at += 2
        if len(self._forms) >= _FORMS_KEPT:
            self._forms.clear()
        found = self._forms[rows] = _Form(tuple(inputs[spec.name] for spec, _, _ in specs), tuple(numbers))
        return found


def _encoded(texts: list[str]) -> tuple[bytes, list[int]]:
    """Return the UTF-8 bytes of all texts, concatenated, and the size of each."""
    joined = "".join(texts)
    if joined.isascii():
        return joined.encode(), list(map(len, texts))
    parts = [text.encode() for text in texts]
    return b"".join(parts), list(map(len, parts))
