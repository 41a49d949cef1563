"""Metrics of the observers of single calls: traces and the access log."""

from __future__ import annotations

from headrace.frontends.metrics.metric_type import Metric

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
