"""Split requests that are too large for a batch into parts, and join the parts' answers."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable

import numpy as np

from headrace.base.errors import Cancelled, ModelError, TooLarge
from headrace.base.tensors import STRING, Array
from headrace.batching.concatenation import MOST_FILLED_BYTES, MOST_FILLED_TIMES, cut
from headrace.batching.request import Answer, BatchOutputs, Request, Settlement
from headrace.model.servable import Shape

_log = logging.getLogger(__name__)

_LEFT = Cancelled("the caller no longer waits for the answer")


def parts_within(rows: int, max_rows: int) -> list[int]:
    """Return the number of rows of each part if only rows are limited."""
    return [min(max_rows, rows - start) for start in range(0, rows, max_rows)]


def split(request: Request, counts: Iterable[int], *, fill: bool = False) -> list[Request]:
    """Split a request into parts.

    The request is answered when the last part is. The first error of a part becomes the request's error, and
    the other parts are then abandoned.

    Args:
        request: The request to split.
        counts: Number of rows of each part.
        fill: Whether to pad the answer's rows with zeros or empty strings to the longest part's. Parts that
            share batches with longer rows get longer rows back (``pad_variable_length``).
    """
    collector = _Collector(request, fill=fill)
    parts: list[Request] = []
    stop = 0
    for count in counts:
        start, stop = stop, stop + count
        part = _Part(
            request.layout,
            cut(request.layout, request.columns, start, stop),
            count,
            collector.answer_of(len(parts)),
            deadline=request.deadline,
            waiter=collector,
        )
        part.whole = request
        parts.append(part)
    collector.expect(len(parts))
    return parts


class _Part(Request):
    """A part of a request."""

    __slots__ = ("whole",)

    whole: Request

    def settle(self, settlement: Settlement) -> bool:
        wanted = super().settle(settlement)
        if not wanted and not self.whole.settled:
            # No caller waits, but the whole must be settled. It cannot be settled with a part's answer.
            self.whole.settle(_LEFT if isinstance(settlement, Answer) else settlement)
        return wanted


class _Collector:
    """Gathers the parts' answers. It is each part's Waiter, so a part is wanted as long as the whole is."""

    def __init__(self, request: Request, *, fill: bool) -> None:
        self._request = request
        self._fill = fill
        self._answers: dict[int, Answer] = {}
        self._parts = 0

    def expect(self, parts: int) -> None:
        self._parts = parts

    def done(self) -> bool:
        return not self._request.wanted

    def answer_of(self, index: int) -> Callable[[Settlement], None]:
        def answer(settlement: Settlement) -> None:
            if not isinstance(settlement, Answer):
                self._request.settle(settlement)
                return
            self._answers[index] = settlement
            if len(self._answers) == self._parts:
                answers = [self._answers[part] for part in range(self._parts)]
                self._request.settle(_joined_or_error(answers, fill=self._fill))

        return answer


def _joined_or_error(answers: list[Answer], *, fill: bool) -> Settlement:
    try:
        return _joined(answers, fill=fill)
    except Exception as error:  # noqa: BLE001 - the caller must get an error
        _log.exception("the parts of an answer could not be joined")
        return ModelError(
            f"the parts of the answer could not be joined ({type(error).__name__}); send fewer rows at once"
        )


def _joined(answers: list[Answer], *, fill: bool) -> Settlement:
    outputs = {}
    for name in answers[0].outputs.tensors:
        parts = [answer.tensor(name) for answer in answers]
        shapes = {part.shape[1:] for part in parts}
        if len(shapes) > 1:
            if not fill or len({len(shape) for shape in shapes}) > 1:
                return ModelError(
                    f"the request was split into several batches, and their rows of {name!r} have different "
                    f"shapes; send fewer rows at once"
                )
            longest = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
            filled = sum(map(len, parts)) * math.prod(longest) * parts[0].itemsize
            if filled > max(MOST_FILLED_BYTES, MOST_FILLED_TIMES * sum(part.nbytes for part in parts)):
                return TooLarge(
                    f"output {name!r} would take {filled} bytes with all rows padded to the longest one; "
                    f"send fewer rows at once"
                )
            parts = [_filled(part, longest) for part in parts]
        outputs[name] = np.concatenate(parts)
    rows = sum(answer.rows for answer in answers)
    return Answer(BatchOutputs(outputs, answers[-1].origin), 0, rows, answers[-1].timings)


def _filled(part: Array, shape: Shape) -> Array:
    """Return the rows padded to a shape, as ``join_padding_rows`` pads the inputs."""
    filled = np.full((len(part), *shape), b"" if part.dtype == STRING else 0, part.dtype)
    filled[tuple(map(slice, part.shape))] = part
    return filled
