"""What a server tells of single calls, put together of its settings: traces, and the access log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from headrace.config import ServerConfig
from headrace.frontends.calls import GrpcMethod, HttpRoute
from headrace.frontends.metrics import family
from headrace.frontends.observing_metrics import LINES, TRACED_CALLS
from headrace.frontends.service import Service

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

    from headrace.access_log import AccessLog
    from headrace.tracing import Tracer

_LEAST_CLOSE_SECONDS, _MOST_CLOSE_SECONDS = 0.5, 5.0


class Observing:
    """What observes the calls of one server."""

    def __init__(
        self,
        config: ServerConfig,
        service: Service,
        routes: Iterable[HttpRoute],
        methods: Iterable[GrpcMethod],
    ) -> None:
        """Observe the calls that come from now on.

        Args:
            config: The settings.
            service: The server's; told of the metrics.
            routes: The paths of REST.
            methods: Those of gRPC.

        Raises:
            ConfigError: A file cannot be written, or a package is missing.
        """
        self._log: AccessLog | None = None
        self._tracer: Tracer | None = None
        if config.access_log.path is not None:
            from headrace.access_log import AccessLog  # noqa: PLC0415 - only where it is wanted

            self._log = AccessLog(config.access_log, service.outcomes)
        if config.tracing.is_on:
            from headrace.tracing import Describer, Routes, Tracer  # noqa: PLC0415 - an extra

            describer = Describer(
                Routes(route.pattern for route in routes),
                (method.path for method in methods),
                "https" if config.tls.wanted else "http",
            )
            self._tracer = Tracer.start(config.tracing, service.outcomes, describer, service.version)
        service.also_measures(self)

    def collect(self) -> Iterator[Family]:
        """The metrics of what was told, and what was not."""
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
        """Open the access log anew: what had its name may have been moved away."""
        if self._log is not None:
            self._log.reopen()

    async def close(self, until: float) -> None:
        """Write and send what waits, once no call is under way any more.

        Args:
            until: When the server is to have ended, on the monotonic clock; half a second is given in any
                case.
        """
        await asyncio.to_thread(self._close, until)

    def _close(self, until: float) -> None:
        for one in (self._log, self._tracer):
            if one is not None:
                one.close(min(_MOST_CLOSE_SECONDS, max(_LEAST_CLOSE_SECONDS, until - time.monotonic())))
