"""Network addresses as text."""

from __future__ import annotations


def bracketed(host: str) -> str:
    """Return a host as it stands in a URL and before a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host
