"""The paths that Prometheus scrapes: headrace's own, and TensorFlow Serving's."""

from __future__ import annotations

from headrace.access.permissions import METRICS
from headrace.frontends.calls import HttpCall, HttpReply, HttpRoute
from headrace.frontends.metrics.prometheus_formats import (
    PROTOBUF_CONTENT_TYPE,
    TEXT_CONTENT_TYPE,
    prefers_protobuf,
)
from headrace.frontends.service import Service

_TEXT = ((b"content-type", TEXT_CONTENT_TYPE),)
_PROTOBUF = ((b"content-type", PROTOBUF_CONTENT_TYPE),)


def http_routes(service: Service) -> list[HttpRoute]:
    """Return the routes of the metrics.

    Args:
        service: Provides the metrics.
    """

    async def metrics(call: HttpCall) -> HttpReply:
        if service.as_protobuf and prefers_protobuf(call.header(b"accept") or b""):
            return HttpReply(await service.metrics_as_protobuf(), headers=_PROTOBUF)
        return HttpReply(await service.metrics(), headers=_TEXT)

    return [
        HttpRoute("GET", "/metrics", metrics, METRICS),
        HttpRoute("GET", "/monitoring/prometheus/metrics", metrics, METRICS),
    ]
