"""Calls as spans of OpenTelemetry: which are recorded, what they say, and how they get to a collector.

Imported only where tracing is switched on. The serving thread decides and hands Outcomes over; everything
else is done in one background thread.
"""

from headrace.tracing.spans import Describer, Routes
from headrace.tracing.tracer import Tracer

__all__ = ["Describer", "Routes", "Tracer"]
