"""The paths that Prometheus scrapes: headrace's own, and TensorFlow Serving's."""

from __future__ import annotations

from headrace.access.permissions import METRICS
from headrace.frontends.calls import HttpCall, HttpReply, HttpRoute
from headrace.frontends.metrics import protobuf_format
from headrace.frontends.service import Service

_TEXT = ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),)
_PROTOBUF = ((b"content-type", protobuf_format.CONTENT_TYPE),)


def http_routes(service: Service) -> list[HttpRoute]:
    """Return the routes of the metrics.

    Args:
        service: Provides the metrics.
    """

    async def metrics(call: HttpCall) -> HttpReply:
        if service.as_protobuf and protobuf_format.wanted(call.header(b"accept") or b""):
            return HttpReply(await service.metrics_as_protobuf(), headers=_PROTOBUF)
        return HttpReply(await service.metrics(), headers=_TEXT)

    return [
        HttpRoute("GET", "/metrics", metrics, METRICS),
        HttpRoute("GET", "/monitoring/prometheus/metrics", metrics, METRICS),
    ]
