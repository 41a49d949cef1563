"""Limit the number of calls that wait for their clients, at no cost to calls that do not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.base.errors import Overloaded, Unavailable

_T = TypeVar("_T")


class Waiting:
    """A queue of waiting calls, the longest-waiting first.

    Opening calls and sending nothing costs a client almost nothing, so where too many wait, the first one is
    ended. A call whose body came with it is never among them.

    Attributes:
        most: Largest number of waiting calls.
    """

    def __init__(self, most: int) -> None:
        """Start with none."""
        self.most = most
        self._line: dict[asyncio.Task[object] | None, None] = {}
        self._looking = False

    async def coming(self, receive: Callable[[], Awaitable[_T]]) -> _T:
        """Receive a client's next data.

        Raises:
            Overloaded: Too many calls waited, and this one had waited longest.
        """
        task, line = asyncio.current_task(), self._line
        line[task] = None
        if len(line) > self.most and not self._looking:
            # Deferred: if data has arrived already, it is received at once, and this call does not wait.
            self._looking = True
            asyncio.get_running_loop().call_soon(self._end_some)
        try:
            return await receive()
        except asyncio.CancelledError:
            was_ended = task is not None and task not in line and not task.uncancel()
            line.pop(task, None)
            task = None  # breaks the cycle of task, cancellation and this frame
            if not was_ended:
                raise  # cancelled for another reason, alone or as well
        finally:
            line.pop(task, None)
        raise self._ended()  # outside the handler, so as not to keep the cancellation and its frames

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
            f"more than {self.most} calls waited for data from their clients, which may take a quarter of "
            "max_inflight_bytes; the one that had waited longest was ended"
        )


# How long an ending stream waits for a message: one that has arrived is delivered a moment later.
_LAST_PAUSE_SECONDS = 0.25
# Limit on their sum: a client that sends a message every millisecond would keep the server from stopping.
_LAST_PAUSES_SECONDS = 2.0


class Pauses:
    """The pauses of streams before and between their messages, all of which end when the server stops.

    Attributes:
        over: Whether the server is stopping.
        why: Reason for ending streams, as reported to clients.
    """

    def __init__(self) -> None:
        """Start with no pauses."""
        self.why = "the server is stopping, and ends streams after answering all messages read"
        self.over = False
        self._open: set[asyncio.Timeout] = set()

    def end(self) -> None:
        """End the open pauses, and each later one; messages that have arrived are still received."""
        self.over = True
        for pause in self._open:
            if not pause.expired():
                pause.reschedule(asyncio.get_running_loop().time() + _LAST_PAUSE_SECONDS)

    def of_stream(self) -> StreamPauses:
        """Return the pauses of one stream."""
        return StreamPauses(self, self._open)


class StreamPauses:
    """The pauses of one stream, limited in total once the server stops."""

    def __init__(self, pauses: Pauses, open_pauses: set[asyncio.Timeout]) -> None:
        """Start before the stream's first message.

        Args:
            pauses: Pauses of all streams, which record whether the server is stopping.
            open_pauses: Set that holds the stream's pause while it lasts.
        """
        self._pauses = pauses
        self._open = open_pauses
        self._left_seconds = _LAST_PAUSES_SECONDS

    async def coming(self, receive: Callable[[], Awaitable[_T]], until: float | None) -> _T | None:
        """Receive the next message, or part of it, from the stream's client.

        Args:
            receive: Function that receives it.
            until: Deadline on the loop's clock; None for none.

        Returns:
            The data received; None if the deadline has passed.

        Raises:
            Unavailable: Nothing had arrived when the server stopped.
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
            pass  # raised below, so as not to keep the cancellation, its frames and their task
        finally:
            self._open.discard(pause)
            del pause  # breaks the cycle of pause, task, cancellation and this frame
            if is_last:
                self._left_seconds -= clock() - began
        if self._pauses.over:
            raise Unavailable(self._pauses.why)
        return None
