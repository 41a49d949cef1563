"""Limit the bytes of text in one call of a Servable, because runtimes hold the GIL while they copy texts.

Input texts are converted to Python strings and then to the runtime's own, and output texts the other way,
all with the GIL held. A request with too much text is therefore split like one with too many rows, and a
batch is closed before it exceeds the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from headrace.base.tensors import STRING, Buffer
from headrace.model.packed_columns import PackedColumns
from headrace.model.servable import Signature

if TYPE_CHECKING:
    from headrace.batching.plan import Room
    from headrace.batching.request import Request

MOST_BYTES = 4 * 1024 * 1024
"""The most bytes of text in a batch, unless a single row or a request that cannot be split has more."""

MOST_INLINE_BYTES = 256 * 1024
"""Batches with more bytes of text run in a thread: their duration was predicted from batches with fewer."""


def text_inputs(signature: Signature) -> tuple[int, ...]:
    """Return the indices of a signature's text inputs."""
    return tuple(index for index, spec in enumerate(signature.inputs) if spec.dtype == STRING)


def has_long_texts(requests: Sequence[Request]) -> bool:
    """Return whether requests together have too much text to be computed in the serving thread."""
    return sum([request.text_bytes for request in requests]) > MOST_INLINE_BYTES


def bytes_of(columns: Sequence[Buffer], inputs: Sequence[int]) -> int:
    """Return a request's bytes of text.

    Args:
        columns: The request's inputs.
        inputs: Indices of the text inputs.
    """
    if type(columns) is PackedColumns:
        return columns.text_bytes
    return sum([sum(map(len, np.ravel(columns[index]).tolist())) for index in inputs])


def row_counts(
    columns: Sequence[Buffer], inputs: Sequence[int], rows: int, most_rows: int, allowed: Sequence[int]
) -> list[int]:
    """Return the number of rows of each part when a request is split by its bytes of text.

    Args:
        columns: The request's inputs.
        inputs: Indices of the text inputs.
        rows: Number of rows of the request.
        most_rows: The most rows of a part.
        allowed: Allowed batch sizes; empty for any. A part of another size would be padded to the next
            larger one, which adds more text.
    """
    sizes = np.zeros(rows, np.int64)
    for index in inputs:
        lengths = np.fromiter(map(len, np.ravel(columns[index]).tolist()), np.int64)
        sizes += lengths.reshape(rows, -1).sum(axis=1)
    ends = sizes.cumsum()
    counts, start, before = list[int](), 0, 0
    while start < rows:
        fitting = int(np.searchsorted(ends, before + MOST_BYTES, "right")) - start
        count = min(max(1, fitting), most_rows, rows - start)
        if allowed:
            count = min(max((size for size in allowed if size <= count), default=allowed[0]), rows - start)
        counts.append(count)
        start += count
        before = int(ends[start - 1])
    return counts


class TextRoom:
    """A ``Room`` that limits the bytes of text in a batch."""

    __slots__ = ("_bytes", "_other")

    def __init__(self, other: Callable[[], Room] | None) -> None:
        """Begin an empty batch.

        Args:
            other: Factory of a further ``Room`` that must take each request as well; None for none.
        """
        self._bytes = 0
        self._other = other() if other is not None else None

    def takes(self, request: Request) -> bool:
        """Add a request if it fits; the first one with text is never too large."""
        total = self._bytes + request.text_bytes
        if self._bytes and total > MOST_BYTES:
            return False
        if self._other is not None and not self._other.takes(request):
            return False
        self._bytes = total
        return True
