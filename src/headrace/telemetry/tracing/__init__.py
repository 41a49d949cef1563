"""Calls as spans of OpenTelemetry: select the calls, describe them, and send the spans to a collector.

Imported only if tracing is enabled. The serving thread selects calls and enqueues their Outcomes; one
background thread does the rest.
"""

from headrace.telemetry.tracing.spans import Describer, Routes
from headrace.telemetry.tracing.tracer import Tracer

__all__ = ["Describer", "Routes", "Tracer"]
