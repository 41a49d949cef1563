"""Responses: errors over REST, streams of events, and large ones, which are counted until they are read."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import suppress
from typing import Any

import msgspec

from headrace.base.errors import Cancelled, HeadraceError, Overloaded, Refused, Unauthenticated
from headrace.base.status_codes import codes
from headrace.frontends.calls import JSON_HEADERS, SLICE_BYTES, HttpReply, NotReady, Pieces, slices, told
from headrace.frontends.transport.grpc_framing import frame, frame_prefix

_log = logging.getLogger(__name__)

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

INTERNAL = "internal error; the server's log says more"
"""The text of an error that is a bug, for callers."""

_CHALLENGE = (b"www-authenticate", b'Bearer realm="headrace"')

_EVENT_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # NGINX would hold events back
)
LEFT = "the client disconnected before its answer was complete"
_STALLED = "client stopped reading responses"

STALL_SECONDS = 60.0
"""Longest time in seconds in which a client reads nothing of a stream of events: its place is one of few."""

COUNTED_ANSWER_BYTES = 2048
"""Responses below this size are covered by what the server keeps per stream."""

_OWN_BYTES = 1024
_SMALL_BYTES = 1024 * 1024
_SMALL_SHARE = 4
_ENOUGH_SHARE = 8
_SECONDS = 1.0
_BYTES_A_SECOND = 8 * 1024 * 1024
_LOOK_EVERY_SECONDS = 0.1
_SAID_EVERY_SECONDS = 60.0


class _Answer:
    """One response being sent.

    Attributes:
        size: Bytes charged for it.
        due: Deadline of its client for reading it, on the monotonic clock; infinity unless it is being sent.
    """

    __slots__ = ("due", "size")

    def __init__(self, size: int) -> None:
        self.size, self.due = size, math.inf


class _Room:
    """A byte budget for some of the responses.

    Attributes:
        most_bytes: Largest total in bytes; a single response may exceed it.
        bytes: Current total in bytes.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes, self.bytes = most_bytes, 0
        self._line: dict[asyncio.Task[object] | None, _Answer] = {}
        self._looked = -math.inf

    def has(self, size: int) -> bool:
        """Return whether a response of ``size`` bytes fits."""
        return not self.bytes or self.bytes + size <= self.most_bytes

    def enter(self, task: asyncio.Task[object] | None, answer: _Answer) -> None:
        """Count a response."""
        self._line[task] = answer
        self.bytes += answer.size

    def find(self, task: asyncio.Task[object] | None) -> _Answer | None:
        """Return the response of a task, or None if it is not counted here."""
        return self._line.get(task)

    def leave(self, task: asyncio.Task[object] | None) -> bool:
        """Stop counting a response; return False if it was not counted, or cancelled before."""
        answer = self._line.pop(task, None)
        if answer is not None:
            self.bytes -= answer.size
        return answer is not None

    def end_late(self, size: int) -> int:
        """Cancel overdue responses, the longest overdue first, until one more and some others fit.

        The scan is rate-limited: not every response that finds no room starts one.

        Returns:
            Number of responses cancelled.
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
    """The responses being sent, except tiny ones. Serving thread only.

    A response is held until its client has read it. Small and large responses have separate budgets, so that
    no large one keeps small ones out. Where a budget is exhausted, responses are cancelled whose clients have
    taken longer than a second plus a second per 8 MiB, the longest overdue first; none is cancelled before.
    """

    def __init__(self, most_bytes: int) -> None:
        """Start with none.

        Args:
            most_bytes: Limit on the bytes of all responses together.
        """
        self._small = _Room(most_bytes // _SMALL_SHARE)
        self._large = _Room(most_bytes - most_bytes // _SMALL_SHARE)
        self._ended, self._said = 0, -_SAID_EVERY_SECONDS

    @property
    def held_bytes(self) -> int:
        """Bytes charged for all responses together."""
        return self._small.bytes + self._large.bytes

    def begin(self, size: int) -> None:
        """Count the current task's response, unless it is tiny; pair with ``end``.

        Raises:
            Overloaded: There is no room for it beside those being read.
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
                    f"answers of {room.bytes} bytes are being sent; {size} more would exceed their share of "
                    f"max_inflight_bytes, {room.most_bytes}"
                )
        room.enter(task, _Answer(counted))

    def end(self) -> None:
        """Stop counting the current task's response: it is sent, or its client has disconnected."""
        task = asyncio.current_task()
        self._small.leave(task)
        self._large.leave(task)

    async def send(self, send: Send, slices: Iterator[bytes], *, more: bool = False) -> bool:
        """Send the body of the current task's response.

        Args:
            send: ASGI's send callable.
            slices: Slices of the body.
            more: Whether more of the body follows.

        Returns:
            True if it was sent; False if it was cancelled to make room for others.
        """
        task = asyncio.current_task()
        room = self._small if self._small.find(task) is not None else self._large
        answer = room.find(task)  # None for an error, which is not counted
        if answer is not None:
            answer.due = time.monotonic() + _SECONDS + answer.size / _BYTES_A_SECOND
        body = next(slices, b"")
        try:
            for following in slices:
                await send({"type": "http.response.body", "body": body, "more_body": True})
                body = following
                await asyncio.sleep(0)  # let other tasks run, even if the client reads fast
            await send({"type": "http.response.body", "body": body, "more_body": more})
        except asyncio.CancelledError:
            if task is None or answer is None or room.leave(task) or task.uncancel():
                raise  # cancelled for another reason, alone or as well
            return False
        if answer is not None:
            answer.due = math.inf  # the server sends the rest
        return True

    def _say(self) -> None:
        now = time.monotonic()
        if self._ended and now - self._said >= _SAID_EVERY_SECONDS:
            _log.warning(
                "answers whose clients read too slowly were cancelled, to make room for others",
                extra={"answers": self._ended},
            )
            self._ended, self._said = 0, now


def framed(reply: bytes | Pieces) -> Iterator[bytes]:
    """Return a gRPC message with its prefix, in slices."""
    if isinstance(reply, bytes) and len(reply) < SLICE_BYTES:
        return iter((frame(reply),))
    parts = reply.parts if isinstance(reply, Pieces) else [reply]
    return slices(Pieces([frame_prefix(reply), *parts]))


def error_reply(error: HeadraceError) -> HttpReply:
    """Return an error as both REST APIs write it, ``{"error": "…"}``; NotReady has its protocol's body."""
    headers: tuple[tuple[bytes, bytes], ...] = JSON_HEADERS
    if isinstance(error, NotReady):
        return HttpReply(error.body, status=codes(error).http)
    if isinstance(error, Refused):
        headers = (
            *JSON_HEADERS,
            (b"retry-after", str(max(1, math.ceil(error.retry_after_seconds))).encode()),
        )
    elif isinstance(error, Unauthenticated):
        headers = (*JSON_HEADERS, _CHALLENGE)
    return HttpReply(msgspec.json.encode({"error": told(error)}), status=codes(error).http, headers=headers)


class EventResponse:
    """A response made of events.

    Attributes:
        has_begun: Whether the status has been sent.
        size: Bytes of the events so far.
    """

    def __init__(self, answers: Answers, send: Send) -> None:
        """Begin without a status.

        Args:
            answers: Counts large events until they are read.
            send: ASGI's send callable.
        """
        self.has_begun = False
        self.size = 0
        self._answers = answers
        self._send_it = send

    async def begin(self, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        """Send the status, and the headers beside those of events."""
        self.has_begun = True
        await self._send(
            {"type": "http.response.start", "status": 200, "headers": [*_EVENT_HEADERS, *headers]}
        )

    async def event(self, said: bytes) -> None:
        """Send an event, and wait until the server has accepted it.

        Raises:
            Cancelled: The client reads nothing, or it was cancelled to make room for the answers to others.
            Overloaded: There is no room for it beside answers that are being read.
        """
        sent = _as_event(said)
        self.size += len(sent)
        if len(sent) < COUNTED_ANSWER_BYTES:
            await self._send({"type": "http.response.body", "body": sent, "more_body": True})
            return
        self._answers.begin(len(sent))
        try:
            if not await self._answers.send(self._send, slices(sent), more=True):
                raise Cancelled(_STALLED)
        finally:
            self._answers.end()

    async def end(self, last: bytes | None) -> None:
        """End the response, with a last event unless it is None; the client may have left by then."""
        body = b"" if last is None else _as_event(last)
        with suppress(Cancelled):
            await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _send(self, event: MutableMapping[str, Any]) -> None:
        try:
            async with asyncio.timeout(STALL_SECONDS):
                await self._send_it(event)
        except TimeoutError:
            raise Cancelled(_STALLED) from None
        except OSError:  # as ASGI prescribes; the server may know it before ``receive`` tells
            raise Cancelled(LEFT) from None


def _as_event(said: bytes) -> bytes:
    """Return JSON, which has no line ends, as a server-sent event."""
    return b"data: " + said.rstrip() + b"\n\n"
