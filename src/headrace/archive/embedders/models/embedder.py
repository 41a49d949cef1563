"""Contents to vectors by a model that is served, here or elsewhere."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from headrace.archive.embedders.alone import each_alone
from headrace.archive.embedders.digests import fingerprint
from headrace.archive.embedders.embedder import Embedded, Failure
from headrace.archive.embedders.encoder import chosen_output
from headrace.archive.embedders.models.remote import RemoteServed
from headrace.archive.embedders.models.rest import RestClient, read_address
from headrace.archive.embedders.models.served import Description, LocalModels, LocalServed, Served
from headrace.archive.embedders.settings import ModelSettings
from headrace.archive.embedders.text import normalized
from headrace.disk import read_text
from headrace.errors import (
    ConfigError,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidRequest,
    ModelError,
    NotFound,
    Unavailable,
    shown,
)
from headrace.servable import TensorSpec
from headrace.tensors import STRING, Array

_LARGEST_TOKEN_BYTES = 16_384
_AXES = 2


class ModelEmbedder:
    """Makes vectors by asking a model. It asks the version that was the default when it was opened.

    Attributes:
        dimension: As ``Embedder`` has it.
        fingerprint: As ``Embedder`` has it.
        is_outdated: Whether its version was not served any more when it was asked: another is to be opened.
    """

    def __init__(self, served: Served, settings: ModelSettings) -> None:
        """Ask once.

        Args:
            served: The model; closed with this.
            settings: How it is used.

        Raises:
            ConfigError: It does not take one input of texts or numbers, or does not give vectors.
            HeadraceError: It does not answer.
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
            raise ConfigError(f"model: {settings.model} fails on a first content: {error.message}") from error
        self.dimension = int(answer.shape[1])
        self.fingerprint = self._digest(described, settings)

    def embed(self, contents: Sequence[bytes]) -> Embedded:
        """Make a vector of each content; see ``Embedder``.

        Raises:
            Refused: The model, or its server, cannot be asked now.
            FailedPrecondition: The version is gone; open the embedder again.
            ModelError: The model fails on any content.
        """
        _, wrong = filled(self._input, contents)
        failures = {place: Failure(reason, is_final=True) for place, reason in wrong.items()}
        kept = [place for place in range(len(contents)) if place not in failures]
        vectors = np.zeros((len(contents), self.dimension), np.float32)

        def encode(places: Sequence[int]) -> None:
            values, _ = filled(self._input, [contents[place] for place in places])
            vectors[places] = self._vectors(values)

        runs = [kept[start : start + self._batch_rows] for start in range(0, len(kept), self._batch_rows)]
        failures |= each_alone(runs, encode, lambda: self._vectors(self._probe))
        return Embedded(vectors, failures)

    def close(self) -> None:
        """Let go of connections."""
        self._served.close()

    def _vectors(self, values: Array) -> Array:
        made = self._answered(values)
        if made.shape[1] != self.dimension:  # one number would be taken for each of a vector's
            raise ModelError(f"expected vectors of {self.dimension} numbers, got {made.shape[1]}")
        return made

    def _answered(self, values: Array) -> Array:
        try:
            answer = self._served.predict(self._input.name, values, self._output)
        except NotFound as error:
            self.is_outdated = True
            raise FailedPrecondition(
                f"the encoder's version is not served any more: {error.message}"
            ) from error
        except DeadlineExceeded as error:
            raise Unavailable(f"the encoder did not answer in time: {error.message}") from error
        if answer.ndim != _AXES or len(answer) != len(values) or answer.dtype.kind not in "iuf":
            raise ModelError(
                f"expected vectors [{len(values)}, numbers], got {self._output} {list(answer.shape)}"
            )
        made = answer.astype(np.float32)
        return normalized(made) if self._normalize else made

    def _digest(self, described: Description, settings: ModelSettings) -> str:
        told: dict[str, object] = {
            "input": self._input.name,
            "output": self._output,
            "normalize": settings.normalize,
        }
        if not described.files:  # then a name and a number are all that is known
            told |= {"model": settings.model, "version": described.version or self._answering_version()}
        return fingerprint("model", told, described.files)

    def _answering_version(self) -> int:
        return self._served.version if isinstance(self._served, RemoteServed) else 0


def open_model(settings: ModelSettings, base: Path, models: LocalModels | None) -> ModelEmbedder:
    """Find a model, and ask it once.

    Args:
        settings: Which, and where.
        base: What relative paths start from.
        models: Those that this process serves; None where it serves none.

    Raises:
        ConfigError: A setting is wrong, or the model does not fit.
        Refused: Its server cannot be asked now.
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
    """The token that a server is told; "" for none.

    Raises:
        ConfigError: It cannot be read, or holds what no header can.
    """
    if settings.token_env:
        where, token = f"token_env: {settings.token_env}", os.environ.get(settings.token_env, "")
    elif settings.token_file:
        where = f"token_file: {settings.token_file}"
        try:
            token = read_text(base / settings.token_file, _LARGEST_TOKEN_BYTES)
        except OSError as error:
            raise ConfigError(f"{where} cannot be read: {error.strerror or error}") from error
    else:
        return ""
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable():
        raise ConfigError(f"{where}: expected a token of printable ASCII, which it does not hold")
    return token


def chosen_input(specs: Sequence[TensorSpec], wanted: str) -> TensorSpec:
    """Decide which input of a model takes contents.

    Args:
        specs: The inputs.
        wanted: What is asked for; "" for the only one.

    Raises:
        ConfigError: There is none of that name, it takes something else, or the model wants others besides.
    """
    said = "; ".join(map(str, specs))
    if len(specs) != 1:
        raise ConfigError(f"model: expected one with one input, got {said}")
    (spec,) = specs
    if wanted and spec.name != wanted:
        raise ConfigError(f"input: expected {spec.name}, got {wanted!r}")
    if not (spec.accepts(()) or spec.accepts((1,))) or not (spec.dtype == STRING or spec.dtype.kind in "iuf"):
        raise ConfigError(f"model: expected an input of one text or number a row, got {said}")
    return spec


def filled(spec: TensorSpec, contents: Sequence[bytes]) -> tuple[Array, dict[int, str]]:
    """Make an input's values of contents: the bytes themselves for texts, else numbers as they are written.

    Args:
        spec: The input.
        contents: The contents.

    Returns:
        ``[contents]`` or ``[contents, 1]``, and what is wrong with those that are no number, by place.
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
        raise ValueError("no number")
    return number
