"""The first layer of deepfm and mdn, multiplied once for each distinct value of a batch.

Few of a field's values in a batch are distinct: a fifth, in click logs. So each distinct value is multiplied
by its field's weights once, and each row adds up its values' products. In the backward pass, the gradients of
the rows that share a value are summed first. The sum is multiplied once by the weights, and once by the
embedding. The result is mathematically the same.

Fields with mostly distinct values, and those with several values a row, are multiplied row by row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from headrace.base.tensors import Array
from headrace.ctr.kernels.matrix_product import LANES, PANEL, padded
from headrace.ctr.learning import first_layer_kernels as kernels
from headrace.ctr.learning.first_layer_kernels import TALL, DistinctValues, Found, Memory, Sizes
from headrace.ctr.learning.network import Beside, First
from headrace.ctr.learning.optimizers import Touched
from headrace.ctr.learning.parameter_groups import network_widths
from headrace.ctr.model_settings import ModelSettings
from headrace.ctr.models.model_arrays import LINE_FLOATS, aligned_zeros
from headrace.stream.block import Features

MOST_DISTINCT = 0.5
"""Largest share of distinct values in a batch's rows; fields with more are multiplied row by row. Both ways
took the same time at 0.55 in a measurement."""

Call = tuple[Callable[..., None], *tuple[object, ...]]


class Distinct:
    """The distinct values of a batch, and their products with the first layer's weights."""

    def __init__(self, settings: ModelSettings, features: Features) -> None:
        """Allocate memory for weights.

        Args:
            settings: The model's settings.
            features: Layout of the model's rows.
        """
        self._threads, self._fields = settings.threads, len(features.categorical)
        self._single = np.flatnonzero(np.diff(features.slot_starts) == 1)
        self._slots = features.slot_starts[self._single]
        self._dense, self._units = features.dense_width, network_widths(settings, features)[1]
        inputs, units = -(-settings.factors // LANES) * LANES, padded(self._units)
        # Without the gap, a panel's lines of all rows would compete for the same cache sets.
        self._sizes = Sizes(0, settings.factors, inputs, units, units + LINE_FLOATS)
        per_field = settings.factors * units, units * inputs, inputs * units
        lengths = (0, 0, *(self._fields * size for size in per_field), units, PANEL)
        self._memory = Memory(*(aligned_zeros((length,)) for length in lengths))
        self._room: dict[str, Array] = {}
        self._plan = DistinctValues(*(np.zeros(0, np.int64) for _ in DistinctValues._fields))

    def take(self, touched: Touched, weights: Array, bias: Array) -> Beside | None:
        """Find a batch's distinct values, and lay out weights if some fields have few enough.

        Args:
            touched: The rows that the batch touches.
            weights: Weights of the first layer ``[inputs, units]``.
            bias: Biases of the first layer ``[units]``.

        Returns:
            The inputs to multiply row by row; None if these are all inputs.
        """
        rows, fields = len(touched.places), len(self._single)
        most = int(rows * MOST_DISTINCT)
        found = Found(
            self._numbers("values", fields, rows),
            self._numbers("seen", len(touched.rows)),
            np.empty(fields, np.int64),
        )
        given = self._numbers("given", fields, rows)
        kernels.number(touched.places, self._slots, found, given, most)
        columns = np.flatnonzero(found.counts <= most)
        if not len(columns):
            return None
        self._sizes = self._sizes._replace(rows=rows)
        self._plan = self._planned(columns, found.counts[columns])
        kernels.arrange(self._plan, found, given, columns)
        kernels.lay_out(weights, self._memory, self._sizes, self._fields * self._sizes.factors)
        self._memory.bias[: self._units] = bias
        return self._beside()

    def forward(self, touched: Touched, table: Array) -> list[Call]:
        """Return the calls, one per thread, that compute the partial sums that ``part`` returns.

        Args:
            touched: The rows that the batch touches.
            table: Table of embeddings.
        """
        plan, sizes, numbers = self._plan, self._sizes, int(self._plan.bases[-1])
        self._memory = self._memory._replace(
            embeddings=self._floats("embeddings", numbers * sizes.inputs),
            towards=self._floats("gradients", numbers * sizes.inputs),
        )
        kernels.fetch(plan, touched.rows, table, self._memory, sizes)
        active, _ = (self._floats(name, sizes.rows * sizes.stride) for name in First._fields)
        shares = self._shares(sizes.units // PANEL)
        panels = [self._floats(f"panel{thread}", numbers * PANEL) for thread in range(len(shares))]
        return [
            (kernels.forward, plan, self._memory, sizes, panel, active, edges)
            for panel, edges in zip(panels, shares, strict=True)
        ]

    def backward(self, sums: Array, weights: Array) -> list[Call]:
        """Return the calls, one per thread, that add the gradients of distinct values and of their weights.

        Args:
            sums: Gradients of the embeddings that the batch touches: ``[touched, factors]``.
            weights: Gradients of the first layer's weights: ``[inputs, units]``.
        """
        edges = self._shares(len(self._plan.fields))
        return [(self._backward, thread, edges[thread], sums, weights) for thread in range(len(edges))]

    def part(self, start: int, stop: int) -> First:
        """Return the first layer's arrays for a range of rows."""
        stride = self._sizes.stride
        whole = (self._room[name][start * stride : stop * stride] for name in First._fields)
        return First(*(one.reshape(-1, stride) for one in whole))

    def _backward(self, thread: int, edges: tuple[int, int], sums: Array, weights: Array) -> None:
        plan, sizes, memory = self._plan, self._sizes, self._memory
        panel = self._floats(f"panel{thread}", int(np.diff(plan.bases).max()) * PANEL)
        kernels.backward(plan, memory, sizes, panel, self._room["towards"], edges)
        kernels.add_embeddings(plan, memory, sizes, sums, edges)
        for field in plan.fields[slice(*edges)].tolist():
            found = memory.gradients.reshape(self._fields, sizes.inputs, sizes.units)[field]
            first = field * sizes.factors
            weights[first : first + sizes.factors] += found[: sizes.factors, : self._units]

    def _planned(self, columns: Array, counts: Array) -> DistinctValues:
        """Return a plan with a range of numbers for each field; ``arrange`` fills in the rest."""
        bases = np.cumsum([0, *(-(-counts // TALL) * TALL)])
        chosen, rows, numbers = len(columns), self._sizes.rows, int(bases[-1])
        return DistinctValues(
            self._single[columns],
            bases,
            counts,
            self._numbers("ids", rows * chosen),
            self._numbers("order", chosen * rows),
            np.empty(numbers + chosen, np.int64),
            self._numbers("places", numbers),
        )

    def _beside(self) -> Beside:
        """Return the order of inputs: fields multiplied row by row, dense features, then chosen fields."""
        factors = np.arange(self._sizes.factors)
        starts = np.arange(self._fields)[:, None] * len(factors)
        is_chosen = np.isin(np.arange(self._fields), self._plan.fields)
        rest, chosen = ((starts[which] + factors).reshape(-1) for which in (~is_chosen, is_chosen))
        dense = self._fields * len(factors) + np.arange(self._dense)
        order = np.concatenate([rest, dense, chosen])
        return Beside(np.concatenate([rest, dense]), np.argsort(order), len(rest))

    def _shares(self, count: int) -> list[tuple[int, int]]:
        """Divide ``count`` items among threads."""
        return list(pairwise(count * part // self._threads for part in range(self._threads + 1)))

    def _floats(self, name: str, *shape: int) -> Array:
        """Return uninitialised float32 memory that is reused for the next batch."""
        size = math.prod(shape)
        if name not in self._room or self._room[name].size < size:
            self._room[name] = aligned_zeros((size + size // 4,))
        return self._room[name][:size].reshape(shape)

    def _numbers(self, name: str, *shape: int) -> Array:
        """Return uninitialised uint32 memory that is reused for the next batch."""
        return self._floats(name, *shape).view(np.uint32)
