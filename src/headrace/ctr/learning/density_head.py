"""The output layer of a mixture density network in learning: from activations to heads, and backwards."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.base.tensors import Array
from headrace.ctr.kernels.compiling import KERNEL
from headrace.ctr.learning.network import CHUNK_ROWS, Passage
from headrace.ctr.models.density import heads_of, learn_heads, scratch_of
from headrace.jit.intrinsics import one_by_one, read, write
from headrace.jit.kernel_cache import cached


class Counts(NamedTuple):
    """Observations of rows: float32 ``[rows]`` each.

    Attributes:
        clicks: Number of clicks.
        views: Number of views.
        weights: Weights of the rows; empty for 1 each.
    """

    clicks: Array
    views: Array
    weights: Array


class DensityHead:
    """One thread's memory for the heads of a chunk of rows, and their gradients."""

    def __init__(self, components: int) -> None:
        """Allocate memory.

        Args:
            components: Number of Beta distributions in the mixture.
        """
        self._heads = np.zeros((CHUNK_ROWS, heads_of(components)), np.float32)
        self._gradients = np.zeros_like(self._heads)
        self._scratch = scratch_of(components)

    def finish(self, passage: Passage, counts: Counts, means: Array) -> None:
        """Predict rows, and compute the errors and the gradients of the output and last hidden layer.

        Args:
            passage: The pass through the network, after its ``forward``.
            counts: Observations of the rows.
            means: Output for the mean rates: float32 ``[rows]``.
        """
        heads, gradients = self._heads[: len(means)], self._gradients[: len(means)]
        (weights, bias), exchange = passage.output, passage.exchange
        _forward(passage.last[0], weights, bias, exchange.logits, heads)
        learn_heads(heads, tuple(counts), self._scratch, gradients, means)
        sums = passage.weights[-1], passage.biases[-1]
        _backward(passage.last, weights, sums, exchange.errors, gradients)


@cached(**KERNEL)
def _forward(active, weights, bias, logits, heads):  # type: ignore[no-untyped-def]
    count = heads.shape[1]
    units = weights.shape[0] // count
    for row in range(heads.shape[0]):
        one_by_one()
        for head in range(count):
            write(heads, (row, head), read(bias, head))
        for unit in range(units):
            value = read(active, (row, unit))
            for head in range(count):
                sum_ = read(heads, (row, head)) + value * read(weights, unit * count + head)
                write(heads, (row, head), sum_)
        write(heads, (row, 0), read(heads, (row, 0)) + read(logits, row))


@cached(**KERNEL)
def _backward(last, weights, sums, errors, gradients):  # type: ignore[no-untyped-def]
    (active, towards, hidden_bias), (weight_sums, bias_sums) = last, sums
    count = gradients.shape[1]
    units = weights.shape[0] // count
    for row in range(gradients.shape[0]):
        one_by_one()
        write(errors, row, read(gradients, (row, 0)))
        for head in range(count):
            write(bias_sums, head, read(bias_sums, head) + read(gradients, (row, head)))
        for unit in range(units):
            value, gradient = read(active, (row, unit)), np.float32(0)
            for head in range(count):
                error = read(gradients, (row, head))
                gradient += error * read(weights, unit * count + head)
                write(weight_sums, (unit, head), read(weight_sums, (unit, head)) + error * value)
            gradient = gradient if value > 0 else np.float32(0)
            write(towards, (row, unit), gradient)
            write(hidden_bias, unit, read(hidden_bias, unit) + gradient)
