"""What happens to a batch in whichever thread it runs.

The rows are joined, the Servable is called, and if that fails, the batch's requests answer for themselves.
Whatever a model's own code raises is its failure: let through, it would end the thread. Nothing here changes
a Batcher: what came of a batch is written into it, and read when it is finished.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Token
from itertools import accumulate

from headrace import logs
from headrace.batching.batch import Batch, declared_outputs, headrace_error, whole_outputs
from headrace.batching.joining import join, join_one, join_padding_rows, padded_size
from headrace.batching.request import (
    Answer,
    BatchOutputs,
    Origin,
    Request,
    Settlement,
    Timings,
    WholeAnswer,
)
from headrace.config import BatchingPolicy
from headrace.errors import DeadlineExceeded, InvalidRows, ModelDied
from headrace.servable import Servable, Signature, takes_packed

EXPIRED = "the deadline passed before the model had answered"


class Computing:
    """Calls a Servable for batches.

    Attributes:
        answer: What a request is answered with: its rows of a batch, or all that the model gave.
    """

    def __init__(
        self,
        servable: Servable,
        policy: BatchingPolicy,
        now: Callable[[], float],
        origin: Origin,
        is_the_callers: Callable[[BaseException], bool] = lambda error: False,
    ) -> None:
        """Call a Servable.

        Args:
            servable: What answers the batches.
            policy: Whether rows of different shapes are filled up.
            now: The monotonic time.
            origin: What the answers say who gave them.
            is_the_callers: Tells whether an error is not the model's but meant for the thread that calls
                it: such a one goes on its way.
        """
        self._servable = servable
        self._takes_packed = takes_packed(servable)
        # One that stands before a model says more than that model's outputs: what it has looked up.
        declared = declared_outputs if policy.enabled else whole_outputs
        self._declared = getattr(servable, "declared_outputs", declared)
        self.answer: type[Answer] = Answer if policy.enabled else WholeAnswer
        # One that counts what it looks up must know which rows only fill a batch up.
        self._predict_padded = getattr(servable, "predict_padded", None)
        self._pads = policy.pad_variable_length
        self._now = now
        self._origin = origin
        self._is_the_callers = is_the_callers

    def compute(self, batch: Batch) -> None:
        """Call the Servable; if the batch fails, its requests answer for themselves."""
        timings = batch.timings
        timings.started = self._now()
        token = _name_in_log(batch.requests[0] if len(batch.requests) == 1 else None)
        try:
            batch.settlements = self._call(batch, range(len(batch.requests)), batch.rows)
        except BaseException as error:
            if self._is_the_callers(error):
                raise
            batch.settlements = self._rest(batch, error)
        finally:
            if token is not None:
                logs.CALL.reset(token)
        timings.finished = self._now()

    def compute_one(self, signature: Signature, request: Request, timings: Timings) -> Settlement:
        """Call the Servable for a request of numbers that is a batch by itself.

        Args:
            signature: How it calls the model.
            request: The request.
            timings: Its batch's.
        """
        layout, rows = request.layout, request.rows
        timings.started = self._now()
        token = _name_in_log(request)
        settlement: Settlement
        try:
            outputs = self._servable.predict(join_one(layout, request.columns, rows), layout.signature)
            outputs = self._declared(signature, outputs, rows)
            settlement = self.answer(BatchOutputs(outputs, self._origin), 0, rows, timings)
        except BaseException as error:
            if self._is_the_callers(error):
                raise
            settlement = headrace_error(error)
        finally:
            if token is not None:
                logs.CALL.reset(token)
        timings.finished = self._now()
        return settlement

    def _rest(self, batch: Batch, error: BaseException) -> list[Settlement]:
        """After a batch failed: leave out the requests that are to blame, or call for each request alone."""
        if len(batch.requests) == 1:
            return [headrace_error(error)]
        if isinstance(error, ModelDied):  # it is gone: nobody could compute them one by one now
            return [error.shared(len(batch.requests)) for _ in batch.requests]
        if not isinstance(error, InvalidRows):
            return [self._alone(batch, index) for index in range(len(batch.requests))]
        guilty, good, start = {}, [], 0
        for index, request in enumerate(batch.requests):
            own = error.within(start, start + request.rows)
            if own is None:
                good.append(index)
            else:
                guilty[index] = own
            start += request.rows
        answers = dict(zip(good, self._good(batch, good), strict=True))
        return [guilty.get(index) or answers[index] for index in range(len(batch.requests))]

    def _good(self, batch: Batch, good: list[int]) -> list[Settlement]:
        """Call the Servable for some requests of a batch, together; if it fails, for each of them alone."""
        if not good:
            return []
        rows = [batch.requests[index].rows for index in good]
        timings = Timings(batch.timings.formed, sum(rows), len(good))
        timings.started = self._now()
        try:
            outputs = self._call(batch, good, timings.rows)
        except BaseException as again:
            if self._is_the_callers(again):
                raise
            return [self._alone(batch, index) for index in good]
        timings.finished = self._now()
        stops = list(accumulate(rows))
        return [Answer(outputs, stop - count, stop, timings) for count, stop in zip(rows, stops, strict=True)]

    def _alone(self, batch: Batch, index: int) -> Settlement:
        """Call the Servable for one request of a batch that failed, if somebody still waits for it.

        Asking whether somebody does only reads, so it may be asked from an instance's thread; what is decided
        a moment too late costs one call.
        """
        request = batch.requests[index]
        rows = request.rows
        timings = Timings(batch.timings.formed, rows, 1)
        timings.started = self._now()
        if not request.wanted or request.deadline <= timings.started:
            return DeadlineExceeded(EXPIRED)
        token = _name_in_log(request)
        try:
            outputs = self._call(batch, [index], rows)
        except BaseException as error:
            if self._is_the_callers(error):
                raise
            return headrace_error(error)
        finally:
            if token is not None:
                logs.CALL.reset(token)
        timings.finished = self._now()
        return self.answer(outputs, 0, rows, timings)

    def _call(self, batch: Batch, chosen: Sequence[int], rows: int) -> BatchOutputs:
        """Call the Servable for some requests of a batch, or all.

        Args:
            batch: The batch.
            chosen: Which of its requests.
            rows: How many rows they have together.
        """
        layouts, columns, padded_rows = batch.layouts, batch.columns, batch.padded_rows
        if len(chosen) < len(layouts):
            layouts, columns = [layouts[index] for index in chosen], [columns[index] for index in chosen]
            padded_rows = padded_size(rows, batch.allowed)
        layout = layouts[0]
        if self._pads and any(other is not layout for other in layouts):
            request_rows = [batch.requests[index].rows for index in chosen]
            inputs = join_padding_rows(layouts, columns, request_rows, padded_rows)
        else:
            inputs = join(layout, columns, rows, padded_rows, packed=self._takes_packed)
        if padded_rows > rows and self._predict_padded is not None:
            outputs = self._predict_padded(inputs, layout.signature, rows)
        else:
            outputs = self._servable.predict(inputs, layout.signature)
        return BatchOutputs(self._declared(batch.signature, outputs, padded_rows), self._origin)


def _name_in_log(request: Request | None) -> Token[logs.InCall | None] | None:
    """Have what is logged say for which request a model is called; until it is reset, if it must be.

    Args:
        request: The only one; None for several, which have no name together. In the serving thread, the name
            in force is that of whoever came first.
    """
    call = None if request is None else getattr(request, "whole", request).call
    outcome = None if call is None else call.outcome
    return None if logs.CALL.get() is outcome else logs.CALL.set(outcome)
