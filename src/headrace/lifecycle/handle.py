"""Handles: what a request holds for its own time, so that a version is unloaded only when nobody uses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Handle(Protocol):
    """What the Manager needs of what is loaded: the count of those who use it. Serving thread only; no lock.

    Whoever gets one from ``Manager.get`` makes it count before the serving thread does something else.

    Attributes:
        on_idle: Called once, and forgotten, when the last request lets go; set while the version drains.
    """

    on_idle: Callable[[], object] | None

    @property
    def outstanding(self) -> int:
        """How many requests hold it now."""
