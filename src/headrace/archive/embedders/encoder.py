"""Encoder: a model of any runtime, and the name of its output that holds the vectors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from headrace.base.errors import ConfigError, ModelError
from headrace.base.files import visible_files
from headrace.base.tensors import Array, Tensors
from headrace.model.servable import DEFAULT_SIGNATURE, Servable, Signature
from headrace.runtimes import onnx
from headrace.runtimes.onnx import external_names
from headrace.runtimes.options import RuntimeOptions
from headrace.runtimes.registry import load

USUAL_OUTPUTS = ("sentence_embedding", "embedding", "embeddings", "last_hidden_state", "token_embeddings")


class Encoder:
    """A loaded model. Thread-safe.

    Attributes:
        signature: Signature of the model.
        output: Name of the output that holds the vectors.
        files: Files that the model was read from.
        metadata: Metadata from the model's file, by key.
    """

    def __init__(self, servable: Servable, files: tuple[Path, ...], output: str) -> None:
        """Choose an output of a model.

        Args:
            servable: The model; ``close`` closes it.
            files: Files that it was read from.
            output: Name of the output; "" for the only one, or else the first that is in ``USUAL_OUTPUTS``.

        Raises:
            ConfigError: There is no such output, or several and none is in ``USUAL_OUTPUTS``.
        """
        self.signature: Signature = servable.signatures[DEFAULT_SIGNATURE]
        self.output = chosen_output(self.signature.output_names, output)
        self.files = files
        self.metadata: Mapping[str, str] = getattr(servable, "metadata", {})
        self._servable = servable

    def predict(self, inputs: Tensors) -> Array:
        """Make vectors.

        Args:
            inputs: All inputs of the signature, with its dtypes and the same number of rows each.

        Returns:
            float32, with the same number of rows.

        Raises:
            ModelError: The model failed, or returned another number of rows.
            InvalidRequest: The model does not take these values.
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
            raise ModelError(f"expected {rows} rows from the encoder, got {len(vectors)}")
        return vectors.astype(np.float32, copy=False)


def open_encoder(path: Path, output: str, threads: int) -> Encoder:
    """Load an encoder.

    Args:
        path: ONNX file, or directory that some runtime loads.
        output: See ``Encoder``.
        threads: Maximum number of threads of one call.

    Raises:
        LoadError: The model cannot be loaded.
        ConfigError: The path does not exist, or the model has no such output.
    """
    options = RuntimeOptions(threads=threads)
    if path.is_dir():
        servable, files = load(path, options), visible_files(path)
    elif path.is_file():
        servable = onnx.load(path, options)
        files = [path, *(path.parent / name for name in external_names(path))]
    else:
        raise ConfigError(
            f"model: expected an ONNX file or a model's directory, got {path}, which does not exist"
        )
    try:
        return Encoder(servable, tuple(files), output)
    except ConfigError:
        servable.close()
        raise


def chosen_output(names: tuple[str, ...], wanted: str) -> str:
    """Choose the output of a model that holds the vectors.

    Args:
        names: Names of the outputs.
        wanted: Name to use; "" for the only one, or else the first of ``USUAL_OUTPUTS`` among them.

    Raises:
        ConfigError: There is no output of that name, or several and none is in ``USUAL_OUTPUTS``.
    """
    if wanted:
        if wanted not in names:
            raise ConfigError(f"output: expected one of {', '.join(names)}, got {wanted!r}")
        return wanted
    if len(names) == 1:
        return names[0]
    usual = [name for name in USUAL_OUTPUTS if name in names]
    if not usual:
        raise ConfigError(f"output: expected the name of the vector's output, one of {', '.join(names)}")
    return usual[0]
