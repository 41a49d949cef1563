"""What a Source says: everything that is wanted of a model, whole; what it leaves out is not wanted."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from headrace.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Wanted:
    """Everything that is wanted of one model.

    Attributes:
        versions: The versions to serve, and where each lies.
        config: How to serve them.
        labels: Where labels are to point.
        fingerprints: What tells that a version's directory has changed since a failed load; absent ones never
            change.
        problem: Why this is not what the operator asked for, or "": a pin that leads nowhere, a broken
            setting. Clients are told it.
        detail: What only the operator is told of the problem, in the log, or "".
    """

    versions: Mapping[int, Path] = field(default_factory=dict)
    config: ModelConfig = field(default_factory=ModelConfig)
    labels: Mapping[str, int] = field(default_factory=dict)
    fingerprints: Mapping[int, Hashable] = field(default_factory=dict)
    problem: str = ""
    detail: str = ""


Want = Callable[[Mapping[str, Wanted], Mapping[str, str]], object]
"""Told everything that is wanted of all models, and what cannot be used, by name, and why."""


class Source(Protocol):
    """Who says which versions are wanted."""

    def start(self) -> None:
        """Begin to say it. Serving thread."""

    def stop(self) -> None:
        """Say nothing more; what was wanted last stays wanted."""
