"""Serves models in milliseconds: batched, in versions, in process or over REST and gRPC."""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
