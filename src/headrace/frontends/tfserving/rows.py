"""The commonest REST body, rows of numbers of known shape, decoded by a type made for the signature.

What it takes it decodes as ``bodies`` would, only faster; what is wrong, or merely unusual, it leaves to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Annotated, Any

import msgspec

from headrace.frontends.tfserving.bodies import leaf_type
from headrace.servable import CheckedInputs, Signature, TensorSpec
from headrace.tensors import STRING

Pack = Callable[[Any], bytes]


class RowsDecoder:
    """Decodes ``{"instances": [...]}`` for one signature."""

    __slots__ = ("_columns", "_decode", "_layout", "_names", "_row_type", "_signature")

    def __init__(self, signature: Signature) -> None:
        """Make the type; call it for signatures that ``fits``.

        Args:
            signature: What the rows shall be.
        """
        fields = [(f"input{index}", _type(spec)) for index, spec in enumerate(signature.inputs)]
        renamed = {name: spec.name for (name, _), spec in zip(fields, signature.inputs, strict=True)}
        row: Any = msgspec.defstruct("Row", fields, rename=renamed, forbid_unknown_fields=True, gc=False)
        one = row if len(fields) > 1 else row | fields[0][1]  # a single input needs no name
        body: Any = msgspec.defstruct(
            "Body",
            [("instances", list[one]), ("signature_name", str, "")],  # type: ignore[valid-type]
            forbid_unknown_fields=True,
            gc=False,
        )
        self._decode = msgspec.json.Decoder(body).decode
        self._row_type = row
        self._columns = tuple(
            (attrgetter(name), _packer(spec))
            for (name, _), spec in zip(fields, signature.inputs, strict=True)
        )
        self._signature = signature
        self._layout = signature.layout(tuple(_fixed(spec) for spec in signature.inputs))
        self._names = ("", signature.name)

    @staticmethod
    def fits(signature: Signature) -> bool:
        """Whether all inputs are numbers or booleans of known shape."""
        return all(spec.dtype != STRING and all(spec.shape) for spec in signature.inputs)

    def decode(self, body: bytes) -> CheckedInputs | None:
        """Decode a body; None for one that must be looked at more closely.

        Args:
            body: The request's body.
        """
        try:
            decoded = self._decode(body)
            rows = decoded.instances
            if not rows or decoded.signature_name not in self._names:
                return None
            columns = self._packed(rows)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, StructError, OverflowError):
            return None
        self._signature.check_rows(len(rows))
        return None if columns is None else CheckedInputs(self._layout, columns, len(rows))

    def _packed(self, rows: Sequence[Any]) -> tuple[bytes, ...] | None:
        if len(rows) == 1 and type(rows[0]) is self._row_type:
            return tuple([pack(get(rows[0])) for get, pack in self._columns])
        named = [type(row) is self._row_type for row in rows]
        if all(named):
            return tuple([b"".join([pack(one) for one in map(get, rows)]) for get, pack in self._columns])
        if any(named):
            return None
        return (b"".join([self._columns[0][1](row) for row in rows]),)


def _fixed(spec: TensorSpec) -> tuple[int, ...]:
    return tuple(size for size in spec.shape if size is not None)


def _type(spec: TensorSpec) -> Any:
    found = leaf_type(spec.dtype)
    for size in reversed(_fixed(spec)):
        length = msgspec.Meta(min_length=size, max_length=size)
        found = Annotated[list[found], length]  # type: ignore[valid-type]
    return found


def _packer(spec: TensorSpec) -> Pack:
    """What turns one row's value into bytes."""
    # NumPy's characters for long and unsigned long mean eight bytes here, and four to struct.
    code = {"l": "q", "L": "Q"}.get(spec.dtype.char, spec.dtype.char)
    pack = Struct(f"<{math.prod(_fixed(spec))}{code}").pack
    match len(spec.shape):
        case 0:
            return pack
        case 1:
            return lambda row: pack(*row)
        case rank:
            return lambda row: pack(*_flattened(row, rank))


def _flattened(row: list[Any], rank: int) -> list[Any]:
    for _ in range(rank - 1):
        row = list(chain.from_iterable(row))
    return row
