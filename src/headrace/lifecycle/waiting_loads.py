"""The versions that wait to be loaded, the most urgent first; at most one of each model."""

from __future__ import annotations

import heapq
from typing import Generic, NamedTuple

from headrace.lifecycle.handle import LoadedT
from headrace.lifecycle.records import ModelRecord, VersionRecord


class _Urgency(NamedTuple):
    """What comes first: models with nothing ready, then those that were tried least, then by name."""

    is_replacement: bool
    attempts: int
    model: str
    number: int


class WaitingLoads(Generic[LoadedT]):
    """Those that wait. At a start all models do, so to take one costs the logarithm of their number."""

    def __init__(self) -> None:
        """Begin with none."""
        self._waiting: dict[str, tuple[_Urgency, ModelRecord[LoadedT], VersionRecord[LoadedT]]] = {}
        self._in_order: list[_Urgency] = []

    def __bool__(self) -> bool:
        """Whether any waits."""
        return bool(self._waiting)

    def put(
        self, model: ModelRecord[LoadedT], version: VersionRecord[LoadedT], *, is_replacement: bool
    ) -> None:
        """Let a version wait, instead of any other of its model.

        Args:
            model: Its model.
            version: The version.
            is_replacement: Whether another version answers meanwhile.
        """
        urgency = _Urgency(is_replacement, version.attempts, model.name, version.number)
        self._waiting[model.name] = urgency, model, version
        heapq.heappush(self._in_order, urgency)
        if len(self._in_order) > 2 * len(self._waiting) + 1:  # most of it waits no longer
            self._in_order = sorted(urgency for urgency, _, _ in self._waiting.values())

    def drop(self, model: str) -> None:
        """Let no version of a model wait."""
        self._waiting.pop(model, None)

    def take(self) -> tuple[ModelRecord[LoadedT], VersionRecord[LoadedT]]:
        """Take the most urgent one.

        Raises:
            IndexError: None waits.
        """
        while True:
            urgency = heapq.heappop(self._in_order)
            waiting = self._waiting.get(urgency.model)
            if waiting is not None and waiting[0] is urgency:
                del self._waiting[urgency.model]
                return waiting[1], waiting[2]
