"""The metrics of what is told of single calls: of traces, and of the access log."""

from __future__ import annotations

from headrace.frontends.metric import Metric

TRACED_CALLS = Metric(
    "headrace_traced_calls",
    "counter",
    "Calls that were to be recorded as spans: sent to the collector, not taken by it, dropped as too many "
    "waited, or over the limit of so many a second.",
    ("result",),
)
LINES = Metric(
    "headrace_access_log_lines", "counter", "Lines of the access log, written or dropped.", ("result",)
)
METRICS = (TRACED_CALLS, LINES)
