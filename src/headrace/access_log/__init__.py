"""The access log: a line of JSON for each call from the network, or for some.

Imported only where it is switched on. The serving thread picks the calls and hands them over; they are
written in one background thread.
"""

from headrace.access_log.log import AccessLog

__all__ = ["AccessLog"]
