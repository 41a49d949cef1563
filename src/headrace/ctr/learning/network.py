"""A learning network of ReLU layers: its products forward and backward, for a chunk of rows at a time.

Products with weights use ``headrace.ctr.kernels.matrix_product``, which has no threads of its own, and
applies bias and ReLU while the sums are in registers. It was 10 % faster than OpenBLAS in a measurement;
laying out the weights once per batch costs 1 %. Gradients of weights, which are products over rows, use BLAS.

All memory is allocated once. A chunk is small enough for its activations to stay in the L2 or L3 cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from headrace.base.tensors import Array
from headrace.ctr.kernels.matrix_product import PANEL, Operand, multiply, padded
from headrace.ctr.models.factorization_machines import sigmoid
from headrace.ctr.models.model_arrays import LINE_FLOATS, aligned_zeros
from headrace.jit.intrinsics import one_by_one, read, write
from headrace.jit.kernel_cache import KERNEL, cached

CHUNK_ROWS = 512
"""Number of rows that pass through the network at once."""


class Exchange(NamedTuple):
    """Arrays exchanged between the kernels and the network, for the rows of a chunk: float32.

    Attributes:
        inputs: Inputs of the network: ``[rows, stride]``.
        gradients: The loss's derivatives with respect to the first ``wanted`` inputs: ``[rows, stride]``.
        logits: Logits of everything outside the network: ``[rows]``.
        errors: The loss's derivatives with respect to the logits: ``[rows]``.
        columns: Column of each of the first layer's inputs: int64 ``[inputs]``. Those of a field are
            adjacent, and so are the dense features.
        wanted: Number of inputs whose gradients the network computes.
    """

    inputs: Array
    gradients: Array
    logits: Array
    errors: Array
    columns: Array
    wanted: int


class Beside(NamedTuple):
    """The first layer's inputs that are multiplied row by row; see ``first_layer`` for the others.

    Attributes:
        inputs: Their numbers, in the order of their columns: int64.
        columns: Column of each input, including the others: int64 ``[inputs]``.
        wanted: Number of these inputs that need gradients; they come first.
    """

    inputs: Array
    columns: Array
    wanted: int


class First(NamedTuple):
    """The first layer's arrays for a chunk of a batch's rows: float32 ``[rows, at least units]``.

    Attributes:
        active: Partial sums of the first layer, which lack the inputs multiplied row by row; overwritten with
            its activations.
        towards: Output for the gradients with respect to these sums.
    """

    active: Array
    towards: Array


class Layout:
    """A network's weights in the layout of its products, laid out again for each batch.

    Attributes:
        widths: Inputs of the first layer, then units of each hidden layer.
        inputs: Number of the first layer's inputs that need gradients.
        heads: Units of the output layer.
        forward: Packed weights of each hidden layer.
        backward: Packed transposed weights of each hidden layer.
        biases: Padded biases of each hidden layer.
        output: Weights of the output layer, flattened.
        output_bias: Biases of the output layer.
        beside: The first layer's inputs that are multiplied row by row in this batch.
        sizes: Number of inputs of each hidden layer that are multiplied row by row in this batch.
        wanted: Number of these inputs that need gradients, for each hidden layer.
    """

    def __init__(self, widths: Sequence[int], inputs: int, heads: int = 1) -> None:
        """Allocate memory.

        Args:
            widths: Inputs of the first layer, then units of each hidden layer.
            inputs: Number of the first layer's inputs that need gradients; they come first.
            heads: Units of the output layer.
        """
        self.widths, self.inputs, self.heads = tuple(widths), inputs, heads
        wanted = (inputs, *self.widths[1:-1])
        self.forward = [aligned_zeros((size * padded(units),)) for size, units in pairwise(self.widths)]
        self.backward = [
            aligned_zeros((units * padded(size),))
            for size, units in zip(wanted, self.widths[1:], strict=True)
        ]
        self.biases = [aligned_zeros((padded(units),)) for units in self.widths[1:]]
        self.output = self.output_bias = aligned_zeros((1,))
        self._all = Beside(np.arange(self.widths[0]), np.arange(self.widths[0]), inputs)
        self.beside, self.sizes, self.wanted = self._all, self.widths[:-1], wanted

    def take(self, weights: Sequence[Array], biases: Sequence[Array], beside: Beside | None = None) -> None:
        """Lay out weights.

        Args:
            weights: Weights of each layer ``[inputs, units]``, the output layer last.
            biases: Biases of each layer ``[units]``.
            beside: The first layer's inputs that are multiplied row by row; None for all.
        """
        self.beside = beside or self._all
        self.sizes = (len(self.beside.inputs), *self.widths[1:-1])
        self.wanted = (self.beside.wanted, *self.widths[1:-1])
        for layer, forward in enumerate(self.forward):
            used = self.beside.inputs if layer == 0 else np.arange(self.sizes[layer])
            _pack(weights[layer], used, forward)
            if self.wanted[layer]:
                _pack_transposed(weights[layer], used[: self.wanted[layer]], self.backward[layer])
            self.biases[layer][: len(biases[layer])] = biases[layer]
        self.output, self.output_bias = weights[-1].reshape(-1), biases[-1]


class NetworkPass:
    """One thread's pass through the network: activations, their gradients, and sums of weights' gradients.

    Attributes:
        weights: Sums of the gradients of each layer's weights, the output layer last.
        biases: Sums of the gradients of each layer's biases.
    """

    def __init__(self, layout: Layout, rows: int) -> None:
        """Allocate memory.

        Args:
            layout: The network.
            rows: Maximum number of rows in a chunk.
        """
        self._layout, widths = layout, layout.widths
        self._inputs = aligned_zeros((rows, -(-widths[0] // LINE_FLOATS) * LINE_FLOATS))
        self._gradients = aligned_zeros((rows, padded(layout.inputs)))
        self._logits, self._errors = aligned_zeros((rows,)), aligned_zeros((rows,))
        self._active = [aligned_zeros((rows, padded(units))) for units in widths[1:]]
        self._towards = [aligned_zeros((rows, padded(units))) for units in widths[1:]]
        self._own = First(self._active[0], self._towards[0])
        shapes = [*pairwise(widths), (widths[-1], layout.heads)]
        self.weights = [aligned_zeros(shape) for shape in shapes]
        self.biases = [aligned_zeros((units,)) for _, units in shapes]
        self._products = [aligned_zeros((math.prod(shape),)) for shape in shapes[:-1]]

    @property
    def exchange(self) -> Exchange:
        """The arrays exchanged with the kernels."""
        beside = self._layout.beside
        return Exchange(
            self._inputs, self._gradients, self._logits, self._errors, beside.columns, beside.wanted
        )

    def forward(self, rows: int, first: First | None = None) -> None:
        """Compute the activations of rows from ``exchange.inputs``.

        Args:
            rows: Number of rows.
            first: Partial sums of the first layer; None to start from the bias.
        """
        self._active[0], self._towards[0] = first or self._own
        sources, layout = (self._inputs, *self._active), self._layout
        for layer, (size, units) in enumerate(zip(layout.sizes, layout.widths[1:], strict=True)):
            if layer or first is None:
                _spread(layout.biases[layer], self._active[layer][:rows])
            weights = Operand(layout.forward[layer], 0, size)
            multiply(_rows(sources[layer]), weights, _rows(self._active[layer]), padded(units), rows, True)

    def finish(self, labels: Array, weights: Array, probabilities: Array) -> None:
        """Add the network's logits, predict, and compute the errors and the output layer's gradients.

        Args:
            labels: float32 ``[rows]``.
            weights: float32 ``[rows]``; empty for 1 each.
            probabilities: Output: float32 ``[rows]``.
        """
        output = Output(self._layout.output, self._layout.output_bias, self.weights[-1], self.biases[-1])
        _finish(output, self.last, self.exchange, labels, weights, probabilities)

    @property
    def last(self) -> tuple[Array, Array, Array]:
        """The last hidden layer's activations, and outputs for the gradients of these and of its biases."""
        return self._active[-1], self._towards[-1], self.biases[-2]

    @property
    def output(self) -> tuple[Array, Array]:
        """The output layer's weights ``[units * heads]`` and biases ``[heads]``."""
        return self._layout.output, self._layout.output_bias

    def backward(self, rows: int) -> None:
        """Add to the hidden layers' gradients, and write ``exchange.gradients``."""
        layout = self._layout
        sources, targets = (self._inputs, *self._active), (self._gradients, *self._towards)
        for layer, (size, units) in reversed([*enumerate(zip(layout.sizes, layout.widths[1:], strict=True))]):
            towards = self._towards[layer]
            product = self._products[layer][: size * units].reshape(size, units)
            # OpenBLAS may harmlessly read beyond a matrix, and NumPy would warn of invalid values there.
            # The learner detects a diverged model by its predictions.
            with np.errstate(invalid="ignore"):
                np.matmul(sources[layer][:rows, :size].T, towards[:rows, :units], out=product)
            if size == len(self.weights[layer]):
                self.weights[layer] += product
            else:
                self.weights[layer][layout.beside.inputs] += product
            wanted = layout.wanted[layer]
            if not wanted:
                continue
            targets[layer][:rows].fill(0)
            weights = Operand(layout.backward[layer], 0, units)
            multiply(_rows(towards), weights, _rows(targets[layer]), padded(wanted), rows, False)
            if layer:
                _mask(self._active[layer - 1][:rows], targets[layer], self.biases[layer - 1])


class Output(NamedTuple):
    """The output layer, of one unit, and its gradients: float32, one-dimensional except ``gradients``."""

    weights: Array
    bias: Array
    gradients: Array
    bias_gradient: Array


def _rows(array: Array) -> Operand:
    return Operand(array.reshape(-1), 0, array.shape[1])


@cached(**KERNEL)
def _finish(output, last, exchange, labels, weights, probabilities):  # type: ignore[no-untyped-def]
    active, towards, bias_gradient = last
    units = output.weights.shape[0]
    for row in range(labels.shape[0]):
        logit = read(exchange.logits, row) + read(output.bias, 0)
        total = np.float32(0)
        for unit in range(units):
            total += read(active, (row, unit)) * read(output.weights, unit)
        probability = sigmoid(logit + total)
        write(probabilities, row, probability)
        error = probability - read(labels, row)
        if weights.shape[0]:
            error *= read(weights, row)
        write(exchange.errors, row, error)
        write(output.bias_gradient, 0, read(output.bias_gradient, 0) + error)
        for unit in range(units):
            value = read(active, (row, unit))
            gradient = error * read(output.weights, unit) if value > 0 else np.float32(0)
            write(towards, (row, unit), gradient)
            write(output.gradients, (unit, 0), read(output.gradients, (unit, 0)) + error * value)
            write(bias_gradient, unit, read(bias_gradient, unit) + gradient)


@cached(**KERNEL)
def _mask(active, towards, bias_gradient):  # type: ignore[no-untyped-def]
    """Apply ReLU's derivative to gradients, and add them to the bias's gradient."""
    for row in range(active.shape[0]):
        one_by_one()
        for unit in range(bias_gradient.shape[0]):
            value = read(towards, (row, unit))
            gradient = value if read(active, (row, unit)) > 0 else np.float32(0)
            write(towards, (row, unit), gradient)
            write(bias_gradient, unit, read(bias_gradient, unit) + gradient)


@cached(**KERNEL)
def _spread(bias, active):  # type: ignore[no-untyped-def]
    for row in range(active.shape[0]):
        one_by_one()
        for unit in range(active.shape[1]):
            write(active, (row, unit), read(bias, unit))


@cached(**KERNEL)
def _pack(weights, used, packed):  # type: ignore[no-untyped-def]
    """Pack rows of weights as ``headrace.ctr.kernels.matrix_product.pack`` does, into existing memory."""
    inputs, units = used.shape[0], weights.shape[1]
    for first in range(0, units, PANEL):
        for row in range(inputs):
            one_by_one()
            start, source = first * inputs + row * PANEL, read(used, row)
            for column in range(min(PANEL, units - first)):
                write(packed, start + column, read(weights, (source, first + column)))
            for column in range(units - first, PANEL):
                write(packed, start + column, np.float32(0))


@cached(**KERNEL)
def _pack_transposed(weights, used, packed):  # type: ignore[no-untyped-def]
    """Pack the transpose of rows of weights into existing memory."""
    units, wanted = weights.shape[1], used.shape[0]
    for first in range(0, wanted, PANEL):
        for column in range(PANEL):
            one_by_one()
            if column >= wanted - first:
                for unit in range(units):
                    write(packed, first * units + unit * PANEL + column, np.float32(0))
            else:
                source = read(used, first + column)
                for unit in range(units):
                    write(packed, first * units + unit * PANEL + column, read(weights, (source, unit)))
