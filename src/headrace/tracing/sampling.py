"""Which calls are recorded: decided when they come, before anything is made for them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from headrace.trace_context import TRACEPARENT, Headers, Parent, TraceContext, parent_in, state_in


class ParentBased:
    """Records what the caller records, and a part of the traces that begin here; so many a second at most.

    Attributes:
        over_limit: How many calls were to be recorded, and were not, as too many had been in that second.
    """

    def __init__(
        self,
        rate: float,
        most_per_second: int,
        *,
        follows_parent: bool = True,
        now: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Begin.

        Args:
            rate: Which part of the traces is recorded that nobody has decided on.
            most_per_second: How many calls a second are recorded at the most.
            follows_parent: Whether what the caller has decided holds.
            now: The monotonic time.
            draw: A random number from 0 to below 1.
        """
        self.over_limit = 0
        self._rate, self._most, self._follows_parent = rate, most_per_second, follows_parent
        self._now, self._draw = now, draw
        self._left, self._since = float(most_per_second), now()

    def sample(self, headers: Headers) -> TraceContext | None:
        """Decide on a call from the network.

        Args:
            headers: HTTP headers, or gRPC's metadata.

        Returns:
            Its place in its trace; None if it is not recorded.
        """
        for name, _ in headers:
            if name == TRACEPARENT:
                return self._decided(parent_in(headers), headers)
        # Spelled out: this is on the way of each call that nobody records.
        if self._draw() >= self._rate or not self._has_room():
            return None
        return TraceContext(None, is_recorded=True)

    def _decided(self, parent: Parent | None, headers: Headers) -> TraceContext | None:
        is_wanted = (
            parent.is_sampled if parent is not None and self._follows_parent else self._draw() < self._rate
        )
        if not is_wanted or not self._has_room():
            return None
        return TraceContext(parent, "" if parent is None else state_in(headers), is_recorded=True)

    def child(self, context: TraceContext) -> TraceContext | None:
        """Decide on a message of a stream that is recorded: it is, too, if there is room."""
        return context.child() if self._has_room() else None

    def _has_room(self) -> bool:
        """Take one of so many a second, which come back steadily; as many may come at once."""
        now = self._now()
        self._left = min(self._most, self._left + (now - self._since) * self._most)
        self._since = now
        if self._left < 1:
            self.over_limit += 1
            return False
        self._left -= 1
        return True
