"""A fast decoder for the most common REST body, rows of a known shape, by a type made for the signature.

It decodes as ``json_bodies`` does, only faster, and leaves invalid or unusual bodies to that module.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, starmap
from operator import attrgetter
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from headrace.base.errors import InvalidRequest
from headrace.base.tensors import STRING, Array
from headrace.frontends.tfserving.json_bodies import leaf_type
from headrace.frontends.wire.json_cost import has_slow_numbers
from headrace.frontends.wire.json_text import decode
from headrace.frontends.wire.request_budget import RequestBudget
from headrace.frontends.wire.time_slicer import TimeSlicer
from headrace.model.packed_columns import HEAD, PLACE, PackedColumns, PackedInput
from headrace.model.servable import CheckedInputs, RowLayout, Signature, TensorSpec

# Packing of rows with texts, as JSON's decoder returns them, without an object array for each input.


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


_PART_BYTES = 32 * 1024
_SLOW_BYTES = 16 * 1024
_EDGE_BYTES = 1024
_NAME = rb'"signature_name"\s*:\s*"([^"\\]*)"'
_HEAD = re.compile(rb"\s*\{\s*(?:" + _NAME + rb'\s*,\s*)?"instances"\s*:\s*\[\s*')
_TAIL = re.compile(rb"\](?:\s*,\s*" + _NAME + rb")?\s*\}\s*\Z")
_NAMED_ROW_END = re.compile(rb"\}\s*,")
_UNUSUAL = (
    InvalidRequest,
    msgspec.DecodeError,
    UnicodeDecodeError,
    RecursionError,
    UnicodeEncodeError,
    StructError,
    OverflowError,
)

_tuple = tuple.__new__
_join = b"".join

_EACH: tuple[Any, ...] = (map, starmap)


class RowsDecoder:
    """Decodes ``{"instances": [...]}`` for one signature.

    Attributes:
        signature: The signature.
    """

    __slots__ = (
        "_columns",
        "_decode",
        "_decode_rows",
        "_layout",
        "_may_be_bare",
        "_names",
        "_raw_names",
        "_row_end",
        "_row_type",
        "_texts",
        "_values_a_row",
        "signature",
    )

    def __init__(self, signature: Signature) -> None:
        """Make the type; only for signatures that ``fits`` accepts.

        Args:
            signature: The signature of the rows.
        """
        fields = [(f"input{index}", _type(spec)) for index, spec in enumerate(signature.inputs)]
        renamed = {name: spec.name for (name, _), spec in zip(fields, signature.inputs, strict=True)}
        row: Any = msgspec.defstruct("Row", fields, rename=renamed, forbid_unknown_fields=True, gc=False)
        self._may_be_bare = len(fields) == 1  # a single input needs no name
        one = row | fields[0][1] if self._may_be_bare else row
        body: Any = msgspec.defstruct(
            "Body",
            [("instances", list[one]), ("signature_name", str, "")],  # type: ignore[valid-type]
            forbid_unknown_fields=True,
            gc=False,
        )
        self._decode = _decoder(body)
        self._decode_rows = _decoder(list[one])  # type: ignore[valid-type]
        rank = len(signature.inputs[0].shape)
        self._row_end = re.compile(rb"\]\s*" * rank + rb",")
        names = 2 * len(fields) if len(fields) > 1 else 0
        self._values_a_row = 1 + names + sum(_inner_values(spec) for spec in signature.inputs)
        self._row_type = row
        self.signature = signature
        self._layout = signature.layout(tuple(_fixed(spec) for spec in signature.inputs))
        getters = [attrgetter(name) for name, _ in fields]
        packers = [None if spec.dtype == STRING else _packer(spec) for spec in signature.inputs]
        self._columns = [(get, *pack) for get, pack in zip(getters, packers, strict=True) if pack]
        self._texts = TextRowsPacker(self._layout, getters, packers) if None in packers else None
        self._names = ("", signature.name)
        self._raw_names = {b"", signature.name.encode()}

    @staticmethod
    def fits(signature: Signature, *, packs: bool = False) -> bool:
        """Return whether all inputs are numbers or booleans of known shape, or simple texts.

        Args:
            signature: The signature of the rows.
            packs: Whether the model accepts packed texts.
        """
        if not all(all(spec.shape) for spec in signature.inputs):
            return False
        texts = [spec for spec in signature.inputs if spec.dtype == STRING]
        # With a single input, rows may be values instead of objects.
        are_simple = packs and len(signature.inputs) > 1 and all(len(spec.shape) < 2 for spec in texts)
        return not texts or are_simple

    def decode(self, body: bytes) -> CheckedInputs | None:
        """Decode a body; return None for one that ``json_bodies`` must decode.

        Args:
            body: The request's body.
        """
        try:
            decoded = self._decode(body)
            rows = decoded.instances
            if not rows or decoded.signature_name not in self._names:
                return None
            columns = self._packed(rows) if self._texts is None else self._texts.pack(rows)
        except _UNUSUAL:
            return None
        # A named tuple made without its slow constructor.
        return None if columns is None else _tuple(CheckedInputs, (self._layout, columns, len(rows)))

    async def decode_in_slices(
        self, body: bytes, budget: RequestBudget, slicer: TimeSlicer
    ) -> dict[str, Array] | None:
        """Decode a large body with other work in between; return None as ``decode`` does.

        The body is cut at commas that may separate rows. Each part must be a list of rows when brackets are
        added. So the first comma is known to separate two rows, and in turn each of the following ones.

        Args:
            body: The request's body.
            budget: Charged with the values, and the arrays made of them.
            slicer: The time slicer, held by the caller.

        Raises:
            TooLarge: The body has too many values.
            Overloaded: The byte budget of all requests is exhausted.
        """
        if self._texts is not None:
            return None
        head, tail = _HEAD.match(body, 0, _EDGE_BYTES), _TAIL.search(body, max(0, len(body) - _EDGE_BYTES))
        if head is None or tail is None or {*head.groups(b""), *tail.groups(b"")} - self._raw_names:
            return None
        start, stop, found = head.end(), tail.start(), list[tuple[bytes, ...]]()
        row_end = _NAMED_ROW_END if body[start : start + 1] == b"{" else self._row_end
        while start <= stop:
            cut = stop
            if stop - start > 2 * _PART_BYTES:
                end = row_end.search(body, start + _PART_BYTES, start + 2 * _PART_BYTES)
                if end is None:
                    return None
                cut = end.end() - 1
            columns = self._part(body[start:cut], budget)
            if columns is None:
                return None
            found.append(columns)
            start = cut + 1
            await slicer.breathe()
        whole = zip(self.signature.inputs, zip(*found, strict=True), strict=True)
        return {spec.name: _joined(spec, parts) for spec, parts in whole}

    def _part(self, text: bytes, budget: RequestBudget) -> tuple[bytes, ...] | None:
        try:
            rows = self._decode_rows(b"[" + text + b"]")
            columns = self._packed(rows) if rows else None
        except _UNUSUAL:
            return None
        if columns is not None:
            budget.values(len(rows) * self._values_a_row, "body")
            budget.hold(sum(map(len, columns)))
        return columns

    def _packed(self, rows: Sequence[Any]) -> tuple[bytes, ...] | None:
        if self._may_be_bare:
            kinds = {*map(type, rows)}
            if self._row_type not in kinds:
                _, each, pack = self._columns[0]
                return (_join(each(pack, rows)),)
            if len(kinds) > 1:
                return None
        return tuple([_join(each(pack, map(get, rows))) for get, each, pack in self._columns])


def _decoder(kind: Any) -> Callable[[bytes], Any]:
    at_once = msgspec.json.Decoder(kind).decode

    def decode_any(text: bytes) -> Any:
        if not has_slow_numbers(text):
            return at_once(text)
        if len(text) > _SLOW_BYTES:
            raise msgspec.DecodeError("its numbers take long")
        return msgspec.convert(decode(text), kind)

    return decode_any


def _joined(spec: TensorSpec, parts: Sequence[bytes]) -> Array:
    return np.frombuffer(b"".join(parts), spec.dtype).reshape(-1, *_fixed(spec))


def _inner_values(spec: TensorSpec) -> int:
    """Return the number of values in one row's lists, nested lists included."""
    sizes = _fixed(spec)
    return sum(math.prod(sizes[:level]) for level in range(1, len(sizes) + 1))


def _fixed(spec: TensorSpec) -> tuple[int, ...]:
    return tuple(size for size in spec.shape if size is not None)


def _type(spec: TensorSpec) -> Any:
    found = str if spec.dtype == STRING else leaf_type(spec.dtype)
    for size in reversed(_fixed(spec)):
        length = msgspec.Meta(min_length=size, max_length=size)
        found = Annotated[list[found], length]  # type: ignore[valid-type]
    return found


def _packer(spec: TensorSpec) -> Packer:
    """Return what iterates over rows and what packs each; up to one axis, neither calls Python code."""
    # NumPy's codes for long and unsigned long mean eight bytes here, but four in struct.
    code = {"l": "q", "L": "Q"}.get(spec.dtype.char, spec.dtype.char)
    pack = Struct(f"<{math.prod(_fixed(spec))}{code}").pack
    rank = len(spec.shape)
    if rank < len(_EACH):
        return _EACH[rank], pack
    return map, lambda value: pack(*_flattened(value, rank))


def _flattened(row: list[Any], rank: int) -> list[Any]:
    for _ in range(rank - 1):
        row = list(chain.from_iterable(row))
    return row
