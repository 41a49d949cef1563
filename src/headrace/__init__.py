"""Serves models in milliseconds: batched across concurrent callers, in versions, in process or over the network."""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
