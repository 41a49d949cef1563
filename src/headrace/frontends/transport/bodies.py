"""Reading bodies: never more of one, of all together, or for longer, than the server allows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any

from headrace.config import Limits
from headrace.errors import Cancelled, DeadlineExceeded, Overloaded, TooLarge
from headrace.frontends.calls import Account
from headrace.frontends.transport.waiting import Pauses, Waiting
from headrace.frontends.wire.joining import joined

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]

_JOINED_AT_ONCE_BYTES = 1024 * 1024


INCLUDED_BYTES = 4096
"""Up to how large a body is within what its call counts with."""
CALL_BYTES = 20 * 1024 + INCLUDED_BYTES
"""What an open call counts with, and a small body with it: 46,000 silent streams took 960 MB."""

_WAITING_SHARE, _CALM_SHARE = 4, 16


class Bodies:
    """Reads bodies under the limits, and knows how many bytes are held.

    Attributes:
        limits: What they are.
        taken_bytes: What all open calls count with, their bodies included.
        held_bytes: Their bodies.
        call_bytes: What a call counts with, and with it a body of up to ``included_bytes``.
        included_bytes: What is larger is held by itself.
        calm_bytes: As long as no more is taken, nobody needs to know who waits: see ``silent``.
        silent: The calls of whose bodies nothing has come.
        begun: The calls that wait for more: of a body, or for a stream's next message.
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
        """Count a call as open, before anything of its body has come; ``close`` ends it."""
        self.taken_bytes += self.call_bytes

    def close(self, held: int) -> None:
        """Count a call as ended, and the bytes that it held as given back."""
        self.taken_bytes -= self.call_bytes
        if held:
            self.release(held)

    def check_room(self) -> None:
        """Refuse the call that was opened last, if there is no room for it beside others.

        Raises:
            Overloaded: There is none.
        """
        if self._most_bytes < self.taken_bytes != self.call_bytes:
            calls = (self.taken_bytes - self.held_bytes) // self.call_bytes - 1
            raise Overloaded(
                f"{calls} requests are open, each of which counts with {self.call_bytes} bytes beside its "
                f"body; one more would pass max_inflight_bytes = {self._most_bytes}"
            )

    async def first(self, receive: Receive) -> Event:
        """Receive the first of a call's events, where so much is taken that it has to be known who waits.

        Where that is not so (``calm_bytes``), ``receive`` does the same at less cost.

        Raises:
            Overloaded: There is no room for the call; or too many waited, and this one had waited longest.
        """
        self.check_room()
        return await self.silent.coming(receive)

    async def read(
        self, event: Event, receive: Receive, wanted: int, prefix_bytes: int = 0
    ) -> list[bytes | memoryview]:
        """Read a whole body; the caller gives its bytes back with ``release`` when the request is answered.

        Args:
            event: The first of ASGI's events.
            receive: Gives those after it.
            wanted: How many bytes it is announced to have; 0 or less if that is not known. Once they are
                there, the end mark is not awaited.
            prefix_bytes: How many of them are in front of the message, whose size is limited.

        Returns:
            Its chunks, as they arrived; ``whole`` joins them.

        Raises:
            TooLarge: It is larger than one body may be, or is announced to be; reading stops there.
            Overloaded: All bodies together would be.
            DeadlineExceeded: It took too long to arrive.
            Cancelled: The client left.
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
        """Read a body that its first event does not end.

        What has arrived is held while the rest is on its way: many slow bodies cost as much as many at once.
        """
        chunks: list[bytes | memoryview] = []
        size, complete = 0, False
        try:
            async with asyncio.timeout(self.limits.body_timeout_seconds):
                while True:
                    if event["type"] == "http.disconnect":
                        raise Cancelled("the client left before its request had arrived")
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
                f"the body had not arrived after {self.limits.body_timeout_seconds:g} s; "
                f"{size} bytes of it had"
            ) from None
        finally:
            if not complete:
                self.release(size)

    def hold(self, size: int, before: int = 0) -> None:
        """Count bytes of one body as held.

        Args:
            size: How many.
            before: How many of the same body are held already.

        Raises:
            TooLarge: They are more than one body may have.
            Overloaded: All bodies together would have too many.
        """
        if before + size > self._largest:
            self.check(before + size)
        self.hold_of_stream(size)

    def check(self, size: int) -> None:
        """Refuse a body of so many bytes, or more, if it is more than one may have.

        Raises:
            TooLarge: It is.
        """
        if size > self._largest:
            raise TooLarge(f"the body has {size} bytes or more; this server takes at most {self._largest}")

    def grow(self, account: Account, size: int) -> None:
        """Count a body as large as it has become by now, decompressed.

        Args:
            account: What its call holds.
            size: Its bytes now.

        Raises:
            TooLarge: They are more than one body may have.
            Overloaded: All bodies together would have too many.
        """
        self.check(size)
        if size > account.held:
            account.hold(size - account.held)

    def hold_of_stream(self, size: int) -> None:
        """Count bytes of a stream as held: a stream has no end, its messages are limited one by one.

        Raises:
            Overloaded: All bodies together would have too many.
        """
        taken = self.taken_bytes + size
        if taken > self._most_bytes and self.taken_bytes > self.call_bytes:  # more than this call is open
            raise Overloaded(
                f"requests of {self.taken_bytes} bytes are being answered; {size} more would pass "
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
        """The chunks of a stream, which may be silent for as long as its sender likes between messages.

        Not within a message, and not before the first one.

        Args:
            receive: Gives ASGI's events.
            message: Says which message has come in part, by its number; None for none.
            pauses: Those before and between messages.

        Raises:
            Cancelled: The client left.
            DeadlineExceeded: A message took too long to arrive, or the first one to begin.
            Unavailable: The server stopped before a message began.
            Overloaded: It had waited longest of too many calls that wait for their clients.
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
                    f"a message had not arrived {seconds:g} s after it began"
                    if come
                    else f"no message had come {seconds:g} s after the stream was opened"
                )
            if event["type"] == "http.disconnect":
                raise Cancelled("the client left within its stream")
            if chunk := event.get("body", b""):
                come = True
                yield chunk
            if not event.get("more_body"):
                return


async def whole(chunks: list[bytes | memoryview]) -> bytes:
    """Join a body's chunks: a large one piece by piece, with others answered in between.

    Args:
        chunks: The chunks; the list is emptied.
    """
    if len(chunks) == 1 and isinstance(chunks[0], bytes):
        return bytes(chunks.pop())  # the same, as it is one
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
