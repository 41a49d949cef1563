"""Recognise messages that repeat except for their values, texts among them, by their outline.

``tensor_templates`` recognises messages of one length, and cuts their tensors out. Here, compiled kernels
recognise messages with texts of any length. The texts stay in the message, and no objects are made of them.
This serves only models that take packed texts: others need the objects anyway.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np

from headrace.base.tensors import STRING, Array
from headrace.frontends.wire.protobuf_cost import AT_ONCE_BYTES
from headrace.frontends.wire.tensor_templates import TEMPLATES_KEPT
from headrace.frontends.wire.tensors import (
    BYTES,
    SPREAD_BYTES,
    WireTensor,
    is_exact,
    is_spread_at_once,
    spread_inputs,
)
from headrace.model.packed_columns import HEAD, PLACE, PackedColumns, PackedInput
from headrace.model.servable import CheckedInputs, Signature

if TYPE_CHECKING:
    from types import ModuleType

_LARGEST_OUTLINE_BYTES = 4096
_MOST_VALUES = AT_ONCE_BYTES // 4

Value = TypeVar("Value")


class Found(NamedTuple):
    """Position of an input's values among those of its message.

    Attributes:
        first: Index of the first value.
        shape: Shape received.
        raw: Whether texts are in the raw form, in one value, each after its length.
    """

    first: int
    shape: tuple[int, ...]
    raw: bool = True


class _Template(NamedTuple, Generic[Value]):
    """The layout of messages with one outline."""

    value: Value
    plan: Array
    values: int
    places: int
    inputs: tuple[PackedInput, ...]


class TextTemplates(Generic[Value]):
    """The outlines that a handler has learnt, limited in number and size. Serving thread only."""

    def __init__(self, *form: Mapping[int, int]) -> None:
        """Start without outlines.

        Args:
            form: Roles of a message's fields by number: -1 for values, the number of a form for nested
                messages. All other fields are part of the outline. The first form is the message's own.
        """
        self.is_empty = True
        self._form_of = form
        self._known: dict[bytes, _Template[Value]] = {}

    def find(self, message: bytes) -> tuple[Value, PackedColumns] | None:
        """Recognise a message.

        Returns:
            The remembered value, and this message's inputs; None for a message that must be parsed.
        """
        if self.is_empty or len(message) > AT_ONCE_BYTES:
            return None
        data = np.frombuffer(message, np.uint8)
        written, _ = self._kernels.outline(data, self._form, self._outline, self._spans)
        template = self._known.get(bytes(self._view[: max(written, 0)]))
        return None if template is None else self._arranged(message, data, template)

    def first_value(self, message: bytes) -> bytes:
        """Return the first value of the message found last."""
        start, stop = self._spans[:2].tolist()
        return message[start:stop]

    def _arranged(
        self, message: bytes, data: Array, template: _Template[Value]
    ) -> tuple[Value, PackedColumns] | None:
        value, plan, _, size, inputs = template
        if size * PLACE.itemsize > len(message):  # not charged, so never larger than the message
            return None
        places = np.empty(size, PLACE)
        text_bytes = self._kernels.arrange(data, self._spans, plan, SPREAD_BYTES, places)
        if text_bytes < 0:
            return None
        return value, PackedColumns(message, places, inputs, text_bytes)

    def learn(self, message: bytes, checked: CheckedInputs, found: Mapping[str, Found], value: Value) -> None:
        """Remember a message that was parsed and checked, if its outline reproduces the checked inputs.

        Args:
            message: The whole message.
            checked: Result of decoding it.
            found: Position of each input's values.
            value: Value to remember: everything that the rest of the message determines.
        """
        if len(message) > AT_ONCE_BYTES:
            return
        self._get_ready()
        data = np.frombuffer(message, np.uint8)
        written, values = self._kernels.outline(data, self._form, self._outline, self._spans)
        template = _template(checked, found, value)
        if written < 0 or values < template.values:
            return
        arranged = self._arranged(message, data, template)
        if arranged is None or not _agree(arranged[1], checked):
            return
        if len(self._known) >= TEMPLATES_KEPT:  # bounds the memory, however many kinds of messages there are
            del self._known[next(iter(self._known))]  # the oldest only, or most would be parsed again
        self._known[bytes(self._view[:written])] = template
        self.is_empty = False

    def _get_ready(self) -> None:
        """Load the kernels and allocate the buffers, once, for the first message to learn."""
        if hasattr(self, "_kernels"):
            return
        # Models that take packed texts have loaded numba; no others need it.
        from headrace.model import packed_kernels  # noqa: PLC0415

        self._kernels: ModuleType = packed_kernels
        self._form = np.zeros((len(self._form_of), packed_kernels.FORM_FIELDS), np.int8)
        for level, actions in enumerate(self._form_of):
            for number, action in actions.items():
                self._form[level, number] = action
        self._outline = np.empty(_LARGEST_OUTLINE_BYTES, np.uint8)
        self._view = self._outline.data
        self._spans = np.empty(2 * (_MOST_VALUES + packed_kernels.DEPTH), np.int64)


def is_packable(signature: Signature, checked: CheckedInputs, by_name: Mapping[str, WireTensor]) -> bool:
    """Return whether similar requests can be taken without parsing, their texts packed.

    Args:
        signature: Signature of the model.
        checked: Result of decoding the request.
        by_name: Its tensors as received, by name.
    """
    layout = checked.layout
    if all(spec.dtype != STRING for spec in layout.specs):
        return False
    for spec, shape in zip(layout.specs, layout.shapes, strict=True):
        tensor = by_name[spec.name]
        if tensor.shape[1:] != shape or not tensor.shape or min(tensor.shape) < 1:
            return False
        if not (tensor.datatype == BYTES if spec.dtype == STRING else is_exact(spec, tensor)):
            return False
    spread = spread_inputs(signature, [by_name[spec.name].shape[0] for spec in layout.specs])
    return spread is not None and is_spread_at_once(spread, layout, checked.rows)


def _template(checked: CheckedInputs, found: Mapping[str, Found], value: Value) -> _Template[Value]:
    from headrace.model import packed_kernels  # noqa: PLC0415

    layout, _, rows = checked
    places = [found[spec.name] for spec in layout.specs]
    texts = [spec.dtype == STRING for spec in layout.specs]
    counts = [math.prod(one.shape) for one in places]
    at, values = HEAD + sum(texts), 0
    starts = [0] * len(texts)
    for index in sorted(range(len(texts)), key=lambda one: not texts[one]):  # texts come first
        starts[index] = at
        at += 2 * counts[index] if texts[index] else 2
    plan, inputs = [rows, sum(texts)], []
    for index, (spec, shape) in enumerate(zip(layout.specs, layout.shapes, strict=True)):
        first, (came, *_), raw = places[index]
        how, count = packed_kernels.BYTES, counts[index] * spec.dtype.itemsize
        if texts[index]:
            how, count = packed_kernels.RAW_TEXTS if raw else packed_kernels.SINGLE_TEXTS, counts[index]
        plan += [starts[index], first, count, how, came != rows]
        inputs.append(PackedInput(texts[index], starts[index], count, (rows, *shape), came))
        values = max(values, first + (count if how == packed_kernels.SINGLE_TEXTS else 1))
    return _Template(value, np.array(plan, np.int64), values, at, tuple(inputs))


def _agree(packed: PackedColumns, checked: CheckedInputs) -> bool:
    """Return whether a message's packed inputs equal its decoded inputs."""
    for spec, one, other in zip(checked.layout.specs, packed, checked.columns, strict=True):
        if spec.dtype != STRING:
            if bytes(one) != bytes(other):
                return False
        elif not np.array_equal(np.asarray(one), np.asarray(other)):
            return False
    return True
