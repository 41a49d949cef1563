"""Small click streams made by hand: schemas of a few fields, and rows whose labels depend on them."""

from __future__ import annotations

import numpy as np

from headrace.stream.block import Block, Features
from headrace.stream.schema import Field, Schema

LABEL = Field(name="click", role="label")

SINGLE = Schema(
    fields=(
        LABEL,
        *(Field(name=name, role="categorical", buckets=40) for name in ("ad", "hour", "site", "user")),
    )
)
"""Every field has one value, and there are no dense features."""

MANY = Schema(
    fields=(
        LABEL,
        Field(name="ad", role="categorical", buckets=40),
        Field(name="price", role="dense"),
        Field(name="site", role="categorical", buckets=40, context=True),
        Field(name="tags", role="categorical", buckets=30, values=3),
        Field(name="terms", role="categorical", buckets=30, values=2, pooling="sum"),
        Field(name="image", role="vector", size=3),
    )
)
"""Fields of several values, averaged and summed, dense features and a vector."""


def block_of(schema: Schema, rows: int, seed: int = 0, *, weighted: bool = False) -> Block:
    """Rows of a schema; the label depends on the first two fields and, where there are any, on dense ones."""
    features, random = Features.of(schema), np.random.default_rng(seed)
    indices = np.zeros((rows, features.slots), np.uint32)
    for field, slot in features.field_slots():
        first, buckets = features.tables[field.table_name]
        drawn = first + random.integers(0, buckets, rows)
        kept = random.random(rows) < 0.7 if slot not in features.slot_starts else np.ones(rows, bool)
        indices[:, slot] = drawn * kept
    dense = random.normal(size=(rows, features.dense_width)).astype(np.float32)
    effects = np.random.default_rng(7).normal(size=features.rows)
    logits = 1.5 * effects[indices[:, 0]] + effects[indices[:, 1]] - 1 + 0.5 * dense.sum(axis=1)
    labels = (random.random(rows) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    weights = random.choice([0.5, 1.0, 2.0], rows).astype(np.float32) if weighted else None
    return Block(indices, dense, labels, weights)
