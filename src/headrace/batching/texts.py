"""How many bytes of text one call of a Servable gets: runtimes copy texts while nothing else goes on.

Texts become Python's strings, then the runtime's own, and the answer's the same way back, all with Python's
lock held. So a request with many megabytes of them is cut as one with too many rows is, and a batch ends
before it has more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from headrace.packed.columns import PackedColumns
from headrace.servable import Signature
from headrace.tensors import STRING, Buffer

if TYPE_CHECKING:
    from headrace.batching.plan import Room
    from headrace.batching.request import Request

MOST_BYTES = 4 * 1024 * 1024
"""What a batch may have of texts, unless one row alone has more."""

MOST_INLINE_BYTES = 256 * 1024
"""With more of them a batch runs in a thread: its time was predicted from batches with fewer."""


def text_inputs(signature: Signature) -> tuple[int, ...]:
    """Which inputs of a signature are texts."""
    return tuple(index for index, spec in enumerate(signature.inputs) if spec.dtype == STRING)


def has_long_texts(requests: Sequence[Request]) -> bool:
    """Whether requests have too much text together to be computed in the serving thread."""
    return sum([request.text_bytes for request in requests]) > MOST_INLINE_BYTES


def bytes_of(columns: Sequence[Buffer], inputs: Sequence[int]) -> int:
    """How many bytes of text a request has.

    Args:
        columns: Its inputs.
        inputs: Which of them are texts.
    """
    if type(columns) is PackedColumns:
        return columns.text_bytes
    return sum([sum(map(len, np.ravel(columns[index]).tolist())) for index in inputs])


def row_counts(
    columns: Sequence[Buffer], inputs: Sequence[int], rows: int, most_rows: int, allowed: Sequence[int]
) -> list[int]:
    """Cut rows by their texts: how many rows each part has.

    Args:
        columns: The request's inputs.
        inputs: Which of them are texts.
        rows: How many rows it has.
        most_rows: The most rows of a part.
        allowed: The only sizes that a batch may have; empty for any. A part of another size would be filled
            up to the next one, with more texts.
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
    """Ends a batch before it has too many bytes of text; a ``Room``."""

    __slots__ = ("_bytes", "_other")

    def __init__(self, other: Callable[[], Room] | None) -> None:
        """Start with none.

        Args:
            other: Makes what the batch has room for beside its texts.
        """
        self._bytes = 0
        self._other = other() if other is not None else None

    def takes(self, request: Request) -> bool:
        """Add a request if its texts fit, or if it is the first."""
        total = self._bytes + request.text_bytes
        if self._bytes and total > MOST_BYTES:
            return False
        if self._other is not None and not self._other.takes(request):
            return False
        self._bytes = total
        return True
