"""Handles: what a request holds for its own time, so that a version is unloaded only when nobody uses it.

Serving thread only; no lock. A request that found a version with ``Manager.get`` calls ``acquire`` before it
yields to the event loop, and ``release`` once when it is settled.
"""

from __future__ import annotations

from collections.abc import Callable


class Handle:
    """The count of requests that use a version; what is loaded inherits it.

    Attributes:
        outstanding: How many requests hold it now.
        on_idle: Called once when the last of them lets go; set by the Manager while the version drains.
    """

    __slots__ = ("on_idle", "outstanding")

    def __init__(self) -> None:
        """Start with no request."""
        self.outstanding = 0
        self.on_idle: Callable[[], object] | None = None

    def acquire(self) -> None:
        """A request begins to use it."""
        self.outstanding += 1

    def release(self) -> None:
        """A request has ended.

        Raises:
            RuntimeError: Nobody held it: a request was released twice. This is a bug in headrace.
        """
        left = self.outstanding = self.outstanding - 1
        if left <= 0:
            self._emptied(left)

    def _emptied(self, left: int) -> None:
        if left < 0:
            self.outstanding = 0
            raise RuntimeError("a handle was released that nobody held")
        if self.on_idle is not None:
            on_idle, self.on_idle = self.on_idle, None
            on_idle()
