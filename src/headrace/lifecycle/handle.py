"""What keeps a version loaded: requests count by themselves; a Lease is for whoever awaits in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Handle(Protocol):
    """What the Manager needs of what is loaded: the count of those who use it. Serving thread only; no lock.

    Whoever gets one from ``Manager.get`` makes it count before the serving thread does something else, by
    submitting a request to it. Who cannot holds a Lease.

    Attributes:
        on_idle: Called once, and forgotten, when the last user has let go; set while the version drains.
    """

    on_idle: Callable[[], object] | None

    @property
    def outstanding(self) -> int:
        """How many requests and Leases hold it now."""

    def acquire(self) -> None:
        """Hold it, once more."""

    def release(self) -> None:
        """Let go of it, once. It is idle from the next turn of the serving thread on, not in this one."""


LoadedT = TypeVar("LoadedT", bound=Handle)


class Lease(Generic[LoadedT]):
    """Keeps a version loaded for as long as its holder wants, also across awaits. Serving thread only.

    Leaving it as a context manager releases it. What has been submitted by then holds the version itself, and
    so does what is submitted in the same turn of the event loop.

    Attributes:
        loaded: The version.
    """

    __slots__ = ("_held", "loaded")

    def __init__(self, loaded: LoadedT) -> None:
        """Hold a version, which was got in this turn of the event loop."""
        loaded.acquire()
        self.loaded = loaded
        self._held = True

    def release(self) -> None:
        """Let go; a second time changes nothing."""
        if self._held:
            self._held = False
            self.loaded.release()

    def __enter__(self) -> LoadedT:
        """Give the version."""
        return self.loaded

    def __exit__(self, *error: object) -> None:
        """Let go."""
        self.release()
