"""Large answers on their way: in slices, and counted until their clients have read them."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

from headrace.errors import Overloaded
from headrace.frontends.pieces import SLICE_BYTES, Pieces, slices
from headrace.frontends.transport.grpc_framing import frame, frame_prefix

_log = logging.getLogger(__name__)

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

COUNTED_ANSWER_BYTES = 2048
"""Smaller answers are within what the server keeps for a stream anyway."""

_OWN_BYTES = 1024
_SMALL_BYTES = 1024 * 1024
_SMALL_SHARE = 4
_ENOUGH_SHARE = 8
_SECONDS = 1.0
_BYTES_A_SECOND = 8 * 1024 * 1024
_LOOK_EVERY_SECONDS = 0.1
_SAID_EVERY_SECONDS = 60.0


class _Answer:
    """One of them.

    Attributes:
        size: What it counts with.
        due: Until when its client should have read it, on the monotonic clock; infinity before it is sent.
    """

    __slots__ = ("due", "size")

    def __init__(self, size: int) -> None:
        self.size, self.due = size, math.inf


class _Room:
    """What some of the answers may take together.

    Attributes:
        most_bytes: How many bytes; one that is alone may have more.
        bytes: How many they have.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes, self.bytes = most_bytes, 0
        self._line: dict[asyncio.Task[object] | None, _Answer] = {}
        self._looked = -math.inf

    def has(self, size: int) -> bool:
        """Whether there is room for one more."""
        return not self.bytes or self.bytes + size <= self.most_bytes

    def enter(self, task: asyncio.Task[object] | None, answer: _Answer) -> None:
        """Count an answer."""
        self._line[task] = answer
        self.bytes += answer.size

    def find(self, task: asyncio.Task[object] | None) -> _Answer | None:
        """The answer of a task, if it counts here."""
        return self._line.get(task)

    def leave(self, task: asyncio.Task[object] | None) -> bool:
        """Count an answer no more; False if it did not, or had to leave before."""
        answer = self._line.pop(task, None)
        if answer is not None:
            self.bytes -= answer.size
        return answer is not None

    def end_late(self, size: int) -> int:
        """End answers that are late, the latest first, until there is room for one more and some others.

        Looking through all of them is not done for each answer that finds no room.

        Returns:
            How many were ended.
        """
        now = time.monotonic()
        if now - self._looked < _LOOK_EVERY_SECONDS:
            return 0
        self._looked, ended = now, 0
        tasks, dues = list(self._line), [answer.due for answer in self._line.values()]
        late = sorted((due, place) for place, due in enumerate(dues) if due < now)
        for _, place in late:
            if self.has(size + self.most_bytes // _ENOUGH_SHARE):
                break
            self.leave(tasks[place])
            if (task := tasks[place]) is not None:
                task.cancel()
            ended += 1
        return ended


class Answers:
    """The answers that are being sent, but for tiny ones. Serving thread only.

    An answer is held until its client has read it. Small and large answers have a room each, so that no large
    one keeps small ones out. Where a room is full, answers make room for others whose clients have taken
    longer than a second, and one more for each 8 MiB; the latest go first. Nobody is ended before.
    """

    def __init__(self, most_bytes: int) -> None:
        """Start with none.

        Args:
            most_bytes: How many bytes all together may have.
        """
        self._small = _Room(most_bytes // _SMALL_SHARE)
        self._large = _Room(most_bytes - most_bytes // _SMALL_SHARE)
        self._ended, self._said = 0, -_SAID_EVERY_SECONDS

    @property
    def held_bytes(self) -> int:
        """What all together count with."""
        return self._small.bytes + self._large.bytes

    def begin(self, size: int) -> None:
        """Count the answer of the current task, unless it is tiny; ``end`` must follow.

        Raises:
            Overloaded: There is no room for it beside others, which are being read.
        """
        task = asyncio.current_task()
        if size < COUNTED_ANSWER_BYTES or task is None:
            return
        room, counted = self._small if size <= _SMALL_BYTES else self._large, size + _OWN_BYTES
        if not room.has(counted):
            self._ended += room.end_late(counted)
            self._say()
            if not room.has(counted):
                raise Overloaded(
                    f"answers of {room.bytes} bytes are being sent; {size} more would pass the part of "
                    f"max_inflight_bytes that is theirs, {room.most_bytes}"
                )
        room.enter(task, _Answer(counted))

    def end(self) -> None:
        """The current task's answer is sent, or its client has gone."""
        task = asyncio.current_task()
        self._small.leave(task)
        self._large.leave(task)

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
        room = self._small if self._small.find(task) is not None else self._large
        answer = room.find(task)  # none for an error, which is not counted
        if answer is not None:
            answer.due = time.monotonic() + _SECONDS + answer.size / _BYTES_A_SECOND
        body = next(slices, b"")
        try:
            for following in slices:
                await send({"type": "http.response.body", "body": body, "more_body": True})
                body = following
                await asyncio.sleep(0)  # a fast reader's answer is no reason for others to wait
            await send({"type": "http.response.body", "body": body, "more_body": more})
        except asyncio.CancelledError:
            if task is None or answer is None or room.leave(task) or task.uncancel():
                raise  # for another reason, or for another one, too
            return False
        if answer is not None:
            answer.due = math.inf  # what follows is the server's
        return True

    def _say(self) -> None:
        now = time.monotonic()
        if self._ended and now - self._said >= _SAID_EVERY_SECONDS:
            _log.warning(
                "answers were ended that their clients took too long to read: others had no room",
                extra={"answers": self._ended},
            )
            self._ended, self._said = 0, now


def framed(reply: bytes | Pieces) -> Iterator[bytes]:
    """A gRPC message with its prefix, in slices."""
    if isinstance(reply, bytes) and len(reply) < SLICE_BYTES:
        return iter((frame(reply),))
    parts = reply.parts if isinstance(reply, Pieces) else [reply]
    return slices(Pieces([frame_prefix(reply), *parts]))
