"""The access log: a line of JSON for each call from the network, or for a sample of them.

Imported only if it is enabled. The serving thread selects the calls and enqueues them; one background thread
writes their lines.
"""

from headrace.telemetry.access_log.log import AccessLog

__all__ = ["AccessLog"]
