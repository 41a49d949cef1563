"""Cache of message layouts: a batch with a known layout is written without encoding and decoding its head.

Each side of a slot keeps the layouts that it has announced to the other side, and those announced to it, by
number. Only numeric arrays are cached, because the lengths of texts differ each time.
"""

from __future__ import annotations

from sys import getrefcount
from typing import NamedTuple

import numpy as np

from headrace.base.tensors import STRING, Array, Tensors
from headrace.isolation.messages import KNOWN, Head, Kind, Note, end_of, start_of, write
from headrace.isolation.shared_area import Area
from headrace.model.packed_columns import PackedTensors

_MOST = 512
"""Maximum number of cached layouts; a batch with any other layout is sent with its head."""


class Known(NamedTuple):
    """A cached layout.

    Attributes:
        number: Number of the layout.
        about: As in ``Head``.
        tensors: Views of the arrays in the area, by name.
        views: The same views as a list.
        end: Offset of the free space behind them in the area.
        references: Total number of references to the views while nothing else refers to them.
    """

    number: int
    about: str
    tensors: dict[str, Array]
    views: list[Array]
    end: int
    references: int

    @property
    def is_retained(self) -> bool:
        """Whether a reference to one of the views is held elsewhere."""
        return sum(map(getrefcount, self.views)) > self.references


class Layouts:
    """The layouts known to one side of a slot.

    Attributes:
        told: Layouts announced by the other side, by number.
    """

    def __init__(self) -> None:
        """Begin without layouts."""
        self.told: dict[int, Known] = {}
        self._own: dict[object, Known] = {}

    def write(self, area: Area, floor: int, kind: Kind, about: str, tensors: Tensors) -> Note:
        """Write tensors to an area like ``messages.write``, without a head if their layout is known.

        Args:
            area: The area; grows if necessary.
            floor: Offset of its free space.
            kind: Kind of the message.
            about: As in ``Head``.
            tensors: The tensors.

        Raises:
            TooLarge: The area would exceed its limit.
            ModelError: A tensor has a dtype that cannot be passed on.
        """
        if isinstance(tensors, PackedTensors):
            return write(area, floor, kind, about, tensors)[0]
        key = (kind, floor, about, *[(name, one.shape, one.dtype.char) for name, one in tensors.items()])
        known = self._own.get(key)
        if known is not None:
            for view, array in zip(known.views, tensors.values(), strict=True):
                np.copyto(view, array)
            return Note(kind | KNOWN, known.number, 0, 0)
        number = len(self._own) if len(self._own) < _MOST and _is_plain(tensors) else -1
        note, head = write(area, floor, kind, about, tensors, layout=number)
        if number >= 0:
            self._own[key] = _known(area, head, note)
        return note

    def hear(self, area: Area, head: Head, note: Note) -> None:
        """Store the layout of a received message, if it has a number.

        Raises:
            ValueError: The layout has texts or empty arrays.
        """
        if head.layout >= 0 and len(self.told) < _MOST:
            if any(piece.dtype == STRING.str or not piece.size for piece in head.pieces):
                raise ValueError("expected a layout of numbers only")  # object arrays hold pointers
            self.told[head.layout] = known = _known(area, head, note)
            for view in known.views:
                view.flags.writeable = False


def _is_plain(tensors: Tensors) -> bool:
    return all(array.dtype != STRING and array.size for array in tensors.values())


def _known(area: Area, head: Head, note: Note) -> Known:
    start = start_of(note)
    views = [np.ndarray(piece.shape, piece.dtype, area.view, start + piece.offset) for piece in head.pieces]
    tensors = dict(zip([piece.name for piece in head.pieces], views, strict=True))
    references = sum(map(getrefcount, views))
    return Known(head.layout, head.about, tensors, views, end_of(head, note), references)
