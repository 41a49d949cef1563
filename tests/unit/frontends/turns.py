"""Whether others are answered while one call runs: a neighbour on the event loop that counts its turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


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
