"""Counts of the requests and Leases that keep a version loaded; a Lease is held across awaits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Handle(Protocol):
    """A loaded version as the Manager sees it: a count of its users. Serving thread only; no lock.

    A request counts as a user from the moment it is submitted. A caller of ``Manager.get`` must therefore
    submit in the same turn of the event loop, or hold a Lease if it awaits first.

    Attributes:
        on_idle: Called once, and then reset, when the last user is gone; set while the version drains.
    """

    on_idle: Callable[[], object] | None

    @property
    def outstanding(self) -> int:
        """Number of requests and Leases that hold it."""

    def acquire(self) -> None:
        """Increment the count of users."""

    def release(self) -> None:
        """Decrement the count of users; ``on_idle`` is called in a later turn of the event loop."""


LoadedT = TypeVar("LoadedT", bound=Handle)


class Lease(Generic[LoadedT]):
    """Keeps a version loaded until it is released, also across awaits. Serving thread only.

    A Lease is a context manager that releases on exit. Requests submitted before the exit, or in the same
    turn of the event loop, hold the version themselves.

    Attributes:
        loaded: The version.
    """

    __slots__ = ("__weakref__", "_held", "loaded")

    def __init__(self, loaded: LoadedT) -> None:
        """Hold a version that was obtained in this turn of the event loop."""
        loaded.acquire()
        self.loaded = loaded
        self._held = True

    def release(self) -> None:
        """Release the version; idempotent."""
        if self._held:
            self._held = False
            self.loaded.release()

    def __enter__(self) -> LoadedT:
        """Return the version."""
        return self.loaded

    def __exit__(self, *error: object) -> None:
        """Release the version."""
        self.release()
