"""Profiles of click models by stage, with the kernels that serve and learn.

The kernels run all stages for a few rows before they go on to the next rows, so a stage cannot be timed by
itself. The stages are logistic regression, then the pair terms, then each layer of the network. The duration
of a stage is therefore the difference between the model up to that stage and the model up to the previous
one. The kernels are not instrumented.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from headrace.base.tensors import Array
from headrace.ctr.click_model import LearningModel, Weights
from headrace.ctr.factory import create
from headrace.ctr.files.model_files import arrays_of, read_model, weights_of
from headrace.ctr.model_settings import DEEP, PAIRS_OF, ModelSettings
from headrace.ctr.models.model_arrays import expected_shapes
from headrace.ctr.serving.context import GroupedScorer
from headrace.model.servable import DEFAULT_SIGNATURE
from headrace.profiling.calls import made_up, median_microseconds
from headrace.profiling.report import Event, Profile
from headrace.runtimes import registry
from headrace.runtimes.options import RuntimeOptions
from headrace.stream.block import Block, Features

Stage = tuple[str, str, ModelSettings]
"""A stage's name, its kind of operation, and the settings of the model up to it."""

_Part = tuple[str, str, float]  # a stage's name, its kind of operation, µs per call
_BLOCKS = 8
_VALUES_BELOW = 2**20


def stages_of(settings: ModelSettings) -> list[Stage]:
    """Return the model up to each of its stages, from the smallest to the whole.

    Args:
        settings: The whole model.
    """
    stages: list[Stage] = [("linear", "look up, add", _with(settings, kind="lr"))]
    if settings.kind == "lr":
        return stages
    pairs = PAIRS_OF.get(settings.kind, settings.kind)
    stages.append(("embeddings and pairs", "look up, multiply", _with(settings, kind=pairs)))
    if settings.kind in DEEP:
        stages += [
            (f"layer {layer}", "matrix product", _with(settings, hidden=settings.hidden[: layer + 1]))
            for layer in range(len(settings.hidden))
        ]
    return stages


def profile_serving(file: Path, options: RuntimeOptions, rows: int, calls: int) -> Profile:
    """Profile a click model as it is served: the candidates of one request, which share its context.

    Args:
        file: The ``model.ctr``.
        options: The settings that it is served with.
        rows: Number of candidates per call.
        calls: Number of measured calls.

    Raises:
        LoadError: The model cannot be loaded.
    """
    settings, features, weights = read_model(file.parent)
    indices, dense = random_rows(features, rows, shared_context=True)
    timed = []
    for name, kind, smaller in stages_of(settings):
        scorer = GroupedScorer(smaller, features, _part_of(weights, smaller, features))
        timed.append((name, kind, _scoring(scorer, indices, dense)))
    servable = registry.load(file.parent, options)
    inputs = made_up(servable.signatures[DEFAULT_SIGNATURE], rows, _values_below(features))
    timed.append(("request to rows", "hash, join", lambda: servable.predict(inputs)))
    medians = _medians([call for _, _, call in timed], calls)
    servable.close()
    parts = _differences([(name, kind) for name, kind, _ in timed], medians)
    return Profile("ctr", "serving", rows, calls, medians[-1], _events(parts, calls, f"[{rows}]"))


def profile_training(file: Path, rows: int, calls: int) -> Profile:
    """Profile how a model of the same settings learns.

    Args:
        file: The ``model.ctr``.
        rows: Number of rows per batch.
        calls: Number of measured batches.

    Raises:
        LoadError: The file cannot be read.
    """
    settings, features, _ = read_model(file.parent)
    blocks = [random_block(features, rows, seed) for seed in range(_BLOCKS)]
    make = _maker(settings)
    stages = stages_of(settings)
    # Prediction is not a separate stage: models use other kernels when they only predict.
    medians = _medians([_over(blocks, make(smaller, features).learn) for _, _, smaller in stages], calls)
    parts = _differences([(name, "predict, gradients, update") for name, _, _ in stages], medians)
    return Profile("ctr", "training", rows, calls, medians[-1], _events(parts, calls, f"[{rows}]"))


def _maker(settings: ModelSettings) -> Callable[[ModelSettings, Features], LearningModel]:
    """Return the factory of the smaller models; they learn in batches if the whole model does."""
    if settings.online:
        return create
    from headrace.ctr.learning.batched import BatchedModel  # noqa: PLC0415 - compiled kernels

    return BatchedModel


def random_rows(
    features: Features, rows: int, *, shared_context: bool = False, seed: int = 0
) -> tuple[Array, Array]:
    """Generate rows with values anywhere in their tables, the most expensive case for lookups.

    Args:
        features: The layout.
        rows: Number of rows.
        shared_context: Whether all rows have the first one's context.
        seed: Seed of the random numbers.

    Returns:
        ``Block.indices`` and ``Block.dense``.
    """
    random = np.random.default_rng(seed)
    indices = np.empty((rows, features.slots), np.uint32)
    for slot, (field, _) in enumerate(features.field_slots()):
        first, count = features.tables[field.table_name]
        indices[:, slot] = random.integers(first, first + count, rows)
    dense = random.normal(size=(rows, features.dense_width)).astype(np.float32)
    if shared_context:
        indices[:, : features.context_slots] = indices[0, : features.context_slots]
        dense[:, : features.context_dense] = dense[0, : features.context_dense]
    return indices, dense


def _with(settings: ModelSettings, **changes: object) -> ModelSettings:
    return msgspec.structs.replace(settings, **changes)


def _part_of(weights: Weights, settings: ModelSettings, features: Features) -> Weights:
    """Return the part of a model's weights that a smaller one has, with zeros for arrays of other shapes."""
    whole = arrays_of(weights)
    arrays: dict[str, Array] = {}
    for name, shape in expected_shapes(settings, features).items():
        known = whole.get(name)
        arrays[name] = known if known is not None and known.shape == shape else np.zeros(shape, np.float32)
    arrays |= {f"{name}.scales": whole[f"{name}.scales"] for name in arrays if name.startswith("table.")}
    shifts = {name: table.shift for name, table in weights.tables.items() if f"table.{name}" in arrays}
    return weights_of(arrays, shifts)


def _scoring(scorer: GroupedScorer, indices: Array, dense: Array) -> Callable[[], object]:
    return lambda: scorer.predict(indices, dense)


def _values_below(features: Features) -> int:
    """Return the upper bound of generated integers: where values are row numbers, tables limit them."""
    buckets = [field.buckets for field in features.categorical if field.keys == "bucket"]
    return min([_VALUES_BELOW, *buckets])


def random_block(features: Features, rows: int, seed: int) -> Block:
    """Generate rows to learn from, with values anywhere in their tables."""
    indices, dense = random_rows(features, rows, seed=seed)
    random = np.random.default_rng(seed)
    labels = (random.random(rows) < 0.1).astype(np.float32)
    exact = features.exact_slots
    keys = random.integers(1, 2**20, (rows, len(exact)), dtype=np.uint64) if exact else None
    indices[:, exact] = 0
    return Block(indices, dense, labels, keys=keys)


def _over(blocks: Sequence[Block], act: Callable[[Block], object]) -> Callable[[], object]:
    """Return a function that processes one block per call, in turn."""
    turn = 0

    def call() -> object:
        nonlocal turn
        turn += 1
        return act(blocks[turn % len(blocks)])

    return call


def _medians(timed: Sequence[Callable[[], object]], calls: int) -> list[float]:
    """Return the median duration of each call in µs. Calls alternate, so that noise affects all alike."""
    for call in timed:
        median_microseconds(call, 1)
    seconds = np.empty((calls, len(timed)))
    for number in range(calls):
        for which, call in enumerate(timed):
            started = time.perf_counter()
            call()
            seconds[number, which] = time.perf_counter() - started
    return [float(one) * 1e6 for one in np.median(seconds, axis=0)]


def _differences(names: Sequence[tuple[str, str]], microseconds: Sequence[float]) -> list[_Part]:
    before = 0.0
    parts = []
    for (name, kind), whole in zip(names, microseconds, strict=True):
        parts.append((name, kind, max(0.0, whole - before)))
        before = max(before, whole)
    return parts


def _events(parts: Sequence[_Part], calls: int, shape: str) -> list[Event]:
    """Return one event per part and call, in sequence."""
    events, now = [], 0.0
    for _ in range(calls):
        for name, kind, microseconds in parts:
            events.append(Event(name, kind, now, microseconds, shape))
            now += math.ceil(microseconds * 1e3) / 1e3
    return events
