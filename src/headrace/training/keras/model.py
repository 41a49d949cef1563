"""Train Keras models on the stream's fields, and publish them as SavedModels.

The user's file has a function ``build(schema) -> keras.Model``. The model takes a dict of inputs, one for
each feature under its name, and returns the probability of a click:

- a categorical field: int64 ``[rows]``, the value's row in the field's table, 0 … buckets - 1, and 0 for a
  missing value; with several values int64 ``[rows, values]``, -1 for none;
- a dense or vector field: float32 ``[rows, size]``.

``Embedded`` is a layer for categorical fields of one or several values. Requires the extra ``tensorflow``.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import keras
import numpy as np
import tensorflow

from headrace.base.errors import ConfigError, ModelError
from headrace.base.tensors import Array
from headrace.stream.block import Block, Features
from headrace.stream.schema import Field, Schema
from headrace.training.keras.lazy_adam import LazyAdam

OUTPUT = "probability"
"""Name of the published model's output."""

_Model = Any  # Keras and TensorFlow ship no types
_Tensor = Any
_Build = Callable[[Schema], _Model]


def load_build(where: str) -> _Build:
    """Import the user's function.

    Args:
        where: ``FILE.py:FUNCTION``; the function defaults to ``build``.

    Raises:
        ConfigError: The file or function does not exist, or the file cannot be run.
    """
    name, _, function = where.rpartition(":") if ":" in where else (where, "", "")
    file, function = Path(name), function or "build"
    spec = importlib.util.spec_from_file_location(f"headrace_keras_{file.stem}", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise ConfigError(f"keras: expected FILE.py:FUNCTION, got {where!r}; there is no such Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the boundary to the user's own code
        raise ConfigError(f"keras: {file.name} cannot be run: {type(error).__name__}: {error}") from error
    build = getattr(module, function, None)
    if not callable(build):
        raise ConfigError(f"keras: {file.name} has no function {function!r}; write one that takes the schema")
    return cast("_Build", build)


def inputs_of(schema: Schema) -> dict[str, _Tensor]:
    """Return the inputs of a functional model: one ``keras.Input`` for each feature, by name."""
    return {
        name: keras.Input(spec.shape[1:], dtype=spec.dtype.name, name=name)
        for name, spec in _specs(Features.of(schema)).items()
    }


class Embedded(keras.layers.Layer):  # type: ignore[misc]  # Keras ships no types
    """A categorical field's embedding, the mean or sum of its values' rows: float32 ``[rows, factors]``.

    Call the same layer with each field that shares a table.
    """

    def __init__(self, field: Field, factors: int, **settings: object) -> None:
        """Create a layer.

        Args:
            field: The field, which determines the size of the table and the pooling.
            factors: Length of an embedding.
            settings: As for any layer.
        """
        super().__init__(**settings)
        self._mean = field.pooling == "mean"
        normal = keras.initializers.RandomNormal(stddev=0.01)
        self._table = self.add_weight((field.buckets, factors), initializer=normal, name="embeddings")

    def call(self, numbers: _Tensor) -> _Tensor:
        """Embed a field; called by Keras.

        Args:
            numbers: ``[rows]`` or ``[rows, values]``.
        """
        if len(numbers.shape) == 1:
            return self._rows(numbers)
        there = keras.ops.cast(numbers >= 0, "float32")[..., None]
        total = keras.ops.sum(self._rows(keras.ops.maximum(numbers, 0)) * there, axis=1)
        return total / keras.ops.maximum(keras.ops.sum(there, axis=1), 1) if self._mean else total

    def compute_output_shape(self, shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Return the shape of the layer's output; called by Keras."""
        return (shape[0], self._table.shape[1])

    def _rows(self, numbers: _Tensor) -> _Tensor:
        # Keras' own layer reads the whole table, which copies it once an optimizer has written rows.
        return self._table.value.sparse_read(numbers)


class KerasModel:
    """A Keras model that learns from blocks. Called by one thread at a time.

    Attributes:
        features: Layout of the rows.
        model: The Keras model.
        optimizer: The optimizer that the model was compiled with, or a LazyAdam.
    """

    def __init__(self, build: _Build, features: Features, *, seed: int = 0) -> None:
        """Build a model.

        Args:
            build: The user's function.
            features: Layout of the rows.
            seed: Random seed of fresh weights.

        Raises:
            ConfigError: The function fails, its result is not a model of these features, or the features have
                exact fields.
        """
        _refuse_exact(features)
        keras.utils.set_random_seed(seed)
        self.features = features
        self._specs = _specs(features)
        try:
            self.model = build(features.schema)
        except Exception as error:  # the boundary to the user's own code
            raise ConfigError(
                f"keras: the function fails for the fields {', '.join(self._specs)}: "
                f"{type(error).__name__}: {error}"
            ) from error
        if not isinstance(self.model, keras.Model):
            raise ConfigError(f"keras: expected a keras.Model, got {type(self.model).__name__}")
        self._check_model()
        self.optimizer = getattr(self.model, "optimizer", None) or LazyAdam()
        self.optimizer.build(self.model.trainable_variables)
        rows = tensorflow.TensorSpec([None], "float32")
        self._learn = tensorflow.function(self._step, input_signature=[self._specs, rows, rows])
        self._predict = tensorflow.function(self._probabilities, input_signature=[self._specs])

    def learn(self, block: Block) -> Array:
        """Predict the rows of a block, then learn from them in one step.

        Args:
            block: The rows, with labels.

        Returns:
            The probabilities, predicted before the step: float32 ``[rows]``.
        """
        block = block.averaged()
        weights = np.ones(len(block), np.float32) if block.weights is None else block.weights
        return cast("Array", self._learn(self.inputs(block), block.labels, weights).numpy())

    def predict(self, block: Block) -> Array:
        """Return the probabilities of a click: float32 ``[rows]``."""
        return cast("Array", self._predict(self.inputs(block)).numpy())

    def state(self) -> dict[str, Array]:
        """Return the arrays needed to resume learning, by name: the weights and the optimizer's state."""
        return {name: np.asarray(variable.numpy()) for name, variable in self._variables()}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore the state of a model of the same function and features.

        Raises:
            ConfigError: An array is missing or has another shape.
        """
        found = dict(self._variables())
        if found.keys() != state.keys():
            raise ConfigError(
                f"keras: the saved state is of another model or optimizer: it has {len(state)} variables, "
                f"this run {len(found)}; was the function changed?"
            )
        for name, variable in found.items():
            if tuple(variable.shape) != state[name].shape:
                raise ConfigError(
                    f"keras: {name} ({variable.path}): expected {list(variable.shape)}, "
                    f"got {list(state[name].shape)}; was the function changed?"
                )
        for name, variable in found.items():
            variable.assign(state[name])

    def write(self, directory: Path) -> None:
        """Write a SavedModel for serving, without the optimizer's state.

        Args:
            directory: The version directory, which exists and is empty.

        Raises:
            ModelError: A weight is not finite.
        """
        for variable in self.model.variables:
            if not np.isfinite(np.sum(variable.numpy(), dtype=np.float64)):
                raise ModelError(
                    f"{variable.path} holds a weight that is not a finite number; nothing was published. "
                    "Start a new run with a lower learning rate"
                )
        # Keras' own export writes every variable twice.
        published = tensorflow.Module()
        published.kept = [variable.value for variable in self.model.variables]
        answer = tensorflow.function(
            lambda inputs: {OUTPUT: self._probabilities(inputs)}, input_signature=[self._specs]
        )
        signature = answer.get_concrete_function()
        tensorflow.saved_model.save(published, str(directory), signatures={"serving_default": signature})

    def inputs(self, block: Block) -> dict[str, Array]:
        """Return a block's model inputs by name, as in a request for these rows."""
        given: dict[str, Array] = {}
        starts, slots = self.features.table_starts, self.features.slot_starts
        for number, field in enumerate(self.features.categorical):
            indices = block.indices[:, slots[number] : slots[number + 1]].astype(np.int64)
            numbers = np.maximum(indices - starts[number], -1 if field.values > 1 else 0)
            given[field.name] = numbers if field.values > 1 else numbers[:, 0]
        column = 0
        for field in self.features.numeric:
            given[field.name] = block.dense[:, column : column + field.size]
            column += field.size
        return given

    def _check_model(self) -> None:
        probe = {name: np.zeros([1, *spec.shape[1:]], spec.dtype.name) for name, spec in self._specs.items()}
        try:
            shape = tuple(self.model(probe, training=False).shape)
        except Exception as error:  # the boundary to the user's own model
            raise ConfigError(
                f"keras: the model fails on a row of zeros: {type(error).__name__}: {error}; it must accept "
                f"a dict with the inputs {', '.join(self._specs)}"
            ) from error
        if shape not in ((1,), (1, 1)):
            raise ConfigError(f"keras: expected one probability a row, [rows, 1], got {list(shape)}")
        self._twice = any(map(_learns_otherwise, self.model._flatten_layers()))

    def _probabilities(self, inputs: Mapping[str, _Tensor]) -> _Tensor:
        return tensorflow.reshape(self.model(inputs, training=False), [-1])

    def _step(self, inputs: Mapping[str, _Tensor], labels: _Tensor, weights: _Tensor) -> _Tensor:
        with tensorflow.GradientTape() as tape:
            learning = self.model(inputs, training=True)
            losses = keras.ops.binary_crossentropy(labels[:, None], keras.ops.reshape(learning, (-1, 1)))
            total = tensorflow.reduce_mean(losses[:, 0] * weights) + sum(self.model.losses)
        # If no layer behaves differently in training, the training output is the prediction.
        predicted = self._probabilities(inputs) if self._twice else tensorflow.reshape(learning, [-1])
        variables = self.model.trainable_variables
        with tensorflow.control_dependencies([predicted]):
            self.optimizer.apply(tape.gradient(total, variables), variables)
        return predicted

    def _variables(self) -> Iterator[tuple[str, Any]]:
        # By number: Keras' layer names contain a process-wide counter.
        yield from ((f"model.{number}", one) for number, one in enumerate(self.model.variables))
        yield from ((f"optimizer.{number}", one) for number, one in enumerate(self.optimizer.variables))


def _specs(features: Features) -> dict[str, _Tensor]:
    made = {}
    for field in features.categorical:
        shape = [None] if field.values == 1 else [None, field.values]
        made[field.name] = tensorflow.TensorSpec(shape, "int64", name=field.name)
    for field in features.numeric:
        made[field.name] = tensorflow.TensorSpec([None, field.size], "float32", name=field.name)
    return made


def _refuse_exact(features: Features) -> None:
    exact = [field.name for field in features.categorical if field.keys == "exact"]
    if exact:
        raise ConfigError(
            f'keras: {", ".join(exact)}: exact tables belong to headrace\'s own models; use keys = "hash"'
        )


def _learns_otherwise(layer: _Model) -> bool:
    """Return whether a layer itself, apart from its inner layers, may behave differently in training."""
    own = type(layer).call
    # These differ in training only with float8.
    if own in (keras.layers.Dense.call, keras.layers.EinsumDense.call):
        return False
    # Keras' own models only call their layers, which are checked separately.
    if isinstance(layer, keras.Model) and own.__module__.startswith("keras."):
        return False
    return "training" in inspect.signature(own).parameters
