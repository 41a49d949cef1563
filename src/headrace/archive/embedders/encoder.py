"""Encoder: a model that any runtime loads, with the one output of it that is a vector."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from headrace.disk import visible_files
from headrace.errors import ConfigError, ModelError
from headrace.runtimes import onnx
from headrace.runtimes.onnx_external import external_names
from headrace.runtimes.options import RuntimeOptions
from headrace.runtimes.registry import load
from headrace.servable import DEFAULT_SIGNATURE, Servable, Signature
from headrace.tensors import Array, Tensors

_USUAL_OUTPUTS = ("sentence_embedding", "embedding", "embeddings", "last_hidden_state", "token_embeddings")


class Encoder:
    """A loaded model; may be called by several threads at once.

    Attributes:
        signature: What it takes and gives.
        output: The name of the output that is used.
        files: All that it was read from.
        metadata: What its file says of itself, by key.
    """

    def __init__(self, servable: Servable, files: tuple[Path, ...], output: str) -> None:
        """Choose an output.

        Args:
            servable: The model; closed with this.
            files: What it was read from.
            output: The output's name; "" for the only one, or the first with a usual name.

        Raises:
            ConfigError: There is no such output, or several that could be meant.
        """
        self.signature: Signature = servable.signatures[DEFAULT_SIGNATURE]
        self.output = chosen_output(self.signature.output_names, output)
        self.files = files
        self.metadata: Mapping[str, str] = getattr(servable, "metadata", {})
        self._servable = servable

    def predict(self, inputs: Tensors) -> Array:
        """Make vectors.

        Args:
            inputs: Every input of the signature, of its dtypes, with the same number of rows.

        Returns:
            float32, with as many rows.

        Raises:
            ModelError: The model failed, or answered with another number of rows.
            InvalidRequest: It does not take these values.
        """
        rows, fixed = len(next(iter(inputs.values()))), self.signature.rows
        if fixed is None or fixed == rows:
            return self._predict(inputs, rows)
        answers = []
        for start in range(0, rows, fixed):
            part = {name: array[start : start + fixed] for name, array in inputs.items()}
            there = len(next(iter(part.values())))
            filled = {name: np.resize(array, (fixed, *array.shape[1:])) for name, array in part.items()}
            answers.append(self._predict(filled, fixed)[:there])
        return np.concatenate(answers)

    def close(self) -> None:
        """Free the model."""
        self._servable.close()

    def _predict(self, inputs: Tensors, rows: int) -> Array:
        vectors = self._servable.predict(inputs)[self.output]
        if len(vectors) != rows:
            raise ModelError(f"the encoder answered {len(vectors)} rows where it was given {rows}")
        return vectors.astype(np.float32, copy=False)


def open_encoder(path: Path, output: str, threads: int) -> Encoder:
    """Load a model.

    Args:
        path: An ONNX file, or a directory that some runtime loads.
        output: As for ``Encoder``.
        threads: How many threads a call may use.

    Raises:
        LoadError: It cannot be loaded.
        ConfigError: There is nothing at the path, or no such output.
    """
    options = RuntimeOptions(threads=threads)
    if path.is_dir():
        servable, files = load(path, options), visible_files(path)
    elif path.is_file():
        servable = onnx.load(path, options)
        files = [path, *(path.parent / name for name in external_names(path))]
    else:
        raise ConfigError(
            f"model: expected an ONNX file or a model's directory, got {path}: nothing is there"
        )
    try:
        return Encoder(servable, tuple(files), output)
    except ConfigError:
        servable.close()
        raise


def chosen_output(names: tuple[str, ...], wanted: str) -> str:
    """Decide which output of a model is the vector.

    Args:
        names: The outputs.
        wanted: What is asked for; "" to find it.

    Raises:
        ConfigError: There is none of that name, or none or several could be meant.
    """
    if wanted:
        if wanted not in names:
            raise ConfigError(f"output: expected one of {', '.join(names)}, got {wanted!r}")
        return wanted
    if len(names) == 1:
        return names[0]
    usual = [name for name in _USUAL_OUTPUTS if name in names]
    if not usual:
        raise ConfigError(f"output: say which one is the vector: {', '.join(names)}")
    return usual[0]
