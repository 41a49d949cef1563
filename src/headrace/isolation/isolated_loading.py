"""Load a version into a process of its own, with the preparations needed in the server."""

from __future__ import annotations

from pathlib import Path

from headrace.batching.cost import BatchCost
from headrace.config import ModelConfig
from headrace.isolation.replica import Which
from headrace.isolation.servable import IsolatedServable
from headrace.lifecycle.warmup import warm_up
from headrace.model.servable import Servable, takes_packed
from headrace.runtimes.options import RuntimeOptions

__all__ = ["Which", "load"]


def load(which: Which, recorded_in: Path, options: RuntimeOptions, config: ModelConfig) -> IsolatedServable:
    """Load a version, in a loader thread.

    Args:
        which: The version.
        recorded_in: Version directory in which recorded requests are looked up.
        options: Options as for a runtime.
        config: The model's settings.

    Raises:
        LoadError: The version cannot be loaded, or its process ended meanwhile.
    """

    def warm(started: Servable) -> None:
        # With inputs from the archive, recorded requests hold keys in place of the model's inputs.
        warm_up(started, config, None if config.inputs else recorded_in, BatchCost())

    loaded = IsolatedServable(which, options, config, warm=warm)
    if takes_packed(loaded):
        options.share(_ready_to_pack)
    return loaded


def _ready_to_pack() -> None:
    """Compile the kernels with which front ends pack texts, as a click model in the server does."""
    from headrace.model import packed_kernels  # noqa: PLC0415

    packed_kernels.run_once()
