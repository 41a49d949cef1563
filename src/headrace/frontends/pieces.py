"""An answer in pieces that are never joined: what is large is sent from where it lies."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headrace.tensors import Array

SLICE_BYTES = 256 * 1024
"""How much of an answer is copied, and given to the transport, at once."""


class Pieces:
    """A serialized message whose large parts are arrays.

    Attributes:
        parts: In order: bytes, or arrays that are C-contiguous and stay as they are.
    """

    __slots__ = ("_size", "parts")

    def __init__(self, parts: list[bytes | Array]) -> None:
        """Answer with these parts, one after the other."""
        self.parts = parts
        self._size = sum(len(part) if isinstance(part, bytes) else part.nbytes for part in parts)

    def __len__(self) -> int:
        """How many bytes all parts have."""
        return self._size


def joined(answer: bytes | Pieces) -> bytes:
    """The whole of an answer: for transports that take nothing else, and for answers that are small."""
    return (
        answer
        if isinstance(answer, bytes)
        else b"".join([part if isinstance(part, bytes) else part.tobytes() for part in answer.parts])
    )


def slices(answer: bytes | Pieces) -> Iterator[bytes]:
    """Cut an answer into slices that are sent one after the other; each is copied when its turn comes."""
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
