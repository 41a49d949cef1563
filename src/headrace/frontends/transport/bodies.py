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

    async def read(self, receive: Receive) -> bytes:
        """Read a whole body; the caller gives its bytes back with ``release`` when the request is answered.

        Raises:
            TooLarge: It is larger than one body may be; reading stops there.
            Overloaded: All bodies together would be.
            DeadlineExceeded: It took too long to arrive.
            Cancelled: The client left.
        """
        event = await receive()
        body: bytes = event.get("body", b"")
        if event.get("more_body"):
            event = await receive()
            # Most clients send the end mark apart from the only chunk; anything else is gathered.
            if event.get("more_body") or event.get("body") or event["type"] != "http.request":
                body = await self._gather(receive, body, event)
        elif event["type"] != "http.request":
            raise Cancelled("the client left before its request had arrived")
        self.hold(len(body))
        return body

    def hold(self, size: int) -> None:
        """Count bytes as held.

        Raises:
            TooLarge: They are more than one body may have.
            Overloaded: All bodies together would have too many.
        """
        if size > self.limits.max_message_bytes:
            raise TooLarge(
                f"the body has {size} bytes; this server takes at most {self.limits.max_message_bytes}"
            )
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
        """Read what follows the first chunk, beginning with the event that came after it."""
        chunks, size = [first], len(first)
        try:
            async with asyncio.timeout(self.limits.body_timeout_seconds):
                while True:
                    if event["type"] == "http.disconnect":
                        raise Cancelled("the client left before its request had arrived")
                    chunk: bytes = event.get("body", b"")
                    chunks.append(chunk)
                    size += len(chunk)
                    self.hold(size)  # only a check: what is held is counted once, by the caller
                    self.release(size)
                    if not event.get("more_body"):
                        return b"".join(chunks)
                    event = await receive()
        except TimeoutError:
            raise DeadlineExceeded(
                f"the body had not arrived after {self.limits.body_timeout_seconds:g} s; "
                f"{size} bytes of it had"
            ) from None

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
