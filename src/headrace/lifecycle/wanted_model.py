"""The wanted state of a model, which a Source always states in full; what it omits is not wanted."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from headrace.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Wanted:
    """The complete wanted state of one model.

    Attributes:
        versions: Directories of the versions to serve, by number.
        config: The model's settings.
        labels: Wanted label targets.
        fingerprints: Per version, a value that changes when its directory does, so that a failed load is
            retried; versions without one never change.
        problem: Why this differs from what the operator asked for, such as a pin to a missing version or an
            invalid setting; "" if it does not. Shown to clients.
        detail: Details of the problem for the operator's log, or "".
    """

    versions: Mapping[int, Path] = field(default_factory=dict)
    config: ModelConfig = field(default_factory=ModelConfig)
    labels: Mapping[str, int] = field(default_factory=dict)
    fingerprints: Mapping[int, Hashable] = field(default_factory=dict)
    problem: str = ""
    detail: str = ""


Want = Callable[[Mapping[str, Wanted], Mapping[str, str]], object]
"""Receives the wanted state of all models by name, and the reasons for unusable names."""


class Source(Protocol):
    """Determines which versions are wanted, and reports changes."""

    def start(self) -> None:
        """Start reporting. Serving thread only."""

    def stop(self) -> None:
        """Stop reporting; the last wanted state stays in force."""
