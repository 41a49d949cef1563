"""The spans of batches: each links to the recorded requests of its batch, which end one after another."""

from __future__ import annotations

from headrace.base.trace_context import TraceContext
from headrace.batching.request import Origin, Timings

MOST_LINKS = 128
"""Largest number of requests linked by the span of a batch; OpenTelemetry's own limit of links."""

_MOST_HELD = 4096
_MOST_SENT = 4096


class BatchSpan:
    """A batch with at least one recorded request; it has a trace of its own.

    Attributes:
        context: Trace context of its span.
        origin: Model and version that computed it.
        timings: Times of the batch, and its numbers of rows and requests.
        links: Trace contexts of its recorded requests.
        since: Time at which the first of them was added, on the monotonic clock.
    """

    __slots__ = ("context", "links", "origin", "since", "timings")

    def __init__(self, origin: Origin, timings: Timings, since: float) -> None:
        """Start without requests."""
        self.context = TraceContext(None, is_recorded=True)
        self.origin = origin
        self.timings = timings
        self.links: list[TraceContext] = []
        self.since = since

    @property
    def is_whole(self) -> bool:
        """Whether as many requests are linked as the batch had; only calls that joined one can follow."""
        return len(self.links) >= self.timings.requests


class Batches:
    """The batches that wait for further requests."""

    def __init__(self, wait_seconds: float) -> None:
        """Start without batches.

        Args:
            wait_seconds: How long a batch is held for further recorded requests, whose number is unknown.
        """
        self._wait_seconds = wait_seconds
        self._held: dict[Timings, BatchSpan] = {}
        self._sent: dict[Timings, TraceContext] = {}

    def join(self, origin: Origin, timings: Timings, request: TraceContext, now: float) -> BatchSpan:
        """Add a request to its batch, and return the batch.

        ``due`` returns each batch once. A late request still refers to the span of its batch, which has no
        link to the request.

        Args:
            origin: Model and version that computed the batch.
            timings: Timings object of the batch, which identifies it.
            request: Trace context of the request.
            now: Current time on the monotonic clock.
        """
        batch = self._held.get(timings)
        if batch is None:
            batch = BatchSpan(origin, timings, now)
            if (sent := self._sent.get(timings)) is not None:
                batch.context = sent
                return batch
            self._held[timings] = batch
        if len(batch.links) < MOST_LINKS:
            batch.links.append(request)
        return batch

    def due(self, now: float, *, is_last: bool = False) -> list[BatchSpan]:
        """Remove and return the batches that need not wait any longer; all of them if ``is_last``."""
        too_many = len(self._held) - _MOST_HELD
        found = [
            batch
            for place, batch in enumerate(self._held.values())
            if is_last or place < too_many or batch.is_whole or now - batch.since >= self._wait_seconds
        ]
        for batch in found:
            del self._held[batch.timings]
            self._sent[batch.timings] = batch.context
        for timings in list(self._sent)[: max(0, len(self._sent) - _MOST_SENT)]:
            del self._sent[timings]
        return found
