"""Reading bodies: never more of one, of all together, or for longer, than the server allows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from headrace.config import Limits
from headrace.errors import Cancelled, DeadlineExceeded, Overloaded, TooLarge

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]


class Bodies:
    """Reads bodies under the limits, and knows how many bytes are held."""

    def __init__(self, limits: Limits) -> None:
        """Start with nothing held."""
        self.limits = limits
        self.held_bytes = 0

    async def read(self, event: Event, receive: Receive) -> bytes:
        """Read a whole body; the caller gives its bytes back with ``release`` when the request is answered.

        Args:
            event: The first of ASGI's events.
            receive: Gives those after it.

        Raises:
            TooLarge: It is larger than one body may be; reading stops there.
            Overloaded: All bodies together would be.
            DeadlineExceeded: It took too long to arrive.
            Cancelled: The client left.
        """
        body: bytes = event.get("body", b"")
        if event.get("more_body"):
            event = await receive()
            # Some clients send the end mark apart from the only chunk; anything else is gathered.
            if event.get("more_body") or event.get("body") or event["type"] != "http.request":
                return await self._gather(receive, body, event)
        elif event["type"] != "http.request":
            raise Cancelled("the client left before its request had arrived")
        self.hold(len(body))
        return body

    def hold(self, size: int, before: int = 0) -> None:
        """Count bytes of one body as held.

        Args:
            size: How many.
            before: How many of the same body are held already.

        Raises:
            TooLarge: They are more than one body may have.
            Overloaded: All bodies together would have too many.
        """
        self.check(before + size)
        self.hold_of_stream(size)

    def check(self, size: int) -> None:
        """Refuse a body of so many bytes, or more, if it is more than one may have.

        Raises:
            TooLarge: It is.
        """
        if size > self.limits.max_message_bytes:
            raise TooLarge(
                f"the body has {size} bytes or more; "
                f"this server takes at most {self.limits.max_message_bytes}"
            )

    def grow(self, held: int, size: int) -> int:
        """Count a body as large as it has become, decompressed.

        Args:
            held: What is held for it.
            size: Its bytes now.

        Returns:
            What is held for it now.

        Raises:
            Overloaded: All bodies together would have too many.
        """
        if size > held:
            self.hold(size - held, held)
        return max(size, held)

    def hold_of_stream(self, size: int) -> None:
        """Count bytes of a stream as held: a stream has no end, its messages are limited one by one.

        Raises:
            Overloaded: All bodies together would have too many.
        """
        if self.held_bytes + size > self.limits.max_inflight_bytes and self.held_bytes:
            raise Overloaded(
                f"requests of {self.held_bytes} bytes are being answered; {size} more would pass "
                f"max_inflight_bytes = {self.limits.max_inflight_bytes}"
            )
        self.held_bytes += size

    def release(self, size: int) -> None:
        """Count bytes as no longer held."""
        self.held_bytes -= size

    async def _gather(self, receive: Receive, first: bytes, event: Event) -> bytes:
        """Read what follows the first chunk, beginning with the event that came after it.

        What has arrived is held while the rest is on its way: many slow bodies cost as much as many at once.
        """
        chunks, size, complete = [first], 0, False
        try:
            self.hold(len(first))
            size = len(first)
            async with asyncio.timeout(self.limits.body_timeout_seconds):
                while True:
                    if event["type"] == "http.disconnect":
                        raise Cancelled("the client left before its request had arrived")
                    chunk: bytes = event.get("body", b"")
                    self.hold(len(chunk), size)
                    size += len(chunk)
                    chunks.append(chunk)
                    if not event.get("more_body"):
                        complete = True
                        return b"".join(chunks)
                    event = await receive()
        except TimeoutError:
            raise DeadlineExceeded(
                f"the body had not arrived after {self.limits.body_timeout_seconds:g} s; "
                f"{size} bytes of it had"
            ) from None
        finally:
            if not complete:
                self.release(size)

    async def chunks(self, receive: Receive) -> AsyncIterator[bytes]:
        """The chunks of a body that may go on for as long as its sender likes.

        Raises:
            Cancelled: The client left.
        """
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                raise Cancelled("the client left within its stream")
            if chunk := event.get("body", b""):
                yield chunk
            if not event.get("more_body"):
                return
