"""Contributions of fields to a logit: the parts shared by all kinds, in NumPy.

Sums are in float64, so contributions sum to the kernels' logit up to its float32 rounding.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headrace.base.tensors import Array
from headrace.ctr.interfaces import Contribution, Weights
from headrace.ctr.model_settings import FIELD_AWARE, ModelSettings
from headrace.ctr.models.interactions import crossing, interaction_name
from headrace.ctr.tables import Table
from headrace.stream.features import Features

BIAS = "(bias)"
"""Name of the contribution that belongs to no field."""


def explain_linear(
    settings: ModelSettings, features: Features, weights: Weights, indices: Array, dense: Array
) -> list[Contribution]:
    """Return the linear contributions to one row: the bias, fields, interactions and dense features.

    Args:
        settings: The model's settings.
        features: Layout of the model's rows.
        weights: The model's weights.
        indices: Indices of the row: uint32 ``[slots]``.
        dense: Dense features of the row: float32 ``[dense_width]``.
    """
    bias = float(weights.dense["bias"].reshape(-1)[0])
    made = [Contribution(BIAS, -1, 1.0, bias, bias)]
    table = weights.tables["linear"]
    shares = field_shares(features, indices[None])[0]
    for field, slot in features.field_slots():
        row, share = int(indices[slot]), float(shares[slot])
        if row:
            made.append(
                _weighed(field.name, row, share, float(table_rows(table, indices[slot : slot + 1])[0, 0]))
            )
    crossed = crossing(settings, features).of(np.ascontiguousarray(indices).reshape(1, -1))[0]
    for interaction, row in zip(settings.interactions, crossed, strict=True):
        if row:
            weight = float(table_rows(table, np.array([row]))[0, 0])
            made.append(_weighed(interaction_name(interaction), int(row), 1.0, weight))
    column = 0
    for field in features.numeric:
        values = dense[column : column + field.size].astype(np.float64)
        effects = weights.dense["dense"][column : column + field.size].astype(np.float64)
        if field.size == 1:
            made.append(_weighed(field.name, -1, float(values[0]), float(effects[0])))
        else:
            made.append(_weighed(field.name, -1, 1.0, float(values @ effects)))
        column += field.size
    return made


def pooled_embeddings(features: Features, table: Table, width: int, indices: Array) -> Array:
    """Return the pooled embeddings of rows' fields: float64 ``[rows, fields, width]``."""
    weighed = table_rows(table, indices)[..., :width] * field_shares(features, indices)[..., None]
    return sums_of(weighed, features.slot_starts[:-1])


def sums_of(values: Array, starts: Array) -> Array:
    """Return sums over groups of columns.

    Args:
        values: float64 ``[rows, columns]``, or with more axes.
        starts: The first column of each group; no group is empty.

    Returns:
        float64 ``[rows, groups]``, and the further axes.
    """
    if not len(starts):
        return np.zeros((len(values), 0, *values.shape[2:]))
    return np.add.reduceat(values, starts, axis=1)


def explain_pairs(
    settings: ModelSettings, features: Features, weights: Weights, indices: Array
) -> list[Contribution]:
    """Return the pair terms of one row, one contribution for each pair of fields, named ``a * b``."""
    names = [field.name for field in features.categorical]
    products = pair_products(settings, features, weights, indices[None])[0]
    made = []
    for first, second in pairs_of(len(names)):
        product = float(products[first, second])
        made.append(Contribution(f"{names[first]} * {names[second]}", -1, 1.0, product, product))
    return made


def pair_products(settings: ModelSettings, features: Features, weights: Weights, indices: Array) -> Array:
    """Return the term of each pair of fields, above the diagonal: float64 ``[rows, fields, fields]``."""
    fields, factors = len(features.categorical), settings.factors
    field_aware = settings.kind in FIELD_AWARE
    width = factors * fields if field_aware else factors
    pooled = pooled_embeddings(features, weights.tables["embeddings"], width, indices)
    if field_aware:
        aware = pooled.reshape(len(indices), fields, fields, factors)
        return np.triu(np.einsum("rabk,rbak->rab", aware, aware), 1)
    products = np.triu(pooled @ pooled.swapaxes(1, 2), 1)
    return products * weights.dense["pairs"] if settings.kind == "fwfm" else products


def pairs_of(fields: int) -> Iterator[tuple[int, int]]:
    """Return an iterator over all pairs of fields, in order of (first, second)."""
    return ((first, second) for first in range(fields) for second in range(first + 1, fields))


def field_shares(features: Features, indices: Array) -> Array:
    """Return the factor of the value in each slot of rows: float64 ``[rows, slots]``."""
    shares: Array = np.ones(indices.shape)
    for number in np.flatnonzero(features.mean_pooled & (np.diff(features.slot_starts) > 1)):
        start, stop = features.slot_starts[number : number + 2]
        counts = np.count_nonzero(indices[:, start:stop], axis=1)
        shares[:, start:stop] = 1 / np.maximum(counts, 1)[:, None]
    return shares


def table_rows(table: Table, rows: Array) -> Array:
    """Return rows of a table: float64, the shape of ``rows`` and ``[columns]``."""
    scales = table.scales[rows.astype(np.uint64) >> np.uint64(table.shift)]
    found: Array = table.values[rows].astype(np.float64) * scales[..., None]
    return found


def _weighed(name: str, row: int, value: float, weight: float) -> Contribution:
    return Contribution(name, row, value, weight, value * weight)
