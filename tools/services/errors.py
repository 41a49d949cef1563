"""What can go wrong with a server, in words for whoever started it."""

from __future__ import annotations


class ServiceError(Exception):
    """A server could not be fetched, started or stopped; the text says why and what to do."""
