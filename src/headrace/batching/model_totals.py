"""Totals of each model over all its versions, including unloaded ones."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Protocol
from weakref import ref

from headrace.batching.statistics import VersionStatistics


class Counted(Protocol):
    """A version with statistics.

    Attributes:
        name: The model's name.
    """

    name: str

    def all_statistics(self) -> tuple[VersionStatistics, ...]:
        """Return the statistics of its Batchers: the serving thread's, and the calling threads' if any."""


class ModelTotals:
    """Totals of each model since the server started, over all its versions, including unloaded ones.

    If totals fell when a version is unloaded, monitoring would take that for a restart of the server.
    """

    def __init__(self) -> None:
        """Begin without models."""
        self._gone: dict[str, VersionStatistics] = {}
        self._there: dict[str, list[tuple[ref[Counted], tuple[VersionStatistics, ...]]]] = {}

    def include(self, loaded: Counted) -> None:
        """Include a version from now on."""
        self._there.setdefault(loaded.name, []).append((ref(loaded), loaded.all_statistics()))
        self._fold(loaded.name)

    def of_models(self) -> Iterator[tuple[str, VersionStatistics]]:
        """Yield each model's name and its totals, added up on demand."""
        for name in list(self._there):
            self._fold(name)
            total = VersionStatistics()
            for statistics in chain([self._gone[name]], *(parts for _, parts in self._there[name])):
                total.add(statistics)
            yield name, total

    def _fold(self, name: str) -> None:
        """Fold the final statistics of a model's unloaded versions into one sum."""
        gone = self._gone.setdefault(name, VersionStatistics())
        there = []
        for version, parts in self._there[name]:
            if version() is None:
                for statistics in parts:
                    gone.add(statistics)
            else:
                there.append((version, parts))
        self._there[name] = there
