"""The lane: one heavy decoding or encoding at a time, in slices, with everybody else answered in between."""

from __future__ import annotations

import asyncio
from time import perf_counter

_SLICE_SECONDS = 0.001
# A request takes several turns of the event loop from its arrival to its answer: there are as many after each
# slice, so that whoever waits gets all the way through.
_TURNS = 4


class Lane:
    """A queue with one place: first come, first served. Serving thread only.

    Use it as an asynchronous context manager; inside it, await ``breathe`` between short steps. Small bodies
    never see it.
    """

    __slots__ = ("_lock", "_until")

    def __init__(self) -> None:
        """A lane that is free."""
        self._lock = asyncio.Lock()
        self._until = 0.0

    async def __aenter__(self) -> Lane:
        """Wait for one's turn."""
        await self._lock.acquire()
        self._until = 0.0  # others go on after the first step: the one before may have left without a pause
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Let the next one in, and everybody else before that; but what failed leaves at once.

        It still holds bytes of the budget, and must not refuse those who ask for some meanwhile.
        """
        self._lock.release()
        if kind is None:
            await self._let_others_go_on()

    async def breathe(self) -> None:
        """Let others go on, if this one has had a slice of time."""
        if perf_counter() >= self._until:
            await self._let_others_go_on()
            self._until = perf_counter() + _SLICE_SECONDS

    async def _let_others_go_on(self) -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)
