"""Observers of single calls, built from a server's settings: tracing and the access log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from headrace.config import ServerConfig
from headrace.frontends.calls import GrpcMethod, HttpRoute
from headrace.frontends.metrics.metric_types import Metric, family
from headrace.frontends.service import Service

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

    from headrace.telemetry.access_log import AccessLog
    from headrace.telemetry.tracing import Tracer

TRACED_CALLS = Metric(
    "headrace_traced_calls",
    "counter",
    "Calls to be recorded as spans: sent to the collector, rejected by it, dropped from a full queue, or "
    "over the limit per second.",
    ("result",),
)
LINES = Metric(
    "headrace_access_log_lines", "counter", "Lines of the access log, written or dropped.", ("result",)
)
METRICS = (TRACED_CALLS, LINES)


_LEAST_CLOSE_SECONDS, _MOST_CLOSE_SECONDS = 0.5, 5.0


class Observing:
    """The observers of one server's calls."""

    def __init__(
        self,
        config: ServerConfig,
        service: Service,
        routes: Iterable[HttpRoute],
        methods: Iterable[GrpcMethod],
    ) -> None:
        """Observe the calls that arrive from now on.

        Args:
            config: The settings.
            service: The server's Service, which also gets the observers' metrics.
            routes: The REST routes.
            methods: The gRPC methods.

        Raises:
            ConfigError: A file cannot be written, or a package is missing.
        """
        self._log: AccessLog | None = None
        self._tracer: Tracer | None = None
        if config.access_log.path is not None:
            from headrace.telemetry.access_log import AccessLog  # noqa: PLC0415 - only if enabled

            self._log = AccessLog(config.access_log, service.outcomes)
        if config.tracing.is_on:
            from headrace.telemetry.tracing import Describer, Routes, Tracer  # noqa: PLC0415 - an extra

            describer = Describer(
                Routes(route.pattern for route in routes),
                (method.path for method in methods),
                "https" if config.tls.wanted else "http",
            )
            self._tracer = Tracer.start(config.tracing, service.outcomes, describer, service.version)
        service.also_measures(self)

    def collect(self) -> Iterator[Family]:
        """Yield the metrics of reported and dropped calls."""
        if self._tracer is not None:
            traced = family(TRACED_CALLS)
            counts = {
                "sent": self._tracer.sent,
                "unsent": self._tracer.unsent,
                "dropped": self._tracer.dropped,
                "over_limit": self._tracer.over_limit,
            }
            for result, count in counts.items():
                traced.add_metric([result], count)
            yield traced
        if self._log is not None:
            lines = family(LINES)
            lines.add_metric(["written"], self._log.written)
            lines.add_metric(["dropped"], self._log.dropped)
            yield lines

    def reopen(self) -> None:
        """Reopen the access log, whose file may have been rotated."""
        if self._log is not None:
            self._log.reopen()

    async def close(self, until: float) -> None:
        """Write and send pending records, once no call is in flight.

        Args:
            until: Deadline of the server's shutdown on the monotonic clock. Each observer gets at least half
                a second, and at most five.
        """
        await asyncio.to_thread(self._close, until)

    def _close(self, until: float) -> None:
        for one in (self._log, self._tracer):
            if one is not None:
                one.close(min(_MOST_CLOSE_SECONDS, max(_LEAST_CLOSE_SECONDS, until - time.monotonic())))
