"""Vectors of contents from a served model, local or remote, through one interface (``Served``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from headrace.archive.embedders.embedder import Embedded, ModelSettings, embed_with_isolation, fingerprint
from headrace.archive.embedders.encoder import chosen_output
from headrace.archive.embedders.text_embedder import normalized
from headrace.base.errors import (
    ConfigError,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidRequest,
    ModelError,
    NotFound,
    Unavailable,
    shown,
)
from headrace.base.files import visible_files
from headrace.base.tensors import STRING, Array, Tensors
from headrace.client.oip_rest import CalledModel, RemoteServed
from headrace.client.rest import RestClient, read_address, token_in, token_of
from headrace.model.servable import DEFAULT_SIGNATURE, Signature, TensorSpec
from headrace.net.content_failures import Failure


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


_AXES = 2


class ModelEmbedder:
    """Makes vectors with a served model: the configured version, or else the default version at opening.

    Attributes:
        dimension: See ``Embedder``.
        fingerprint: See ``Embedder``.
        is_outdated: Whether a call found that the version is no longer served; then open another embedder.
    """

    def __init__(self, served: Served, settings: ModelSettings) -> None:
        """Call the model once to learn its dimension.

        Args:
            served: The model; ``close`` closes it.
            settings: Settings of the embedder.

        Raises:
            ConfigError: The model does not take one input of texts or numbers, or does not return vectors.
            HeadraceError: The model does not answer.
        """
        self.is_outdated = False
        described = served.describe()
        self._served = served
        self._input = chosen_input(described.inputs, settings.input)
        self._output = chosen_output(described.outputs, settings.output)
        self._normalize = settings.normalize
        self._batch_rows = settings.batch_rows
        self._probe = filled(self._input, [b"0"])[0]
        try:
            answer = self._answered(self._probe)
        except (InvalidRequest, ModelError) as error:
            raise ConfigError(f"model: {settings.model} fails on a test input: {error.message}") from error
        self.dimension = int(answer.shape[1])
        self.fingerprint = self._digest(described, settings)

    def embed(self, contents: Sequence[bytes]) -> Embedded:
        """Make a vector of each content; see ``Embedder``.

        Raises:
            Refused: The model or its server is not available now.
            FailedPrecondition: The version is no longer served; open the embedder again.
            ModelError: The model fails on every content.
        """
        _, wrong = filled(self._input, contents)
        failures = {place: Failure(reason, is_final=True) for place, reason in wrong.items()}
        kept = [place for place in range(len(contents)) if place not in failures]
        vectors = np.zeros((len(contents), self.dimension), np.float32)

        def encode(places: Sequence[int]) -> None:
            values, _ = filled(self._input, [contents[place] for place in places])
            vectors[places] = self._vectors(values)

        runs = [kept[start : start + self._batch_rows] for start in range(0, len(kept), self._batch_rows)]
        failures |= embed_with_isolation(runs, encode, lambda: self._vectors(self._probe))
        return Embedded(vectors, failures)

    def close(self) -> None:
        """Close connections."""
        self._served.close()

    def _vectors(self, values: Array) -> Array:
        made = self._answered(values)
        if made.shape[1] != self.dimension:  # NumPy would broadcast one number to a whole vector
            raise ModelError(f"expected vectors of {self.dimension} numbers, got {made.shape[1]}")
        return made

    def _answered(self, values: Array) -> Array:
        try:
            answer = self._served.predict(self._input.name, values, self._output)
        except NotFound as error:
            self.is_outdated = True
            raise FailedPrecondition(f"the encoder's version is no longer served: {error.message}") from error
        except DeadlineExceeded as error:
            raise Unavailable(f"the encoder did not answer in time: {error.message}") from error
        if answer.ndim != _AXES or len(answer) != len(values) or answer.dtype.kind not in "iuf":
            raise ModelError(
                f"output {self._output}: expected numbers of shape [{len(values)}, dimension], got "
                f"{answer.dtype} {list(answer.shape)}"
            )
        made = answer.astype(np.float32)
        return normalized(made) if self._normalize else made

    def _digest(self, described: CalledModel, settings: ModelSettings) -> str:
        told: dict[str, object] = {
            "input": self._input.name,
            "output": self._output,
            "normalize": settings.normalize,
        }
        if not described.files:  # only the name and version are known
            told |= {"model": settings.model, "version": described.version or self._answering_version()}
        return fingerprint("model", told, described.files)

    def _answering_version(self) -> int:
        return self._served.version if isinstance(self._served, RemoteServed) else 0


def open_model(settings: ModelSettings, base: Path, models: LocalModels | None) -> ModelEmbedder:
    """Find a model and call it once.

    Args:
        settings: Settings of the embedder.
        base: Directory that relative paths start from.
        models: Models that this process serves; None if it serves none.

    Raises:
        ConfigError: A setting is wrong, or the model does not fit.
        Refused: The server is not available now.
        HeadraceError: There is no such model.
    """
    served = _served(settings, base, models)
    try:
        return ModelEmbedder(served, settings)
    except BaseException:
        served.close()
        raise


def _served(settings: ModelSettings, base: Path, models: LocalModels | None) -> Served:
    version = settings.version or None
    if settings.url:
        ca_file = os.fspath(base / settings.ca_file) if settings.ca_file else ""
        client = RestClient(read_address(settings.url), read_token(settings, base), ca_file)
        return RemoteServed(client, settings.model, version, settings.timeout_seconds)
    if models is None:
        raise ConfigError("url: expected the URL of a server, as this process serves no models")
    return LocalServed(models, settings.model, version, settings.timeout_seconds)


def read_token(settings: ModelSettings, base: Path) -> str:
    """Return the access token for a server; "" if none is configured.

    Raises:
        ConfigError: The token cannot be read, or is not valid in a header.
    """
    if settings.token_env:
        return token_of(os.environ.get(settings.token_env, ""), f"token_env: {settings.token_env}")
    if settings.token_file:
        return token_in(base / settings.token_file, f"token_file: {settings.token_file}")
    return ""


def chosen_input(specs: Sequence[TensorSpec], wanted: str) -> TensorSpec:
    """Return the input of a model that takes contents.

    Args:
        specs: Inputs of the model.
        wanted: Name of the input; "" for any.

    Raises:
        ConfigError: The input has another name or takes something else, or the model has several inputs.
    """
    said = "; ".join(map(str, specs))
    if len(specs) != 1:
        raise ConfigError(f"model: expected exactly one input, got {said}")
    (spec,) = specs
    if wanted and spec.name != wanted:
        raise ConfigError(f"input: expected {spec.name}, got {wanted!r}")
    if not (spec.accepts(()) or spec.accepts((1,))) or not (spec.dtype == STRING or spec.dtype.kind in "iuf"):
        raise ConfigError(f"model: expected an input of one text or number per row, got {said}")
    return spec


def filled(spec: TensorSpec, contents: Sequence[bytes]) -> tuple[Array, dict[int, str]]:
    """Convert contents to values of an input: bytes for texts, else the numbers that they spell out.

    Args:
        spec: The input.
        contents: The contents.

    Returns:
        Values ``[contents]`` or ``[contents, 1]``, and the errors of contents that are not numbers, by index.
    """
    wrong: dict[int, str] = {}
    if spec.dtype == STRING:
        values = np.empty(len(contents), object)
        values[:] = list(contents)
    else:
        values = np.zeros(len(contents), spec.dtype)
        for place, content in enumerate(contents):
            try:
                values[place] = _number(content, spec.dtype)
            except (ValueError, OverflowError):
                wrong[place] = f"expected a number for {spec}, got {shown(content)}"
    return (values if spec.accepts(()) else values[:, None]), wrong


def _number(content: bytes, dtype: np.dtype[np.generic]) -> float | int:
    if len(content) > 64:
        raise ValueError("too long")
    number: float | int = int(content) if dtype.kind in "iu" else float(content)
    if dtype.kind == "f" and not np.isfinite(number):
        raise ValueError("not a finite number")
    return number
