"""Decide which calls are recorded, when they arrive, before anything is allocated for them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from headrace.base.trace_context import TRACEPARENT, Headers, Parent, TraceContext, parent_in, state_in


class ParentBased:
    """Records what the caller records, and a share of the traces that begin here, up to a rate limit.

    Attributes:
        over_limit: Number of calls that were selected, but not recorded because of the rate limit.
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
        """Start with the whole second's limit available.

        Args:
            rate: Share of traces recorded if no caller has decided.
            most_per_second: Largest number of calls recorded per second.
            follows_parent: Whether the caller's decision applies.
            now: Monotonic clock.
            draw: Function that returns a random number from 0 to below 1.
        """
        self.over_limit = 0
        self._rate, self._most, self._follows_parent = rate, most_per_second, follows_parent
        self._now, self._draw = now, draw
        self._left, self._since = float(most_per_second), now()

    def sample(self, headers: Headers) -> TraceContext | None:
        """Decide whether to record a call from the network.

        Args:
            headers: HTTP headers, or gRPC metadata.

        Returns:
            The call's place in its trace; None if it is not recorded.
        """
        for name, _ in headers:
            if name == TRACEPARENT:
                return self._decided(parent_in(headers), headers)
        # `_decided`, inlined: this is on the path of each call that is not recorded.
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
        """Return the context of a message of a recorded stream; None if the rate limit is reached."""
        return context.child() if self._has_room() else None

    def _has_room(self) -> bool:
        """Take one from a token bucket that refills steadily and holds one second's worth."""
        now = self._now()
        self._left = min(self._most, self._left + (now - self._since) * self._most)
        self._since = now
        if self._left < 1:
            self.over_limit += 1
            return False
        self._left -= 1
        return True
