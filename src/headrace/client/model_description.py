"""The description of a model that is called by name, in this process or on another server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.model.servable import TensorSpec


@dataclass(frozen=True, slots=True)
class CalledModel:
    """Description of a served version.

    Attributes:
        version: Number of the version.
        inputs: Inputs of the model.
        outputs: Names of its outputs.
        files: Files that it was loaded from; empty if unknown, as for a remote model.
    """

    version: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    files: tuple[Path, ...] = ()
