"""Predictions and explanations from the weights of any kind, without learning.

The kinds without a network are here; those with one are in ``headrace.ctr.serving.deep_scoring`` and
``headrace.ctr.serving.deep_scoring``.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Protocol

import numpy as np

from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.ctr.interfaces import Contribution, Weights
from headrace.ctr.kernels.compiling import KERNEL
from headrace.ctr.model_settings import DEEP, ModelSettings
from headrace.ctr.models.interactions import crossing
from headrace.ctr.models.logit import logit, prefetch_coming, sigmoid
from headrace.ctr.models.model_arrays import (
    NOTHING,
    BlockRows,
    Room,
    Served,
    Shape,
    Slots,
    Work,
    expected_shapes,
    fixed,
    shape_of,
)
from headrace.ctr.serving.explanations import explain_linear, explain_pairs
from headrace.ctr.tables import Table
from headrace.jit.kernel_cache import cached
from headrace.stream.features import Features

PredictKernel = Callable[[Work, Served, Array], None]


class Form(Protocol):
    """Logits and explanations of a kind."""

    def logits(self, indices: Array, dense: Array) -> Array:
        """Return the logits of rows: float32 ``[rows]``."""

    def explain(self, indices: Array, dense: Array) -> list[Contribution]:
        """Return each field's contribution to one row: uint32 ``[slots]``, float32 ``[dense_width]``."""


class WeightsScorer:
    """A click model that only predicts. Immutable; safe to call from several threads at once."""

    def __init__(self, settings: ModelSettings, features: Features, weights: Weights) -> None:
        """Create a scorer from weights; tables are not copied.

        Args:
            settings: Settings of the model.
            features: Layout of the rows.
            weights: The weights; tables may be wider than their weights, as learning tables are.

        Raises:
            ConfigError: The weights do not fit the settings and features.
        """
        _check(settings, features, weights)
        self.settings, self.features, self.weights = settings, features, weights
        self._form = form_of(settings, features, weights)

    def logits(self, indices: Array, dense: Array) -> Array:
        """Return the logits of rows: float32 ``[rows]``."""
        return self._form.logits(indices, dense)

    def predict(self, indices: Array, dense: Array) -> Array:
        """Return the probabilities of a click: float32 ``[rows]``."""
        return probabilities(self._form.logits(indices, dense))

    def explain(self, indices: Array, dense: Array) -> list[list[Contribution]]:
        """Return each field's contribution to each row's logit; a row's contributions sum to its logit."""
        return [self._form.explain(*row) for row in zip(indices, dense, strict=True)]


def form_of(settings: ModelSettings, features: Features, weights: Weights) -> Form:
    """Create the form of a kind."""
    if settings.kind == "mdn":
        from headrace.ctr.serving.deep_scoring import DensityForm  # noqa: PLC0415 - compiled kernels, only when used

        return DensityForm(settings, features, weights)
    if settings.kind in DEEP:
        from headrace.ctr.serving.deep_scoring import DeepForm  # noqa: PLC0415 - as above

        return DeepForm(settings, features, weights)
    return PlainForm(settings, features, weights)


class PlainForm:
    """Form of the kinds without a network: lr, fm, fwfm and ffm."""

    def __init__(self, settings: ModelSettings, features: Features, weights: Weights) -> None:
        """Create a form from weights; see WeightsScorer."""
        self._settings, self._features, self._weights = settings, features, weights
        scaled = any(one.values.dtype != np.float32 for one in weights.tables.values())
        self._shape = shape_of(settings, features)._replace(scaled=scaled)
        self._crossing, self._slots = crossing(settings, features), Slots.of(features)
        self._served = self._serve(weights)
        self._kernel = predictor(self._shape)
        self._own = threading.local()

    def logits(self, indices: Array, dense: Array) -> Array:
        """Return the logits of rows: float32 ``[rows]``."""
        crossed = self._crossing.of(indices)
        rows = BlockRows(fixed(indices), fixed(crossed), fixed(dense), NOTHING, NOTHING)
        room: Room | None = getattr(self._own, "room", None)
        if room is None:
            room = self._own.room = Room.of(self._shape)
        logits = np.empty(len(indices), np.float32)
        self._kernel(Work(rows, self._slots, room), self._served, logits)
        return logits

    def explain(self, indices: Array, dense: Array) -> list[Contribution]:
        """Return the contribution of each field to one row's logit."""
        about = self._settings, self._features, self._weights, indices
        linear = explain_linear(*about, dense)
        return linear if self._settings.kind == "lr" else linear + explain_pairs(*about)

    def _serve(self, weights: Weights) -> Served:
        linear = _plain(weights.tables["linear"])
        embeddings = linear if self._settings.kind == "lr" else _plain(weights.tables["embeddings"])
        pairs = np.zeros((0, 0), np.float32)
        if self._settings.kind == "fwfm":
            pairs = np.triu(weights.dense["pairs"], 1)
        bias, dense = _line(weights.dense["bias"]), _line(weights.dense["dense"])
        return Served(linear, embeddings, bias, dense, _line(pairs + pairs.T))


@functools.cache
def predictor(shape: Shape) -> PredictKernel:
    """Return the kernel that writes the logits of rows."""

    @cached(**KERNEL)
    def predict(work, served, logits):  # type: ignore[no-untyped-def]
        for row in range(work.rows.indices.shape[0]):
            prefetch_coming(shape, work, served, row)
            logits[row] = logit(shape, work, served, row)

    made: PredictKernel = predict
    return made


def probabilities(logits: Array) -> Array:
    """Return the probabilities of logits: float32 ``[rows]``."""
    made = np.empty(len(logits), np.float32)
    _sigmoids(logits, made)
    return made


@cached(nogil=True)
def _sigmoids(logits: Array, made: Array) -> None:
    for row in range(len(logits)):
        made[row] = sigmoid(logits[row])


def _line(array: Array) -> Array:
    return fixed(np.array(array, np.float32).reshape(1, -1))


def _plain(table: Table) -> Table:
    return Table(fixed(np.asarray(table.values)), fixed(np.asarray(table.scales)), int(table.shift))


def _check(settings: ModelSettings, features: Features, weights: Weights) -> None:
    """Check the shapes of all tables and dense arrays; scorers need no keys."""
    for path, shape in expected_shapes(settings, features).items():
        part, _, name = path.partition(".")
        if part == "table":
            _check_table(weights, name, *shape)
        elif part == "dense":
            _check_array(weights, name, shape)


def _check_table(weights: Weights, name: str, rows: int, width: int) -> None:
    table = weights.tables.get(name)
    if table is None:
        raise ConfigError(f"weights: the table {name!r} is missing")
    found = table.values.shape
    if len(found) != 2 or found[0] != rows or found[1] < width:
        raise ConfigError(f"weights: table {name!r}: expected {rows} rows of {width}, got {found}")
    if table.values.dtype not in (np.float32, np.int16, np.int8):
        raise ConfigError(
            f"weights: table {name!r}: expected float32, int16 or int8, got {table.values.dtype}"
        )


def _check_array(weights: Weights, name: str, shape: tuple[int, ...]) -> None:
    array = weights.dense.get(name)
    if array is None or array.shape != shape:
        got = "nothing" if array is None else f"{array.shape}"
        raise ConfigError(f"weights: {name!r}: expected an array of the shape {shape}, got {got}")
