"""The steps of a model's generator, each taken on request in the thread or the event loop where it must run.

The methods of both classes are for the serving thread. Results return to it by ``call_soon_threadsafe``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Protocol

from headrace.base.clock import Clock
from headrace.base.errors import Overloaded
from headrace.base.tensors import Tensors
from headrace.batching.cancelling import Cancelling
from headrace.batching.compute_threads import Threads, Worker

_log = logging.getLogger(__name__)

Step = Tensors | BaseException | None
"""The result of a step: a part, the error that ended the generator, or None for its end."""

Settle = Callable[[Step], object]
Work = Callable[[], object]


class Steps(Protocol):
    """A generator of the parts of one answer."""

    def next(self, settle: Settle) -> None:
        """Begin the next step; the one before must have been settled.

        Args:
            settle: Called in the serving thread with the result.

        Raises:
            Overloaded: The system refuses to start a thread.
        """

    def close(self, closed: Callable[[], object]) -> None:
        """Close the generator, once, after the running step. A step that awaits something is cancelled.

        Args:
            closed: Called in the serving thread when that is done.
        """


class ThreadSteps:
    """Steps of a generator that all run in one thread of a pool, which other generators share.

    One thread, because a model's code may keep state in its thread across a ``yield``.
    """

    def __init__(
        self,
        pool: Threads[Work],
        begin: Callable[[], Generator[Tensors, None, None]],
        context: Context,
        clock: Clock,
    ) -> None:
        """Begin without a thread.

        Args:
            pool: The threads; a generator is one of a worker's pieces until it is closed.
            begin: Returns the generator; called in the thread.
            context: Context of the model's code.
            clock: The serving thread's clock.
        """
        self._pool = pool
        self._begin = begin
        self._context = context
        self._clock = clock
        self._parts: Generator[Tensors, None, None] | None = None
        self._worker: Worker[Work] | None = None
        self._ends = False

    def next(self, settle: Settle) -> None:
        """Begin the next step; see ``Steps``."""
        step = partial(self._step, settle)
        if self._worker is not None:
            self._worker.queue.put(step)
            return
        self._worker = self._pool.give(step)
        if self._worker is None:
            raise Overloaded("the system refuses to start a thread for the model; try again")

    def close(self, closed: Callable[[], object]) -> None:
        """Close the generator; see ``Steps``."""
        self._ends = True
        if self._worker is None:  # none of the model's code has run
            closed()
        else:
            self._worker.queue.put(partial(self._end, self._worker, closed))

    def _step(self, settle: Settle) -> None:
        if self._ends:  # while the step waited for the thread
            return
        try:
            if self._parts is None:
                self._parts = self._begin()
            step: Step = self._context.run(next, self._parts, None)
        except BaseException as error:  # noqa: BLE001 - the boundary to a model's own code
            step = error
        _soon(self._clock, settle, step)

    def _end(self, worker: Worker[Work], closed: Callable[[], object]) -> None:
        try:
            if self._parts is not None:
                self._context.run(self._parts.close)
        except BaseException:  # noqa: BLE001 - the boundary to a model's own code; nobody waits for it
            _log.exception("a model failed while its stream was closed")
        _soon(self._clock, self._leave, worker, closed)

    def _leave(self, worker: Worker[Work], closed: Callable[[], object]) -> None:
        self._pool.take_back(worker)
        closed()


class TaskSteps:
    """Steps of an async generator, which all run in one task, as timeouts and task groups in it require."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        begin: Callable[[], AsyncGenerator[Tensors, None]],
        context: Context,
        clock: Clock,
        cancelling: Cancelling,
    ) -> None:
        """Begin without a task.

        Args:
            loop: The loop, which runs in another thread.
            begin: Returns the generator; called in the task.
            context: Context of the model's code.
            clock: The serving thread's clock.
            cancelling: Cancels the task.
        """
        self._loop = loop
        self._begin = begin
        self._context = context
        self._clock = clock
        self._cancelling = cancelling
        self._ending: asyncio.Task[None] | None = None  # a loop holds its tasks weakly
        self._asked: asyncio.Queue[Settle] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._early: deque[Step] = deque()  # steps that nobody has asked for: ends by timeouts or task groups
        self._ends = False

    def next(self, settle: Settle) -> None:
        """Begin the next step; see ``Steps``."""
        self._loop.call_soon_threadsafe(self._ask, settle)

    def close(self, closed: Callable[[], object]) -> None:
        """Close the generator; see ``Steps``."""
        self._loop.call_soon_threadsafe(self._cancel, closed)

    def _ask(self, settle: Settle) -> None:
        self._asked.put_nowait(settle)
        if self._task is None:
            self._task = self._context.run(self._loop.create_task, self._run())

    def _cancel(self, closed: Callable[[], object]) -> None:
        self._ends = True
        if self._task is None:
            _soon(self._clock, closed)
        else:
            self._ending = self._loop.create_task(self._cancelled(self._task, closed))

    async def _cancelled(self, task: asyncio.Task[None], closed: Callable[[], object]) -> None:
        try:
            await self._cancelling.end(task)
        finally:
            self._task = None  # its CancelledError refers to this object, and to the last part
            _soon(self._clock, closed)

    async def _run(self) -> None:
        parts: AsyncGenerator[Tensors, None] | None = None
        try:
            while not self._ends:
                settle = await self._next_asked(parts)
                try:
                    parts = parts or self._begin()
                    step: Step = self._early.popleft() if self._early else await anext(parts, None)
                except BaseException as error:  # noqa: BLE001 - the boundary to a model's own code
                    step = error
                _soon(self._clock, settle, step)
                del step  # an error refers to this frame
        finally:
            if parts is not None:
                await _closed(parts)

    async def _next_asked(self, parts: AsyncGenerator[Tensors, None] | None) -> Settle:
        """Wait for the next request for a step.

        A timeout or a task group around a ``yield`` cancels the task that runs the generator. In between two
        steps that is this wait, so the cancellation is passed on to the generator.
        """
        while True:
            try:
                return await self._asked.get()
            except asyncio.CancelledError as cancelled:
                if self._ends or parts is None:
                    raise
                self._early.append(await _thrown_into(parts, cancelled))


async def _thrown_into(parts: AsyncGenerator[Tensors, None], error: BaseException) -> Step:
    try:
        return await parts.athrow(error)
    except StopAsyncIteration:
        return None
    except BaseException as raised:  # noqa: BLE001 - the boundary to a model's own code
        return raised


async def _closed(parts: AsyncGenerator[Tensors, None]) -> None:
    try:
        await parts.aclose()
    except BaseException:  # noqa: BLE001 - the boundary to a model's own code; nobody waits for it
        _log.exception("a model failed while its stream was closed")


def _soon(clock: Clock, callback: Callable[..., object], *args: object) -> None:
    with suppress(RuntimeError):  # the serving thread has ended, and its callers with it
        clock.call_soon_threadsafe(callback, *args)
