"""The calls that wait for their clients: so many and no more, and never at the cost of those that do not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.errors import Overloaded, Unavailable

_T = TypeVar("_T")


class Waiting:
    """A line of calls that wait, first the one that has waited longest.

    Opening calls and sending nothing costs a client next to nothing, so where too many wait, the first is
    ended. A call whose body came with it is never among them.

    Attributes:
        most: How many calls may wait.
    """

    def __init__(self, most: int) -> None:
        """Start with none."""
        self.most = most
        self._line: dict[asyncio.Task[object] | None, None] = {}
        self._looking = False

    async def coming(self, receive: Callable[[], Awaitable[_T]]) -> _T:
        """Receive what a client sends next.

        Raises:
            Overloaded: Too many calls waited, and this one had waited longest.
        """
        task, line = asyncio.current_task(), self._line
        line[task] = None
        if len(line) > self.most and not self._looking:
            # Not now: what is there already is given at once, and then this call does not wait.
            self._looking = True
            asyncio.get_running_loop().call_soon(self._end_some)
        try:
            return await receive()
        except asyncio.CancelledError:
            was_ended = task is not None and task not in line and not task.uncancel()
            line.pop(task, None)
            task = None  # it keeps what ends it, which keeps this frame
            if not was_ended:
                raise  # for another reason, or for another one, too
        finally:
            line.pop(task, None)
        raise self._ended()  # here, where it does not keep the cancellation and its frames

    def _end_some(self) -> None:
        self._looking = False
        line = self._line
        while len(line) > self.most:
            task = next(iter(line))
            del line[task]
            if task is not None:
                task.cancel()

    def _ended(self) -> Overloaded:
        return Overloaded(
            f"more than {self.most} calls waited for what their clients send, which may take a quarter of "
            "max_inflight_bytes; the one that had waited longest was ended"
        )


# How long a stream that is to end waits for a message: one that has arrived is handed over a moment later.
_LAST_PAUSE_SECONDS = 0.25
# All of these together: a client that sends a message every millisecond would keep the server from stopping.
_LAST_PAUSES_SECONDS = 2.0


class Pauses:
    """The pauses of streams before and between their messages, all of which end when the server stops.

    Attributes:
        over: Whether the server is stopping.
        why: Why streams end, as their clients are told.
    """

    def __init__(self) -> None:
        """Start with no pauses."""
        self.why = "the server is stopping, and ends streams once it has answered what it has read"
        self.over = False
        self._open: set[asyncio.Timeout] = set()

    def end(self) -> None:
        """End the open pauses, and each later one; messages that have arrived are still received."""
        self.over = True
        for pause in self._open:
            if not pause.expired():
                pause.reschedule(asyncio.get_running_loop().time() + _LAST_PAUSE_SECONDS)

    def of_stream(self) -> StreamPauses:
        """The pauses of one stream."""
        return StreamPauses(self, self._open)


class StreamPauses:
    """The pauses of one stream, which together are short once the server stops."""

    def __init__(self, pauses: Pauses, open_pauses: set[asyncio.Timeout]) -> None:
        """Start before the stream's first message.

        Args:
            pauses: Says whether the server is stopping.
            open_pauses: Where the stream's pause is kept while it lasts.
        """
        self._pauses = pauses
        self._open = open_pauses
        self._left_seconds = _LAST_PAUSES_SECONDS

    async def coming(self, receive: Callable[[], Awaitable[_T]], until: float | None) -> _T | None:
        """Receive the next message, or part of it, from the stream's client.

        Args:
            receive: Gives it.
            until: When it is late, on the loop's clock; None for never.

        Returns:
            What came; None if it was late.

        Raises:
            Unavailable: Nothing had come when the server stopped.
        """
        clock, is_last = asyncio.get_running_loop().time, self._pauses.over
        began = clock()
        pause = asyncio.timeout_at(
            began + max(0.0, min(_LAST_PAUSE_SECONDS, self._left_seconds)) if is_last else until
        )
        self._open.add(pause)
        try:
            async with pause:
                return await receive()
        except TimeoutError:
            pass  # told below, where it does not keep the cancellation, its frames and their task
        finally:
            self._open.discard(pause)
            del pause  # it keeps the task, which keeps what ends it, and that this frame
            if is_last:
                self._left_seconds -= clock() - began
        if self._pauses.over:
            raise Unavailable(self._pauses.why)
        return None
