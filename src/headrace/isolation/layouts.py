"""Batches of a layout that came before are written to where those lay: their head is not made and read again.

Each side of a slot remembers the layouts that it has told the other of, by number, and those that it was told
of. Arrays of numbers only: texts differ in length each time.
"""

from __future__ import annotations

from sys import getrefcount
from typing import NamedTuple

import numpy as np

from headrace.isolation.area import Area
from headrace.isolation.messages import KNOWN, Head, Kind, Note, end_of, start_of, write
from headrace.packed.columns import PackedTensors
from headrace.tensors import STRING, Array, Tensors

_MOST = 512
"""How many layouts are remembered; others have a head each time."""


class Known(NamedTuple):
    """A layout.

    Attributes:
        number: What it is called.
        about: As in ``Head``.
        tensors: The arrays where they lie.
        views: The same.
        end: Where the area is free behind them.
        references: How many references the arrays have while nobody holds on to one.
    """

    number: int
    about: str
    tensors: dict[str, Array]
    views: list[Array]
    end: int
    references: int

    @property
    def is_retained(self) -> bool:
        """Whether somebody holds on to one of the arrays."""
        return sum(map(getrefcount, self.views)) > self.references


class Layouts:
    """What one side of a slot knows.

    Attributes:
        told: The layouts that the other side has told of, by number.
    """

    def __init__(self) -> None:
        """Know none."""
        self.told: dict[int, Known] = {}
        self._own: dict[object, Known] = {}

    def write(self, area: Area, floor: int, kind: Kind, about: str, tensors: Tensors) -> Note:
        """Put tensors into an area, as ``messages.write`` does, shortly where their layout is known.

        Args:
            area: It grows if it must.
            floor: Where it is free from.
            kind: What the message is about.
            about: What its head says besides.
            tensors: What it says.

        Raises:
            TooLarge: The area may not become that large.
            ModelError: A tensor is of a dtype that cannot be passed on.
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
        """Remember the layout of a message that came, if it has a number.

        Raises:
            ValueError: It is one that nobody may tell of.
        """
        if head.layout >= 0 and len(self.told) < _MOST:
            if any(piece.dtype == STRING.str or not piece.size for piece in head.pieces):
                raise ValueError("a layout of something else than numbers")  # objects are pointers
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
