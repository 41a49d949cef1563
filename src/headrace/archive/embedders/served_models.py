"""The interface to one version of a served model, and its implementation for models of this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headrace.base.errors import NotFound, shown
from headrace.base.files import visible_files
from headrace.base.tensors import Array, Tensors
from headrace.client.oip_rest import CalledModel
from headrace.model.servable import DEFAULT_SIGNATURE, Signature


class Served(Protocol):
    """One version of a served model, local or remote. Thread-safe."""

    def describe(self) -> CalledModel:
        """Return the inputs and outputs of the model.

        Raises:
            Refused: The model is not available now.
            HeadraceError: There is no such model.
        """

    def predict(self, name: str, values: Array, output: str) -> Array:
        """Predict a batch.

        Args:
            name: Name of the model's only input.
            values: Values of the input, of its dtype.
            output: Name of the output to return.

        Raises:
            Refused: The model is not available now; a retry may succeed.
            DeadlineExceeded: There was no answer in time.
            InvalidRequest: The model does not take these values.
            ModelError: The model failed on these values.
            NotFound: The version is no longer served.
        """

    def close(self) -> None:
        """Close connections."""


class LoadedModel(Protocol):
    """A loaded version, as returned by an ``Engine``.

    Attributes:
        version: Number of the version.
        signatures: Signatures by name.
        path: Directory of the version; None for a model passed in as a Python object.
    """

    version: int
    signatures: Mapping[str, Signature]
    path: Path | None


Find = Callable[[str, int | None], LoadedModel | None]
"""Returns a ready version of a model, by name and number (None for the default version)."""

Predict = Callable[[str, int, Tensors, str, float], Tensors]
"""Predicts with a version of a model: name, number, inputs, the output to return, timeout in seconds."""


@dataclass(frozen=True, slots=True)
class LocalModels:
    """The models that this process serves.

    Attributes:
        find: Returns a version; ``lambda name, version: engine.manager.ready_now(name, version, None)``.
        predict: Predicts with a version, by ``engine.predict_blocking`` with a ``ModelSpec``.
    """

    find: Find
    predict: Predict


class LocalServed:
    """One version of a model of this process; without a number, the default version at construction."""

    def __init__(self, models: LocalModels, model: str, version: int | None, timeout_seconds: float) -> None:
        """Find the model.

        Args:
            models: Models of the process.
            model: Name of the model.
            version: Number of the version; None for the default version.
            timeout_seconds: Timeout of one call in seconds.

        Raises:
            NotFound: No such version is ready.
        """
        found = models.find(model, version)
        if found is None:
            raise NotFound(f"model: {shown(model)} is not served here, or not ready yet")
        self._models = models
        self._model = model
        self._found = found.version, found.signatures[DEFAULT_SIGNATURE], found.path
        self._timeout_seconds = timeout_seconds

    def describe(self) -> CalledModel:
        """Return the inputs and outputs of the model; see ``Served``."""
        version, signature, path = self._found
        files = () if path is None else tuple(visible_files(path))
        return CalledModel(version, signature.inputs, tuple(signature.output_names), files)

    def predict(self, name: str, values: Array, output: str) -> Array:
        """Predict a batch; see ``Served``."""
        version, _, _ = self._found
        answered = self._models.predict(self._model, version, {name: values}, output, self._timeout_seconds)
        return answered[output]

    def close(self) -> None:
        """Do nothing, as there are no connections."""
