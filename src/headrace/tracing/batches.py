"""The spans of batches: each links the recorded requests that shared it, which come one after another."""

from __future__ import annotations

from headrace.batching.request import Origin, Timings
from headrace.trace_context import TraceContext

MOST_LINKS = 128
"""How many requests the span of a batch names; OpenTelemetry's own limit of links."""

_MOST_HELD = 4096


class BatchSpan:
    """A batch of which at least one request is recorded; a trace of its own.

    Attributes:
        context: Its span.
        origin: The model and version that computed it.
        timings: Its times, rows and requests.
        links: The spans of its recorded requests.
        since: When the first of them came, on the monotonic clock.
    """

    __slots__ = ("context", "links", "origin", "since", "timings")

    def __init__(self, origin: Origin, timings: Timings, since: float) -> None:
        """Begin with no request."""
        self.context = TraceContext(None, is_recorded=True)
        self.origin = origin
        self.timings = timings
        self.links: list[TraceContext] = []
        self.since = since

    @property
    def is_whole(self) -> bool:
        """Whether no request can come any more."""
        return len(self.links) >= self.timings.requests


class Batches:
    """The batches whose requests are still coming."""

    def __init__(self, wait_seconds: float) -> None:
        """Begin.

        Args:
            wait_seconds: How long a batch waits for its other requests. Nobody knows which are recorded.
        """
        self._wait_seconds = wait_seconds
        self._held: dict[Timings, BatchSpan] = {}

    def join(self, origin: Origin, timings: Timings, request: TraceContext, now: float) -> BatchSpan:
        """Add a request to its batch.

        Args:
            origin: What computed it.
            timings: The batch's own object, by which it is known.
            request: The request's span.
            now: The monotonic time.
        """
        batch = self._held.get(timings)
        if batch is None:
            batch = self._held[timings] = BatchSpan(origin, timings, now)
        if len(batch.links) < MOST_LINKS:
            batch.links.append(request)
        return batch

    def due(self, now: float, *, is_last: bool = False) -> list[BatchSpan]:
        """The batches that wait no longer, or all; they are forgotten here."""
        too_many = len(self._held) - _MOST_HELD
        found = [
            batch
            for place, batch in enumerate(self._held.values())
            if is_last or place < too_many or batch.is_whole or now - batch.since >= self._wait_seconds
        ]
        for batch in found:
            del self._held[batch.timings]
        return found
