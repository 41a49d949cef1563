"""Click models in plain NumPy and float64, row by row, to test the compiled ones against."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
from scipy import special, stats

from headrace.base.tensors import Array
from headrace.ctr.click_model import Table, Weights
from headrace.ctr.model_settings import DEEP, Interaction, Kind, ModelSettings, Optimizer
from headrace.ctr.models.interactions import crossing
from headrace.stream.block import Block, Features
from headrace.stream.schema import Field, Schema

SCHEMA = Schema(
    fields=(
        Field(name="click", role="label"),
        Field(name="user", role="categorical", buckets=40),
        Field(name="ad", role="categorical", buckets=30),
        Field(name="hour", role="categorical", buckets=5, context=True),
        Field(name="topics", role="categorical", buckets=20, values=3),
        Field(name="words", role="categorical", buckets=20, values=2, pooling="sum"),
        Field(name="price", role="dense"),
        Field(name="image", role="vector", size=3),
    )
)
FEATURES = Features.of(SCHEMA)


def settings_of(kind: Kind, optimizer: Optimizer, **changes: object) -> ModelSettings:
    """A small model whose groups all learn alike."""
    given = {
        "factors": 4,
        "hidden": (10, 6),
        "interactions": (Interaction(fields=("ad", "user"), buckets=50),),
        "linear": optimizer,
        "embeddings": optimizer,
        "network": optimizer,
        "initial_scale": 0.4,
        "seed": 3,
    }
    return ModelSettings(kind=kind, **(given | changes))  # type: ignore[arg-type]


def random_block(rows: int, seed: int = 0, *, weighted: bool = True, features: Features = FEATURES) -> Block:
    """Rows at random; one value in six is missing."""
    random = np.random.default_rng(seed)
    indices = np.empty((rows, features.slots), np.uint32)
    for slot, (field, _) in enumerate(features.field_slots()):
        first, count = features.tables[field.table_name]
        indices[:, slot] = first + random.integers(0, count, rows)
    indices[random.random(indices.shape) < 1 / 6] = 0
    return Block(
        indices,
        random.normal(size=(rows, features.dense_width)).astype(np.float32),
        (random.random(rows) < 0.4).astype(np.float32),
        random.random(rows).astype(np.float32) * 2 if weighted else None,
    )


def as_float64(weights: Weights) -> Weights:
    """A copy that finite differences can be taken of."""
    tables = {name: Table.of(table.values.astype(np.float64)) for name, table in weights.tables.items()}
    return Weights(tables, {name: array.astype(np.float64) for name, array in weights.dense.items()})


def loss(settings: ModelSettings, features: Features, weights: Weights, block: Block) -> float:
    """The weighted sum of logloss over the rows, by their number; an mdn's is that of its mixture."""
    if settings.kind == "mdn":
        views = np.ones(len(block)) if block.views is None else block.views
        weights_of, alphas, betas = _mixture(settings, reference_heads(settings, features, weights, block))
        fits = stats.betabinom.logpmf(block.labels[:, None], views[:, None], alphas, betas)
        losses = -special.logsumexp(np.log(weights_of) + fits, axis=1)
        return float((losses if block.weights is None else losses * block.weights).sum() / len(block))
    logits = reference_logits(settings, features, weights, block)
    losses = np.logaddexp(0, logits) - block.labels * logits
    weighed = losses if block.weights is None else losses * block.weights
    return float(weighed.sum() / len(block))


def reference_logits(settings: ModelSettings, features: Features, weights: Weights, block: Block) -> Array:
    """The logits of rows, an mdn's of its mean: float64."""
    heads = reference_heads(settings, features, weights, block)
    if settings.kind != "mdn":
        return np.asarray(heads[:, 0])
    weights_of, alphas, betas = _mixture(settings, heads)
    return np.asarray(special.logit((weights_of * alphas / (alphas + betas)).sum(axis=1)))


def _mixture(settings: ModelSettings, heads: Array) -> tuple[Array, Array, Array]:
    """Weights, alphas and betas: float64 ``[rows, components]``."""
    offset, weights, offsets, sizes = np.split(heads, np.cumsum([1, *[settings.components] * 2]), axis=1)
    means, sizes = special.expit(offset + offsets), np.exp(sizes)
    return special.softmax(weights, axis=1), means * sizes, (1 - means) * sizes


def reference_heads(settings: ModelSettings, features: Features, weights: Weights, block: Block) -> Array:
    """The logits of rows, and an mdn's other heads: float64 ``[rows, heads]``."""
    crossed = crossing(settings, features).of(block.indices)
    linear, dense = weights.tables["linear"].values[:, 0], block.dense.astype(np.float64)
    if settings.kind == "mdn":  # the vector's numbers come before the price: a flag for it
        (number,) = (place for place, one in enumerate(features.numeric) if one.role == "vector")
        assert number == 0
        missing = (dense[:, : features.numeric[0].size] == 0).all(axis=1)
        dense = np.concatenate([dense, missing[:, None]], axis=1)
    logits = weights.dense["bias"][0] + dense @ weights.dense["dense"]
    logits = logits + _pool(features, linear[:, None], block.indices).sum(axis=(1, 2))
    logits += np.where(crossed > 0, linear[crossed], 0).sum(axis=1)
    if settings.kind == "lr":
        return np.asarray(logits[:, None])
    products = _products(settings, features, weights, block.indices)
    logits += products.sum(axis=1)
    if settings.kind not in DEEP:
        return np.asarray(logits[:, None])
    inputs = products
    if settings.kind in ("deepfm", "mdn"):
        pooled = _pool(features, weights.tables["embeddings"].values, block.indices)
        inputs = pooled.reshape(len(block), -1)
    values = np.concatenate([inputs, dense], axis=1)
    for layer in range(len(settings.hidden) + 1):
        values = values @ weights.dense[f"layer{layer}.weights"] + weights.dense[f"layer{layer}.bias"]
        values = np.maximum(values, 0) if layer < len(settings.hidden) else values
    values[:, 0] += logits
    return np.asarray(values)


def counted(block: Block, seed: int = 0) -> Block:
    """The rows as ones of several views, and some of them without a vector."""
    random = np.random.default_rng(seed)
    views = random.integers(0, 60, len(block))
    clicks, dense = random.binomial(views, 0.3), block.dense.copy()
    dense[::4, :3] = 0
    return replace(block, dense=dense, labels=clicks.astype(np.float32), views=views.astype(np.float32))


def _pool(features: Features, table: Array, indices: Array) -> Array:
    present = indices > 0
    values = np.where(present[:, :, None], table[indices], 0)
    pooled = []
    for mean, (start, stop) in zip(features.mean_pooled, pairwise(features.slot_starts), strict=True):
        count = np.maximum(present[:, start:stop].sum(axis=1), 1) if mean else np.ones(len(indices))
        pooled.append(values[:, start:stop].sum(axis=1) / count[:, None])
    return np.stack(pooled, axis=1)


def _products(settings: ModelSettings, features: Features, weights: Weights, indices: Array) -> Array:
    pooled = _pool(features, weights.tables["embeddings"].values, indices)
    made = []
    for first, second in combinations(range(pooled.shape[1]), 2):
        left, right = pooled[:, first], pooled[:, second]
        if settings.kind in ("ffm", "deepffm"):
            factors = settings.factors
            left = left[:, second * factors : (second + 1) * factors]
            right = right[:, first * factors : (first + 1) * factors]
        product = (left * right).sum(axis=1)
        made.append(product * weights.dense["pairs"][first, second] if settings.kind == "fwfm" else product)
    return np.stack(made, axis=1)
