"""A network of ReLU layers that learns: its products forward and backward, for a chunk of rows at a time.

Products with weights are those of ``headrace.ctr.kernels.matrix_product``: they know no threads, add the
bias and cut off what is negative while the sums are in registers, and were 10 % faster than OpenBLAS where
this was measured; that weights must be laid out once a batch costs 1 %. Gradients of weights are
products over rows: BLAS.

All memory is made once. A chunk is small enough for its activations to stay in the second or third cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from headrace.compiled import cached
from headrace.ctr.kernels.compiling import KERNEL
from headrace.ctr.kernels.intrinsics import one_by_one, read, write
from headrace.ctr.kernels.matrix_product import PANEL, Operand, multiply, padded
from headrace.ctr.kernels.memory import LINE_FLOATS, aligned_zeros
from headrace.ctr.models.linear import sigmoid
from headrace.tensors import Array

CHUNK_ROWS = 512
"""How many rows go through the network at once."""


class Exchange(NamedTuple):
    """What passes between the kernels and the network, for the rows of a chunk: float32.

    Attributes:
        inputs: ``[rows, stride]``.
        gradients: The loss's derivatives by the first ones: ``[rows, stride]``.
        logits: Of everything but the network: ``[rows]``.
        errors: The loss's derivatives by the logits: ``[rows]``.
        columns: Where each of the first layer's inputs is: int64 ``[inputs]``. Those of a field are side by
            side, and so are the dense features.
        wanted: How many inputs the network finds derivatives by.
    """

    inputs: Array
    gradients: Array
    logits: Array
    errors: Array
    columns: Array
    wanted: int


class Beside(NamedTuple):
    """Which of the first layer's inputs are multiplied row by row; ``first_layer`` does the others.

    Attributes:
        inputs: Their numbers, in the order in which they come: int64.
        columns: Where each input comes, all of them: int64 ``[inputs]``.
        wanted: How many of them, the first ones, need gradients.
    """

    inputs: Array
    columns: Array
    wanted: int


class First(NamedTuple):
    """A chunk of what lies ready for all rows of a batch: float32 ``[rows, at least units]``.

    Attributes:
        active: The first layer's sums without what is multiplied row by row; becomes its activations.
        towards: Where the gradients by these sums go.
    """

    active: Array
    towards: Array


class Layout:
    """A network's weights as its products read them: laid out anew whenever they have moved.

    Attributes:
        widths: The inputs of the first layer, then the units of each hidden one.
        inputs: How many of the first layer's inputs need gradients.
        heads: The units of the output.
        beside: Those that are multiplied now.
        sizes: The inputs of each layer that are multiplied now.
        wanted: How many of them need gradients.
    """

    def __init__(self, widths: Sequence[int], inputs: int, heads: int = 1) -> None:
        """Make room.

        Args:
            widths: The inputs of the first layer, then the units of each hidden one.
            inputs: How many of the first layer's inputs need gradients: the first ones.
            heads: How many units the output has.
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
        """Lay weights out.

        Args:
            weights: Each layer's ``[inputs, units]``, the output's last.
            biases: Each layer's ``[units]``.
            beside: Which of the first layer's inputs are multiplied row by row, if not all are.
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


class Passage:
    """One thread's way through the network: activations, their gradients, and the sums of weights' gradients.

    Attributes:
        weights: The sums of the gradients of each layer's weights, the output's last.
        biases: The same of biases.
    """

    def __init__(self, layout: Layout, rows: int) -> None:
        """Make room.

        Args:
            layout: The network.
            rows: The most rows that come at once.
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
        """What passes to and from the network."""
        beside = self._layout.beside
        return Exchange(
            self._inputs, self._gradients, self._logits, self._errors, beside.columns, beside.wanted
        )

    def forward(self, rows: int, first: First | None = None) -> None:
        """Compute the activations of rows from ``exchange.inputs``.

        Args:
            rows: How many.
            first: What the first layer's sums begin with, if it is not the bias.
        """
        self._active[0], self._towards[0] = first or self._own
        sources, layout = (self._inputs, *self._active), self._layout
        for layer, (size, units) in enumerate(zip(layout.sizes, layout.widths[1:], strict=True)):
            if layer or first is None:
                _spread(layout.biases[layer], self._active[layer][:rows])
            weights = Operand(layout.forward[layer], 0, size)
            multiply(_rows(sources[layer]), weights, _rows(self._active[layer]), padded(units), rows, True)

    def finish(self, labels: Array, weights: Array, probabilities: Array) -> None:
        """Add the network's logits, predict, and find the errors and what they mean to the output's weights.

        Args:
            labels: float32 ``[rows]``.
            weights: float32 ``[rows]``; empty for one each.
            probabilities: Where they go: float32 ``[rows]``.
        """
        output = Output(self._layout.output, self._layout.output_bias, self.weights[-1], self.biases[-1])
        _finish(output, self.last, self.exchange, labels, weights, probabilities)

    @property
    def last(self) -> tuple[Array, Array, Array]:
        """The last hidden layer's activations, where their gradients go, and those of its biases."""
        return self._active[-1], self._towards[-1], self.biases[-2]

    @property
    def output(self) -> tuple[Array, Array]:
        """The output's weights ``[units * heads]`` and biases ``[heads]``."""
        return self._layout.output, self._layout.output_bias

    def backward(self, rows: int) -> None:
        """Add to the weights' gradients, and write ``exchange.gradients``."""
        layout = self._layout
        sources, targets = (self._inputs, *self._active), (self._gradients, *self._towards)
        for layer, (size, units) in reversed([*enumerate(zip(layout.sizes, layout.widths[1:], strict=True))]):
            towards = self._towards[layer]
            product = self._products[layer][: size * units].reshape(size, units)
            # OpenBLAS may read beyond a matrix, harmlessly; NumPy would warn of what lies there. Weights that
            # have really gone astray are noticed by whoever checks the predictions.
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
    """The last layer, of one unit, and its gradients: float32, one dimension but for ``gradients``."""

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
    """Only units that were not cut off pass on gradients."""
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
    """As ``headrace.ctr.kernels.matrix_product.pack`` does, into memory that is there."""
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
    """The same of some rows' transpose."""
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
