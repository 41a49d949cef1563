"""Compute batches, in any thread.

The rows are joined and the Servable is called. If the call fails, it is repeated without the requests to
blame, or for each request alone if none is named. It is not repeated if the model's process has ended. All
exceptions of a model's own code are caught, because they would end the thread. Nothing here changes a
Batcher: the results are stored in the batch, and the Batcher reads them when it finishes the batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Token
from itertools import accumulate
from typing import TypeVar

from headrace.base import logs
from headrace.base.errors import DeadlineExceeded, InvalidRows, ModelDied
from headrace.base.tensors import Tensors
from headrace.batching.batch_queue import Batch, declared_outputs, headrace_error, whole_outputs
from headrace.batching.cancelling import EXPIRED, Cancelling
from headrace.batching.concatenation import join, join_one, join_padding_rows, padded_size
from headrace.batching.policy_defaults import instances
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
from headrace.model.servable import DEADLINE, Servable, Signature, takes_packed

ResultT = TypeVar("ResultT")


class Computing:
    """Calls a Servable for batches.

    Attributes:
        answer: Class of the answers: a request's rows of a batch, or the whole outputs of a call.
        loop: The event loop in which ``compute_async`` must run; None for a Servable without coroutines.
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
            servable: The Servable that computes the batches.
            policy: The batching policy: whether requests are merged, and whether their rows are padded.
            now: Returns the monotonic time in seconds.
            origin: The Origin of the answers.
            is_the_callers: Returns whether an error is meant for the calling thread rather than raised by the
                model; such an error propagates.
        """
        self._servable = servable
        self._takes_packed = takes_packed(servable)
        # A Servable that wraps a model may return more than the model's outputs: the values it looked up.
        declared = declared_outputs if policy.enabled else whole_outputs
        self._declared = getattr(servable, "declared_outputs", declared)
        self.answer: type[Answer] = Answer if policy.enabled else WholeAnswer
        # A Servable that counts lookups must know which rows are padding.
        self._predict_padded = getattr(servable, "predict_padded", None)
        self.loop: asyncio.AbstractEventLoop | None = getattr(servable, "loop", None)
        self._predict_async = getattr(servable, "predict_async", None)
        self._cancelling = Cancelling(origin)
        self._retries = asyncio.Semaphore(instances(policy))
        self._tells_deadline = getattr(servable, "may_block", False)
        self._pads = policy.pad_variable_length
        self._now = now
        self._origin = origin
        self._is_the_callers = is_the_callers

    def compute(self, batch: Batch) -> None:
        """Call the Servable for a batch; if the call fails, retry its requests separately."""
        timings = batch.timings
        timings.started = self._now()
        token = _name_in_log(batch.requests[0] if len(batch.requests) == 1 else None)
        passed_on = DEADLINE.set(_latest_deadline(batch)) if self._tells_deadline else None
        try:
            batch.settlements = self._call(batch, range(len(batch.requests)), batch.rows)
        except BaseException as error:
            if self._is_the_callers(error):
                raise
            batch.settlements = _without_waiting(self._rest(batch, error))
        finally:
            if token is not None:
                logs.CALL.reset(token)
            if passed_on is not None:
                DEADLINE.reset(passed_on)
        timings.finished = self._now()

    async def compute_async(self, batch: Batch) -> None:
        """Await the Servable's ``predict_async`` for a batch, in a task of its own."""
        timings = batch.timings
        timings.started = self._now()
        _name_in_log(batch.requests[0] if len(batch.requests) == 1 else None)
        DEADLINE.set(_latest_deadline(batch))
        try:
            batch.settlements = await self._called(batch, range(len(batch.requests)), batch.rows)
        except BaseException as error:  # noqa: BLE001 - see the head of this module
            batch.settlements = await self._rest(batch, error)
        timings.finished = self._now()

    def compute_one(self, signature: Signature, request: Request, timings: Timings) -> Settlement:
        """Call the Servable for a numeric request that is a batch by itself.

        Args:
            signature: The signature with which it calls the model.
            request: The request.
            timings: The batch's timings, which are filled in.

        Returns:
            The answer, or the error; the request is not settled.
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

    async def _rest(self, batch: Batch, error: BaseException) -> list[Settlement]:
        """Retry a failed batch without the requests to blame, or each request alone if none is named."""
        if len(batch.requests) == 1:
            return [headrace_error(error)]
        if isinstance(error, ModelDied):  # the process is gone, so a retry would fail too
            return [error.shared(len(batch.requests)) for _ in batch.requests]
        if not isinstance(error, InvalidRows):
            return await self._each_alone(batch, range(len(batch.requests)))
        guilty, good, start = {}, [], 0
        for index, request in enumerate(batch.requests):
            own = error.within(start, start + request.rows)
            if own is None:
                good.append(index)
            else:
                guilty[index] = own
            start += request.rows
        answers = dict(zip(good, await self._good(batch, good), strict=True))
        return [guilty.get(index) or answers[index] for index in range(len(batch.requests))]

    async def _good(self, batch: Batch, good: list[int]) -> list[Settlement]:
        """Call the Servable for some requests of a batch together; if it fails, for each of them alone."""
        if not good:
            return []
        rows = [batch.requests[index].rows for index in good]
        timings = Timings(batch.timings.formed, sum(rows), len(good))
        timings.started = self._now()
        try:
            outputs = await self._called(batch, good, timings.rows)
        except BaseException as again:
            if self._is_the_callers(again):
                raise
            return await self._each_alone(batch, good)
        timings.finished = self._now()
        stops = list(accumulate(rows))
        return [Answer(outputs, stop - count, stop, timings) for count, stop in zip(rows, stops, strict=True)]

    async def _each_alone(self, batch: Batch, chosen: Sequence[int]) -> list[Settlement]:
        """Call the Servable for each of some requests of a failed batch.

        Coroutines wait together. All batches of the version share the places for that: as many as instances.
        """
        if self._predict_async is None:
            return [await self._alone(batch, index) for index in chosen]

        async def in_a_place(index: int) -> Settlement:
            async with self._retries:
                return await self._alone(batch, index)

        return await asyncio.gather(*map(in_a_place, chosen))

    async def _alone(self, batch: Batch, index: int) -> Settlement:
        """Call the Servable for one request of a failed batch, if its caller still waits.

        ``request.wanted`` only reads, so an instance's thread may use it. A stale value costs one call.
        """
        request = batch.requests[index]
        rows = request.rows
        timings = Timings(batch.timings.formed, rows, 1)
        timings.started = self._now()
        if not request.wanted or request.deadline <= timings.started:
            return DeadlineExceeded(EXPIRED)
        token = _name_in_log(request)
        try:
            outputs = await self._called(batch, [index], rows)
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
        """Call the Servable for some or all requests of a batch.

        Args:
            batch: The batch.
            chosen: Indices of the requests.
            rows: Total number of rows of these requests.
        """
        inputs, padded_rows, signature = self._joined(batch, chosen, rows)
        if padded_rows > rows and self._predict_padded is not None:
            outputs = self._predict_padded(inputs, signature, rows)
        else:
            outputs = self._servable.predict(inputs, signature)
        return BatchOutputs(self._declared(batch.signature, outputs, padded_rows), self._origin)

    async def _called(self, batch: Batch, chosen: Sequence[int], rows: int) -> BatchOutputs:
        """Call the Servable, or await its coroutine until the last deadline of the batch."""
        if self._predict_async is None:
            return self._call(batch, chosen, rows)
        inputs, padded_rows, signature = self._joined(batch, chosen, rows)
        seconds = _latest_deadline(batch) - self._now()
        outputs = await self._cancelling.result(self._predict_async(inputs, signature), seconds)
        return BatchOutputs(self._declared(batch.signature, outputs, padded_rows), self._origin)

    def _joined(self, batch: Batch, chosen: Sequence[int], rows: int) -> tuple[Tensors, int, str]:
        """Return the inputs of some requests as one batch, its padded rows, and the signature's name."""
        requests, columns, padded_rows = batch.requests, batch.columns, batch.padded_rows
        if len(chosen) < len(requests):
            requests, columns = [requests[index] for index in chosen], [columns[index] for index in chosen]
            padded_rows = padded_size(rows, batch.allowed)
        layout = requests[0].layout
        if self._pads and any(request.layout is not layout for request in requests):
            layouts, each = zip(*((request.layout, request.rows) for request in requests), strict=True)
            inputs = join_padding_rows(layouts, columns, each, padded_rows)
        else:
            inputs = join(layout, columns, rows, padded_rows, packed=self._takes_packed)
        return inputs, padded_rows, layout.signature


def _latest_deadline(batch: Batch) -> float:
    return max(request.deadline for request in batch.requests)


def _without_waiting(work: Coroutine[object, object, ResultT]) -> ResultT:
    """Run a coroutine that never suspends, because no Servable's coroutine is awaited in it."""
    try:
        work.send(None)
    except StopIteration as ended:
        result: ResultT = ended.value
        return result
    raise AssertionError("a call of a Servable without coroutines was suspended")


def _name_in_log(request: Request | None) -> Token[logs.InCall | None] | None:
    """Set the call that log records name while a model runs.

    Args:
        request: The only request of the batch; None for several. Otherwise log records in the serving thread
            would name the request that arrived first.

    Returns:
        Token that resets the name; None if nothing changed.
    """
    call = None if request is None else getattr(request, "whole", request).call
    outcome = None if call is None else call.outcome
    return None if logs.CALL.get() is outcome else logs.CALL.set(outcome)
