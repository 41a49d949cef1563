"""A request larger than a batch may be is cut into parts, batched like any others, and joined again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headrace.batching.joining import cut
from headrace.batching.request import Answer, BatchOutputs, Outcome, Request


def split(request: Request, max_rows: int) -> list[Request]:
    """Cut a request into parts of at most ``max_rows`` rows.

    The parts answer the request together, once the last of them is answered; the first error of a part is the
    request's error, and the other parts are then no longer wanted.
    """
    collector = _Collector(request)
    parts: list[Request] = []
    for start in range(0, request.rows, max_rows):
        stop = min(start + max_rows, request.rows)
        part = Request(
            request.layout,
            cut(request.layout, request.columns, start, stop),
            stop - start,
            collector.answer_of(len(parts)),
            deadline=request.deadline,
            waiter=collector,
        )
        parts.append(part)
    collector.expect(len(parts))
    return parts


class _Collector:
    """Gathers the parts' answers; a Waiter of each part, because a part is wanted as long as the whole is."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._answers: list[Answer | None] = []

    def expect(self, parts: int) -> None:
        self._answers = [None] * parts

    def done(self) -> bool:
        return not self._request.wanted

    def answer_of(self, index: int) -> Callable[[Outcome], None]:
        def answer(outcome: Outcome) -> None:
            if not isinstance(outcome, Answer):
                self._request.settle(outcome)
                return
            self._answers[index] = outcome
            answers = [part for part in self._answers if part is not None]
            if len(answers) == len(self._answers):
                self._request.settle(_joined(answers))

        return answer


def _joined(answers: list[Answer]) -> Answer:
    names = answers[0].outputs.tensors
    outputs = {name: np.concatenate([answer.tensor(name) for answer in answers]) for name in names}
    rows = sum(answer.rows for answer in answers)
    return Answer(BatchOutputs(outputs), 0, rows, answers[-1].timings)
