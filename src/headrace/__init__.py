"""Serves models in milliseconds: batched across concurrent requests, in versions, in process or over REST and gRPC."""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
