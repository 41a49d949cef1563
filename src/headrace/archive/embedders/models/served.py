"""Served: one version of a model somewhere that answers by name; the contract for local and remote ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headrace.disk import visible_files
from headrace.errors import NotFound, shown
from headrace.servable import DEFAULT_SIGNATURE, Signature, TensorSpec
from headrace.tensors import Array, Tensors


@dataclass(frozen=True, slots=True)
class Description:
    """What is known of a served version.

    Attributes:
        version: Its number.
        inputs: What it takes.
        outputs: The names of what it gives.
        files: What it was loaded from; nothing is known of a remote one's.
    """

    version: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    files: tuple[Path, ...] = ()


class Served(Protocol):
    """One version of a model that answers by name; may be called by several threads at once."""

    def describe(self) -> Description:
        """What it takes and gives.

        Raises:
            Refused: It cannot be said now.
            HeadraceError: There is no such model.
        """

    def predict(self, name: str, values: Array, output: str) -> Array:
        """Answer a batch.

        Args:
            name: Its one input.
            values: The input's values, of its dtype.
            output: Which output.

        Raises:
            Refused: Nothing was computed, or not in time; it may be later.
            InvalidRequest: The model does not take these values.
            ModelError: The model failed on them.
            HeadraceError: There is no such model any more.
        """

    def close(self) -> None:
        """Let go of connections."""


class LoadedModel(Protocol):
    """A loaded version, as an ``Engine`` has it.

    Attributes:
        version: Its number.
        signatures: The ways to call it.
        path: Its directory, or None for an object of the program.
    """

    version: int
    signatures: Mapping[str, Signature]
    path: Path | None


Find = Callable[[str, int | None], LoadedModel | None]
"""A version of a model that is ready, by name and number (None for the default one)."""

Predict = Callable[[str, int, Tensors, str, float], Tensors]
"""Answers for a model's version: name, number, inputs, the one output that is wanted, seconds."""


@dataclass(frozen=True, slots=True)
class LocalModels:
    """The models that this process serves.

    Attributes:
        find: Finds one; ``lambda name, version: engine.manager.ready_now(name, version, None)``.
        predict: Answers for one, by ``engine.predict_blocking`` with a ``ModelSpec``.
    """

    find: Find
    predict: Predict


class LocalServed:
    """One version of a model of this process: the one that is the default when this is made."""

    def __init__(self, models: LocalModels, model: str, version: int | None, timeout_seconds: float) -> None:
        """Find it.

        Args:
            models: Those of the process.
            model: Its name.
            version: Its number; None for the default one.
            timeout_seconds: How long a call may take.

        Raises:
            NotFound: There is none that is ready.
        """
        found = models.find(model, version)
        if found is None:
            raise NotFound(f"model: {shown(model)} is not served here, or not ready yet")
        self._models = models
        self._model = model
        self._found = found.version, found.signatures[DEFAULT_SIGNATURE], found.path
        self._timeout_seconds = timeout_seconds

    def describe(self) -> Description:
        """What it takes and gives."""
        version, signature, path = self._found
        files = () if path is None else tuple(visible_files(path))
        return Description(version, signature.inputs, tuple(signature.output_names), files)

    def predict(self, name: str, values: Array, output: str) -> Array:
        """Answer a batch; see ``Served``."""
        version, _, _ = self._found
        answered = self._models.predict(self._model, version, {name: values}, output, self._timeout_seconds)
        return answered[output]

    def close(self) -> None:
        """Nothing is held."""
