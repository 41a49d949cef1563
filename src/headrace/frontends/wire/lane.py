"""The lane: heavy decoding and encoding in slices, one at a time, with everybody else answered in between."""

from __future__ import annotations

import asyncio
from time import perf_counter

_SLICE_SECONDS = 0.001
# A request takes several turns of the event loop from its arrival to its answer: there are as many after each
# slice, so that whoever waits gets all the way through.
_TURNS = 4
_LIGHT_SLICES = 20
"""What needs no more slices never waits for the end of anything; of what needs more, there is one at a time,
as it may hold a hundred bytes for each byte that came."""


class Lane:
    """A place for one, which those who share it take in turns of a slice each. Serving thread only.

    So between two turns of everybody else there is one slice, however many are in the lane; and what needs
    few slices does not wait for the end of what needs many.

    Use it as an asynchronous context manager; inside it, await ``breathe`` between short steps. Small bodies
    never see it.
    """

    __slots__ = ("_heavy", "_place", "_slices", "_step", "_until")

    def __init__(self) -> None:
        """A lane that is free."""
        self._place = _Place()
        self._heavy = _Place()
        self._step = asyncio.Lock()
        self._slices: dict[asyncio.Task[object] | None, int] = {}
        self._until = 0.0

    async def __aenter__(self) -> Lane:
        """Wait for one's turn."""
        await self._place.take()
        self._slices[asyncio.current_task()] = 0
        self._until = 0.0  # others go on after the first step: the one before may have left without a pause
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Let the next one in, and everybody else before that; but what failed leaves at once.

        It still holds bytes of the budget, and must not refuse those who ask for some meanwhile.
        """
        del self._slices[asyncio.current_task()]
        self._heavy.give()
        self._place.give()
        if kind is None:
            await self._let_others_go_on()

    async def breathe(self) -> None:
        """Let others go on, if this one has had a slice of time."""
        if perf_counter() < self._until:
            return
        await self._let_others_go_on()
        task = asyncio.current_task()
        self._slices[task] += 1
        if self._slices[task] == _LIGHT_SLICES:
            self._place.give()
            await self._heavy.take()
            await self._place.take()
        elif self._place.waiting:
            self._place.give()
            await self._place.take()
        self._until = perf_counter() + _SLICE_SECONDS

    async def step(self) -> None:
        """Wait for one's turn to decode a body in one step of some milliseconds, beside the lane.

        Others go on after each such step, so that however many come together, each holds them up by itself.
        Who is alone waits for nothing.
        """
        await self._step.acquire()
        self._end_step(_TURNS)

    def _end_step(self, turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._end_step, turns - 1)
        else:
            self._step.release()

    async def _let_others_go_on(self) -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)


class _Place:
    """A lock that knows who holds it: first come, first served."""

    __slots__ = ("_holder", "_lock", "waiting")

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._holder: asyncio.Task[object] | None = None
        self.waiting = 0

    async def take(self) -> None:
        self.waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self.waiting -= 1
        self._holder = asyncio.current_task()

    def give(self) -> None:
        """Give it back if this task holds it, which it does not if it was cancelled while it waited."""
        if self._holder is asyncio.current_task():
            self._holder = None
            self._lock.release()
