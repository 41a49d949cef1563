"""Large answers on their way: in slices, and counted until their clients have read them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

from headrace.errors import Overloaded
from headrace.frontends.pieces import SLICE_BYTES, Pieces, slices
from headrace.frontends.transport.grpc_framing import frame, frame_prefix

_log = logging.getLogger(__name__)

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

COUNTED_FROM_BYTES = 8192
"""Smaller answers are within what the server keeps for a connection anyway."""

_STUCK_SECONDS = 1.0
_SAID_EVERY_SECONDS = 60.0


class _Answer:
    """One of them.

    Attributes:
        size: Its bytes.
        moved: When its client last took a slice, on the monotonic clock.
    """

    __slots__ = ("moved", "size")

    def __init__(self, size: int) -> None:
        self.size, self.moved = size, time.monotonic()


class Answers:
    """The large answers that are being sent. Serving thread only.

    An answer is held until its client has read it. Together they have a limit; where it is reached, those
    whose clients have read nothing for a second make room for others, the one that has stood longest first.

    Attributes:
        most_bytes: How many bytes all together may have; one that is alone may have more.
        bytes: How many they have.
    """

    def __init__(self, most_bytes: int) -> None:
        """Start with none."""
        self.most_bytes, self.bytes = most_bytes, 0
        self._line: dict[asyncio.Task[object] | None, _Answer] = {}
        self._ended, self._said = 0, -_SAID_EVERY_SECONDS

    def begin(self, size: int) -> None:
        """Count the answer of the current task, if it is large; ``end`` must follow.

        Raises:
            Overloaded: There is no room for it beside others, which are being read.
        """
        if size < COUNTED_FROM_BYTES:
            return
        if self.bytes and self.bytes + size > self.most_bytes:
            self._make_room(size)
        self._line[asyncio.current_task()] = _Answer(size)
        self.bytes += size

    def end(self) -> None:
        """The current task's answer is sent, or its client has gone."""
        answer = self._line.pop(asyncio.current_task(), None)
        if answer is not None:
            self.bytes -= answer.size

    async def send(self, send: Send, slices: Iterator[bytes], *, more: bool = False) -> bool:
        """Send the body of the current task's answer.

        Args:
            send: ASGI's.
            slices: Of the body.
            more: Whether something follows.

        Returns:
            Whether it was sent; False if it had to make room for others.
        """
        task = asyncio.current_task()
        answer = self._line.get(task) or _Answer(0)  # of an error, which is not counted
        body = next(slices, b"")
        try:
            for following in slices:
                await send({"type": "http.response.body", "body": body, "more_body": True})
                answer.moved = time.monotonic()
                body = following
                await asyncio.sleep(0)  # a fast reader's answer is no reason for others to wait
            await send({"type": "http.response.body", "body": body, "more_body": more})
        except asyncio.CancelledError:
            if task is None or task in self._line or task.uncancel():
                raise  # for another reason, or for another one, too
            return False
        return True

    def _make_room(self, size: int) -> None:
        """End answers that stand still, until there is room for one more."""
        now = time.monotonic()
        still = [
            (answer.moved, place, task)
            for place, (task, answer) in enumerate(self._line.items())
            if task is not None and now - answer.moved >= _STUCK_SECONDS
        ]
        for _, _, task in sorted(still, key=lambda one: one[:2]):
            if self.bytes + size <= self.most_bytes or not self.bytes:
                break
            self.bytes -= self._line.pop(task).size
            task.cancel()
            self._ended += 1
        self._say(now)
        if self.bytes and self.bytes + size > self.most_bytes:
            raise Overloaded(
                f"answers of {self.bytes} bytes are being sent; {size} more would pass half of "
                f"max_inflight_bytes, {self.most_bytes}"
            )

    def _say(self, now: float) -> None:
        if self._ended and now - self._said >= _SAID_EVERY_SECONDS:
            _log.warning(
                "%d answers were ended that nobody had read for %g s or more: others had no room "
                "(limits.max_inflight_bytes)",
                *(self._ended, _STUCK_SECONDS),
            )
            self._ended, self._said = 0, now


def framed(reply: bytes | Pieces) -> Iterator[bytes]:
    """A gRPC message with its prefix, in slices."""
    if isinstance(reply, bytes) and len(reply) < SLICE_BYTES:
        return iter((frame(reply),))
    parts = reply.parts if isinstance(reply, Pieces) else [reply]
    return slices(Pieces([frame_prefix(reply), *parts]))
