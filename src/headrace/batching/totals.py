"""What all versions of each model have done, those that are gone included."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Protocol
from weakref import ref

from headrace.batching.statistics import VersionStatistics


class Counted(Protocol):
    """A version that counts what it does.

    Attributes:
        name: The model's name.
    """

    name: str

    def all_statistics(self) -> tuple[VersionStatistics, ...]:
        """What it has done, in the serving thread and in others."""


class ModelTotals:
    """What all versions of each model have done since the start, those that are gone included.

    Totals that a version takes with it when it is unloaded would look like a server that starts again.
    """

    def __init__(self) -> None:
        """Start without models."""
        self._gone: dict[str, VersionStatistics] = {}
        self._there: dict[str, list[tuple[ref[Counted], tuple[VersionStatistics, ...]]]] = {}

    def include(self, loaded: Counted) -> None:
        """Count a version from now on."""
        self._there.setdefault(loaded.name, []).append((ref(loaded), loaded.all_statistics()))
        self._fold(loaded.name)

    def of_models(self) -> Iterator[tuple[str, VersionStatistics]]:
        """The totals of each model, added up when it is asked for."""
        for name in list(self._there):
            self._fold(name)
            total = VersionStatistics()
            for statistics in chain([self._gone[name]], *(parts for _, parts in self._there[name])):
                total.add(statistics)
            yield name, total

    def _fold(self, name: str) -> None:
        """Add up the versions that are gone, whose numbers cannot change any more: one for each model."""
        gone = self._gone.setdefault(name, VersionStatistics())
        there = []
        for version, parts in self._there[name]:
            if version() is None:
                for statistics in parts:
                    gone.add(statistics)
            else:
                there.append((version, parts))
        self._there[name] = there
