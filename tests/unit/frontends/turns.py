"""Whether others are answered while one call runs: a neighbour on the event loop that counts its turns."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import FrameType
from typing import Any
from unittest.mock import patch

from headrace.frontends.wire.time_slicer import TimeSlicer


class Turns:
    """Within ``async with`` it has each turn that there is for others, and looks at something in it."""

    def __init__(self, look: Callable[[], Any] = lambda: None) -> None:
        self.seen: list[Any] = []
        """What it saw in each of its turns, in their order."""
        self._look = look
        self._task: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        return len(self.seen)

    async def __aenter__(self) -> Turns:
        self._task = asyncio.create_task(self._take_them())
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._task is not None
        self._task.cancel()

    async def _take_them(self) -> None:
        while True:
            self.seen.append(self._look())
            await asyncio.sleep(0)


class CountingLane(TimeSlicer):
    """Counts the steps that are done in it."""

    steps = 0

    async def breathe(self) -> None:
        self.steps += 1
        await super().breathe()


@dataclass(frozen=True)
class Steps:
    """How a call's work is divided among turns of the event loop.

    Attributes:
        turns: How many turns others had.
        share: The largest part of all function calls that ran between two of them.
    """

    turns: int
    share: float


def steps_of(ask: Callable[[], Coroutine[Any, Any, object]]) -> Steps:
    """Count function calls between turns. The lane gives way after each step, so no clock matters."""
    calls = last = most = 0

    def count(_: FrameType, event: str, __: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    def look() -> None:
        nonlocal last, most
        most, last = max(most, calls - last), calls

    others = Turns(look)

    async def counted() -> None:
        async with others:
            await asyncio.sleep(0)
            sys.setprofile(count)
            try:
                await ask()
            finally:
                sys.setprofile(None)

    with patch("headrace.frontends.wire.time_slicer._SLICE_SECONDS", 0.0):
        asyncio.run(counted())
    return Steps(others.count, max(most, calls - last) / calls)
