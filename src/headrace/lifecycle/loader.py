"""The Loader: what the Manager needs from whoever knows models."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from headrace.config import ModelConfig
from headrace.lifecycle.handle import LoadedT


class Loader(Protocol[LoadedT]):
    """What makes a version directory into something that serves."""

    def load(self, model: str, version: int, path: Path, config: ModelConfig) -> LoadedT:
        """Check and load a version, in a loader thread; whatever it raises is the version's error."""

    def warm_up(self, loaded: LoadedT) -> None:
        """Answer recorded requests, in a loader thread; whatever it raises is the version's error."""

    def attach(self, loaded: LoadedT) -> None:
        """Make it ready for requests, in the serving thread, just before the first may come."""

    def close(self, loaded: LoadedT) -> None:
        """Free what it holds, in a loader thread, when no request holds it."""
