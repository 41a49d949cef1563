"""Answers in pieces that need not be joined, so that large arrays are sent without a copy of the whole."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headrace.base.tensors import Array

SLICE_BYTES = 256 * 1024
"""Size of the slices in which an answer is copied and given to the transport."""


class Pieces:
    """A serialized message whose large parts are arrays.

    Attributes:
        parts: The parts in order: bytes, or C-contiguous arrays, which must not change.
    """

    __slots__ = ("_size", "parts")

    def __init__(self, parts: list[bytes | Array]) -> None:
        """Store the parts."""
        self.parts = parts
        self._size = sum(len(part) if isinstance(part, bytes) else part.nbytes for part in parts)

    def __len__(self) -> int:
        """Return the size of all parts in bytes."""
        return self._size


class Following(bytes):
    """A response of a stream to a message that has had one: a further part of its answer."""

    __slots__ = ()


def joined(answer: bytes | Pieces) -> bytes:
    """Return an answer as bytes, for transports that accept only bytes and for small answers."""
    return (
        answer
        if isinstance(answer, bytes)
        else b"".join([part if isinstance(part, bytes) else part.tobytes() for part in answer.parts])
    )


def slices(answer: bytes | Pieces) -> Iterator[bytes]:
    """Yield an answer in slices, each copied when it is requested."""
    waiting: list[bytes] = []
    room = SLICE_BYTES
    for part in answer.parts if isinstance(answer, Pieces) else [answer]:
        view = memoryview(part if isinstance(part, bytes) else part.reshape(-1).view(np.uint8).data)
        start = 0
        while start < len(view):
            piece = view[start : start + room]
            start += len(piece)
            room -= len(piece)
            waiting.append(bytes(piece))
            if not room:
                yield b"".join(waiting)
                waiting.clear()
                room = SLICE_BYTES
    if waiting:
        yield b"".join(waiting)
