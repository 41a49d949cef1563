"""Loads a version into a process of its own, with all that the server has to do for it."""

from __future__ import annotations

from pathlib import Path

from headrace.batching.cost import BatchCost
from headrace.config import ModelConfig
from headrace.isolation.replica import Which
from headrace.isolation.servable import IsolatedServable
from headrace.runtimes.options import RuntimeOptions
from headrace.servable import Servable, takes_packed
from headrace.warmup import warm_up

__all__ = ["Which", "load"]


def load(which: Which, recorded_in: Path, options: RuntimeOptions, config: ModelConfig) -> IsolatedServable:
    """Load a version, in a loader thread.

    Args:
        which: The version.
        recorded_in: The version directory that recorded requests are looked for in.
        options: As for a runtime.
        config: The model's settings.

    Raises:
        LoadError: It cannot be loaded, or its process ended over it.
    """

    def warm(started: Servable) -> None:
        # With inputs from the archive, requests are recorded as they came: with keys in place of those.
        warm_up(started, config, None if config.inputs else recorded_in, BatchCost())

    loaded = IsolatedServable(which, options, config, warm=warm)
    if takes_packed(loaded):
        options.share(_ready_to_pack)
    return loaded


def _ready_to_pack() -> None:
    """Have what front ends pack texts with compiled, as a click model does that is loaded in the server."""
    from headrace.packed import kernels  # noqa: PLC0415 - an extra, and only where texts are packed

    kernels.run_once()
