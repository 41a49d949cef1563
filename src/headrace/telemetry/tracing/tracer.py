"""Enqueue the Outcomes of recorded calls in the serving thread, and send their spans in another."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable

from headrace.base.background_queue import BackgroundQueue
from headrace.base.trace_context import TRACEPARENT, Headers, Parent, TraceContext, parent_in, state_in
from headrace.config import Tracing
from headrace.telemetry.outcomes import Outcome, Outcomes
from headrace.telemetry.tracing.exporters import Export, combined
from headrace.telemetry.tracing.spans import Batches, Describer, SpanData, batch_span, parts

_log = logging.getLogger(__name__)


class ParentBased:
    """Selects calls that their caller records, and a share of the traces that begin here, up to a rate limit.

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
        """Start with a full token bucket.

        Args:
            rate: Share of traces recorded where no caller's decision applies.
            most_per_second: Largest number of calls recorded per second.
            follows_parent: Whether the caller's decision applies.
            now: Monotonic clock.
            draw: Returns a random number in [0, 1).
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
        # `_decided`, inlined: most calls have no `traceparent`.
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


_AT_ONCE_CALLS = 256
# All requests of a batch are answered within a few milliseconds, except those with large answers.
_BATCH_WAIT_SECONDS = 2.0
_ABORT_SECONDS = 0.5


class Tracer:
    """Records calls as spans.

    Attributes:
        sent: Number of calls whose spans a collector has accepted.
        unsent: Number of calls whose spans could not be sent.
    """

    def __init__(
        self, export: Export, sampler: ParentBased, describer: Describer, *, most: int, every_seconds: float
    ) -> None:
        """Start the thread that sends spans.

        Args:
            export: Sender of spans.
            sampler: Sampler that decides which calls are recorded.
            describer: Maker of the spans of calls.
            most: Largest number of calls waiting to be sent.
            every_seconds: Interval between sends in seconds.
        """
        self.sent = self.unsent = 0
        self._export, self._sampler, self._describer = export, sampler, describer
        self._batches = Batches(_BATCH_WAIT_SECONDS)
        self._is_last = False
        self._queue = BackgroundQueue(
            "headrace-traces", self._send, most=most, at_once=_AT_ONCE_CALLS, every_seconds=every_seconds
        )

    @classmethod
    def start(cls, config: Tracing, outcomes: Outcomes, describer: Describer, version: str) -> Tracer | None:
        """Trace calls from now on.

        Args:
            config: Settings of tracing.
            outcomes: Records of how calls end.
            describer: Maker of the spans of calls.
            version: Version of headrace.

        Returns:
            The tracer; None if OpenTelemetry's variables disable tracing.

        Raises:
            ConfigError: A package is missing, or one of OpenTelemetry's variables is invalid.
        """
        settings = combined(config, os.environ)
        if settings is None:
            _log.info("calls are not traced: OTEL_SDK_DISABLED or OTEL_TRACES_EXPORTER disables tracing")
            return None
        sampler = ParentBased(settings.rate, settings.most_per_second, follows_parent=settings.follows_parent)
        made = cls(
            Export(settings, version),
            sampler,
            describer,
            most=settings.most_waiting,
            every_seconds=settings.every_seconds,
        )
        outcomes.observe_sampled(made._queue.put, sampler)
        return made

    @property
    def dropped(self) -> int:
        """Number of calls whose spans were never sent: too many waited, or handling them failed."""
        return self._queue.dropped

    @property
    def over_limit(self) -> int:
        """Number of calls that were not recorded because of the rate limit."""
        return self._sampler.over_limit

    def close(self, seconds: float) -> bool:
        """Send the waiting spans, and end.

        Args:
            seconds: Longest wait in seconds.

        Returns:
            Whether all spans were sent, or at least attempted.
        """
        self._is_last = True
        if self._queue.close(seconds):
            self._export.close()
            return True
        self._export.close()  # the export in flight fails, and the thread ends
        self._queue.close(_ABORT_SECONDS)
        _log.warning("not all traces could be sent before shutdown", extra={"seconds": seconds})
        return False

    def _send(self, outcomes: list[Outcome]) -> None:
        now = time.monotonic()
        spans = [span for outcome in outcomes for span in self._spans(outcome, now)]
        spans += map(batch_span, self._batches.due(now, is_last=self._is_last and not outcomes))
        if not spans:
            return
        if self._export.send(spans):
            self.sent += len(outcomes)
        else:
            self.unsent += len(outcomes)

    def _spans(self, outcome: Outcome, now: float) -> list[SpanData]:
        context = outcome.trace
        if context is None:  # calls without one are never selected
            return []
        made = [self._describer.call(outcome, context)]
        origin, timings = outcome.source or outcome.asked, outcome.timings
        if origin is not None and timings is not None and outcome.is_computed:
            batch = self._batches.join(origin, timings, context, now)
            made += parts(outcome, context, batch)
        return made
