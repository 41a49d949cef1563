"""The time slicer: heavy decoding and encoding in slices, one at a time, with other requests in between.

The work comes in small steps. It is run at once if there are few of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from io import BytesIO
from time import perf_counter
from typing import TypeAlias, TypeVar, cast

_SLICE_SECONDS = 0.001
# A request takes several event-loop iterations from its arrival to its response. As many follow each slice,
# so that waiting requests can complete.
_TURNS = 4
_LIGHT_SLICES = 20
"""Number of slices up to which a task never waits for another one to finish.

Only one task with more slices runs at a time, as it may hold a hundred bytes for each byte received.
"""

_STEPS_AT_ONCE = 8  # half a millisecond, where the work exceeds the message itself
_JOINED_BYTES = 256 * 1024

Result = TypeVar("Result")
Steps: TypeAlias = Generator[None, None, Result]
"""Work in small steps, between which other tasks may run; ``run`` does it at once."""


class TimeSlicer:
    """A lock that its users share in turns of one slice each. Serving thread only.

    Other requests run between any two slices, however many users the time slicer has. A task of few slices
    does not wait for the end of one with many.

    Use it as an asynchronous context manager; inside it, await ``breathe`` between short steps. Small bodies
    do not use it.
    """

    __slots__ = ("_heavy", "_place", "_slices", "_step", "_until")

    def __init__(self) -> None:
        """Start with an idle time slicer."""
        self._place = _Place()
        self._heavy = _Place()
        self._step = asyncio.Lock()
        self._slices: dict[asyncio.Task[object] | None, int] = {}
        self._until = 0.0

    async def __aenter__(self) -> TimeSlicer:
        """Wait for a turn."""
        await self._place.take()
        self._slices[asyncio.current_task()] = 0
        self._until = 0.0  # yield after the first step: the previous user may have left without a pause
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Release the time slicer, and let other requests run; after a failure, return at once.

        A failed request still holds bytes of the budget, which must not cause others to be refused meanwhile.
        """
        del self._slices[asyncio.current_task()]
        self._heavy.give()
        self._place.give()
        if kind is None:
            await self._let_others_go_on()

    async def breathe(self) -> None:
        """Let other tasks run, if this one has used up its slice."""
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
        """Wait for a turn to decode a body in one step of some milliseconds, outside the time slicer.

        Other requests run after each such step, so that concurrent steps do not add up to one long delay. A
        lone step does not wait.
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
    """A first-come, first-served lock that knows its holder."""

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
        """Release the lock if this task holds it; a task cancelled while it waited does not."""
        if self._holder is asyncio.current_task():
            self._holder = None
            self._lock.release()


# --- work in small steps ---


def run(steps: Generator[object, None, Result]) -> Result:
    """Run all steps at once, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("Result", end.value)


def at_once(steps: Generator[object, None, Result]) -> Result | None:
    """Run the first steps; most work has no more of them.

    Args:
        steps: Steps to run; if some remain, continue them in the time slicer.

    Returns:
        Result of the steps; None if some remain.
    """
    for _ in range(_STEPS_AT_ONCE):
        try:
            next(steps)
        except StopIteration as end:
            return cast("Result", end.value)
    return None


async def in_steps(steps: Generator[object, None, Result], slicer: TimeSlicer) -> Result:
    """Run steps with other requests served in between, and return their result.

    Args:
        steps: Steps to run.
        slicer: Time slicer, entered by the caller.
    """
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("Result", end.value)
        await slicer.breathe()


def joined(parts: list[bytes | memoryview]) -> Generator[None, None, bytes]:
    """Join parts in small steps, freeing each once it is copied.

    Args:
        parts: Parts to join; each is replaced by empty bytes.
    """
    # The initial bytes are overwritten in place and returned without another copy. A growing buffer would be
    # copied several times where the system cannot move its pages.
    whole, written = BytesIO(bytes(sum(map(len, parts)))), 0
    for index, part in enumerate(parts):
        view = memoryview(part)
        for start in range(0, len(view), _JOINED_BYTES):
            written += whole.write(view[start : start + _JOINED_BYTES])
            if written >= _JOINED_BYTES:
                written = 0
                yield
        parts[index] = b""
    return whole.getvalue()
