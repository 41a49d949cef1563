"""The paths at which Prometheus scrapes: our own, and TensorFlow Serving's."""

from __future__ import annotations

from headrace.frontends.calls import HttpCall, HttpReply, HttpRoute
from headrace.frontends.service import Service

_TEXT = ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),)


def http_routes(service: Service) -> list[HttpRoute]:
    """The routes of the metrics.

    Args:
        service: What is measured.
    """

    async def metrics(_call: HttpCall) -> HttpReply:
        return HttpReply(service.metrics(), headers=_TEXT)

    return [
        HttpRoute("GET", "/metrics", metrics),
        HttpRoute("GET", "/monitoring/prometheus/metrics", metrics),
    ]
