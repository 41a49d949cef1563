"""Priority queue of the versions to load, with at most one version per model."""

from __future__ import annotations

import heapq
from typing import Generic, NamedTuple

from headrace.lifecycle.handle import LoadedT
from headrace.lifecycle.model_records import ModelRecord, VersionRecord


class _Urgency(NamedTuple):
    """Sort key of loads: first models without a ready version, then fewest attempts, then by name."""

    is_replacement: bool
    attempts: int
    model: str
    number: int


class WaitingLoads(Generic[LoadedT]):
    """The queued loads. At start-up all models are queued, so ``take`` has logarithmic cost."""

    def __init__(self) -> None:
        """Create an empty queue."""
        self._waiting: dict[str, tuple[_Urgency, ModelRecord[LoadedT], VersionRecord[LoadedT]]] = {}
        self._in_order: list[_Urgency] = []

    def __bool__(self) -> bool:
        """Return whether a version is queued."""
        return bool(self._waiting)

    def put(
        self, model: ModelRecord[LoadedT], version: VersionRecord[LoadedT], *, is_replacement: bool
    ) -> None:
        """Queue a version, in place of any other of its model.

        Args:
            model: Its model.
            version: The version.
            is_replacement: Whether another version of the model serves meanwhile.
        """
        urgency = _Urgency(is_replacement, version.attempts, model.name, version.number)
        self._waiting[model.name] = urgency, model, version
        heapq.heappush(self._in_order, urgency)
        if len(self._in_order) > 2 * len(self._waiting) + 1:  # most entries are stale
            self._in_order = sorted(urgency for urgency, _, _ in self._waiting.values())

    def drop(self, model: str) -> None:
        """Remove a model's version from the queue, if there is one."""
        self._waiting.pop(model, None)

    def take(self) -> tuple[ModelRecord[LoadedT], VersionRecord[LoadedT]]:
        """Remove and return the most urgent version with its model.

        Raises:
            IndexError: The queue is empty.
        """
        while True:
            urgency = heapq.heappop(self._in_order)
            waiting = self._waiting.get(urgency.model)
            if waiting is not None and waiting[0] is urgency:
                del self._waiting[urgency.model]
                return waiting[1], waiting[2]
