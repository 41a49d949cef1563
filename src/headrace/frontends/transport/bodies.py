"""Read request bodies within limits on one body, on all of them together, and on time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any

from headrace.base.errors import Cancelled, DeadlineExceeded, Overloaded, TooLarge
from headrace.config import Limits
from headrace.frontends.calls import Account
from headrace.frontends.transport.waiting_calls import Pauses, Waiting
from headrace.frontends.wire.time_slicer import joined

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]

_JOINED_AT_ONCE_BYTES = 1024 * 1024


INCLUDED_BYTES = 4096
"""Bodies up to this size are included in CALL_BYTES."""
CALL_BYTES = 20 * 1024 + INCLUDED_BYTES
"""Bytes charged per open call, a small body included: 46,000 silent streams took 960 MB."""

_WAITING_SHARE, _CALM_SHARE = 4, 16


class Bodies:
    """Reads request bodies under the limits, and counts the bytes held.

    Attributes:
        limits: Limits on request bodies.
        taken_bytes: Bytes charged for all open calls, their bodies included.
        held_bytes: Bytes held for bodies that are charged separately.
        call_bytes: Bytes charged per open call, including a body of up to ``included_bytes``.
        included_bytes: Size above which a body is charged separately.
        calm_bytes: Value of ``taken_bytes`` up to which waiting calls need not be tracked; see ``silent``.
        silent: Calls whose body has not begun to arrive.
        begun: Calls that wait for more: of a body, or for a stream's next message.
    """

    def __init__(self, limits: Limits) -> None:
        """Start with nothing held."""
        self.limits = limits
        self.taken_bytes = self.held_bytes = 0
        self.call_bytes, self.included_bytes = CALL_BYTES, min(INCLUDED_BYTES, limits.max_message_bytes)
        self.calm_bytes = limits.max_inflight_bytes // _CALM_SHARE
        self._most_bytes, self._largest = limits.max_inflight_bytes, limits.max_message_bytes
        most = max(1, limits.max_inflight_bytes // _WAITING_SHARE // CALL_BYTES)
        self.silent, self.begun = Waiting(most), Waiting(most)
        self._messages = Pauses()

    def open(self) -> None:
        """Charge a call as open, before any of its body has arrived; pair with ``close``."""
        self.taken_bytes += self.call_bytes

    def close(self, held: int) -> None:
        """Release the charge of a call that has ended, and the bytes that it held."""
        self.taken_bytes -= self.call_bytes
        if held:
            self.release(held)

    def check_room(self) -> None:
        """Refuse the call opened last if there is no room for it beside others.

        Raises:
            Overloaded: There is no room for it.
        """
        if self._most_bytes < self.taken_bytes != self.call_bytes:
            calls = (self.taken_bytes - self.held_bytes) // self.call_bytes - 1
            raise Overloaded(
                f"{calls} requests are open, each of which takes {self.call_bytes} bytes besides its body; "
                f"one more would exceed max_inflight_bytes = {self._most_bytes}"
            )

    async def first(self, receive: Receive) -> Event:
        """Receive a call's first event, tracking the call as waiting meanwhile.

        Up to ``calm_bytes``, ``receive`` alone does the same at less cost.

        Raises:
            Overloaded: There is no room for the call; or too many waited, and this one had waited longest.
        """
        self.check_room()
        return await self.silent.coming(receive)

    async def read(
        self, event: Event, receive: Receive, wanted: int, prefix_bytes: int = 0
    ) -> list[bytes | memoryview]:
        """Read a whole body; the caller must ``release`` its bytes when the request has been answered.

        Args:
            event: First ASGI event.
            receive: ASGI's receive callable, for later events.
            wanted: Announced size in bytes; 0 or less if unknown. Once that many bytes have arrived, the end
                mark is not awaited.
            prefix_bytes: Number of bytes in front of the message; the size limit applies to the message.

        Returns:
            The chunks in order of arrival; ``whole`` joins them.

        Raises:
            TooLarge: The body exceeds the limit for one body, or announces that it will; reading stops.
            Overloaded: All bodies together would exceed their limit.
            DeadlineExceeded: The body took too long to arrive.
            Cancelled: The client disconnected.
        """
        self.check(wanted - prefix_bytes)
        first: bytes = event.get("body", b"")
        if event["type"] == "http.request" and (0 < wanted <= len(first) or not event.get("more_body")):
            self.hold(len(first), -prefix_bytes)
            return [first]
        return await self._gather(event, receive, wanted, prefix_bytes)

    async def _gather(
        self, event: Event, receive: Receive, wanted: int, prefix_bytes: int
    ) -> list[bytes | memoryview]:
        """Read a body that its first event does not complete.

        Bytes that have arrived count as held while the rest is awaited, so many slow bodies cannot exceed the
        limit.
        """
        chunks: list[bytes | memoryview] = []
        size, complete = 0, False
        try:
            async with asyncio.timeout(self.limits.body_timeout_seconds):
                while True:
                    if event["type"] == "http.disconnect":
                        raise Cancelled("the client disconnected before its request had arrived")
                    chunk: bytes = event.get("body", b"")
                    self.hold(len(chunk), size - prefix_bytes)
                    size += len(chunk)
                    chunks.append(chunk)
                    if 0 < wanted <= size or not event.get("more_body"):
                        complete = True
                        return chunks
                    if self.taken_bytes <= self.calm_bytes:
                        event = await receive()
                    else:
                        event = await (self.begun if size else self.silent).coming(receive)
        except TimeoutError:
            raise DeadlineExceeded(
                f"the body did not arrive within {self.limits.body_timeout_seconds:g} s; "
                f"only {size} bytes of it did"
            ) from None
        finally:
            if not complete:
                self.release(size)

    def hold(self, size: int, before: int = 0) -> None:
        """Count bytes of one body as held.

        Args:
            size: Number of bytes to add.
            before: Number of bytes of the same body that are held already.

        Raises:
            TooLarge: The body would exceed the limit for one body.
            Overloaded: All bodies together would exceed their limit.
        """
        if before + size > self._largest:
            self.check(before + size)
        self.hold_of_stream(size)

    def check(self, size: int) -> None:
        """Check the size of a body against the limit for one body.

        Raises:
            TooLarge: It exceeds the limit.
        """
        if size > self._largest:
            raise TooLarge(f"the body has {size} bytes or more; this server takes at most {self._largest}")

    def grow(self, account: Account, size: int) -> None:
        """Raise the bytes held for a body to its decompressed size so far.

        Args:
            account: Account of the call.
            size: Decompressed size so far in bytes.

        Raises:
            TooLarge: The body exceeds the limit for one body.
            Overloaded: All bodies together would exceed their limit.
        """
        self.check(size)
        if size > account.held:
            account.hold(size - account.held)

    def hold_of_stream(self, size: int) -> None:
        """Count bytes as held, without a limit per body: a stream has no end.

        Raises:
            Overloaded: All bodies together would exceed their limit.
        """
        taken = self.taken_bytes + size
        if taken > self._most_bytes and self.taken_bytes > self.call_bytes:  # not for a lone, empty call
            raise Overloaded(
                f"requests of {self.taken_bytes} bytes are in progress; {size} more would exceed "
                f"max_inflight_bytes = {self._most_bytes}"
            )
        self.taken_bytes = taken
        self.held_bytes += size

    def release(self, size: int) -> None:
        """Count bytes as no longer held."""
        self.taken_bytes -= size
        self.held_bytes -= size

    async def chunks(
        self, receive: Receive, message: Callable[[], int | None], pauses: Pauses
    ) -> AsyncIterator[bytes]:
        """Yield the chunks of a stream, which may be idle indefinitely between messages.

        A timeout applies within each message and before the first one.

        Args:
            receive: ASGI's receive callable.
            message: Function that returns the number of the message that has arrived in part, or None.
            pauses: Pauses of streams before and between messages.

        Raises:
            Cancelled: The client disconnected.
            DeadlineExceeded: A message took too long to arrive, or the first one to begin.
            Unavailable: The server stopped before a message began.
            Overloaded: Too many calls waited for their clients, and this one had waited longest.
        """
        seconds, loop = self.limits.body_timeout_seconds, asyncio.get_running_loop()
        between, within = pauses.of_stream(), self._messages.of_stream()
        come, begun, until = False, None, loop.time() + seconds
        while True:
            if (now := message()) != begun:
                begun, until = now, loop.time() + seconds
            pause = between if begun is None else within
            coming = partial((self.begun if come else self.silent).coming, receive)
            event = await pause.coming(coming, None if come and begun is None else until)
            if event is None:
                raise DeadlineExceeded(
                    f"a message did not arrive completely within {seconds:g} s"
                    if come
                    else f"no message arrived within {seconds:g} s after the stream was opened"
                )
            if event["type"] == "http.disconnect":
                raise Cancelled("the client disconnected during its stream")
            if chunk := event.get("body", b""):
                come = True
                yield chunk
            if not event.get("more_body"):
                return


async def whole(chunks: list[bytes | memoryview]) -> bytes:
    """Join a body's chunks, those of a large body in steps that let other requests run.

    Args:
        chunks: The chunks; the list is emptied.
    """
    if len(chunks) == 1 and isinstance(chunks[0], bytes):
        return bytes(chunks.pop())  # returns the same object
    if sum(map(len, chunks)) <= _JOINED_AT_ONCE_BYTES:
        at_once = b"".join(chunks)
        chunks.clear()
        return at_once
    steps = joined(chunks)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            chunks.clear()
            body: bytes = end.value
            return body
        await asyncio.sleep(0)
