"""The Loader interface, by which the Manager loads and closes versions."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from headrace.config import ModelConfig
from headrace.lifecycle.handle import LoadedT


class Loader(Protocol[LoadedT]):
    """Turns a version directory into a loaded version."""

    def load(self, model: str, version: int, path: Path, config: ModelConfig) -> LoadedT:
        """Check and load a version, in a loader thread; any exception becomes the version's error."""

    def warm_up(self, loaded: LoadedT) -> None:
        """Warm the version up, in a loader thread; any exception becomes the version's error."""

    def attach(self, loaded: LoadedT) -> None:
        """Make it ready for requests, in the serving thread, just before the first may arrive."""

    def close(self, loaded: LoadedT) -> None:
        """Free its resources, in a loader thread, once no request holds it."""
