"""The network's products, forward and backward, against NumPy."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from headrace.base.tensors import Array
from headrace.ctr.learning.network import Layout, NetworkPass


@pytest.mark.parametrize(
    ("widths", "inputs", "rows"),
    [((7, 5), 4, 1), ((64, 64, 64), 64, 48), ((83, 70, 33, 9), 76, 50), ((3, 130), 0, 13)],
)
def test_gradients_are_those_of_numpy_whatever_the_widths(
    widths: tuple[int, ...], inputs: int, rows: int
) -> None:
    random = np.random.default_rng(0)
    shapes = [*pairwise(widths), (widths[-1], 1)]
    weights = [random.normal(size=shape).astype(np.float32) / 4 for shape in shapes]
    biases = [random.normal(size=shape[1]).astype(np.float32) for shape in shapes]
    network_pass, layout = _network_pass(widths, inputs, rows + 3, weights, biases)
    labels, counts = (random.random(rows) < 0.5).astype(np.float32), random.random(rows).astype(np.float32)
    probabilities, expected = np.empty(rows, np.float32), [np.zeros(shape) for shape in shapes]
    for _ in range(2):  # gradients of chunks add up
        x = random.normal(size=(rows, widths[0])).astype(np.float32)
        network_pass.exchange.inputs[:rows, : widths[0]] = x
        network_pass.exchange.logits[:rows] = 0.25
        network_pass.forward(rows)
        network_pass.finish(labels, counts, probabilities)
        network_pass.backward(rows)
        answer, errors, gradients, by_inputs = _numpy(x, weights, biases, labels, counts)
        expected = [one + more for one, more in zip(expected, gradients, strict=True)]
        np.testing.assert_allclose(probabilities, answer, atol=5e-6)
        np.testing.assert_allclose(network_pass.exchange.errors[:rows], errors, atol=5e-6)
        np.testing.assert_allclose(
            network_pass.exchange.gradients[:rows, :inputs], by_inputs[:, :inputs], atol=1e-5
        )
    layout.take(weights, biases)
    for own, one in zip(network_pass.weights, expected, strict=True):
        np.testing.assert_allclose(own, one, atol=1e-4)


def _network_pass(
    widths: tuple[int, ...], inputs: int, rows: int, weights: list[Array], biases: list[Array]
) -> tuple[NetworkPass, Layout]:
    layout = Layout(widths, inputs)
    layout.take([np.zeros_like(one) + 9 for one in weights], biases)
    layout.take(weights, biases)
    return NetworkPass(layout, rows), layout


def _numpy(
    x: Array, weights: list[Array], biases: list[Array], labels: Array, counts: Array
) -> tuple[Array, Array, list[Array], Array]:
    activations = [x.astype(np.float64)]
    for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        values = activations[-1] @ weight + bias
        activations.append(np.maximum(values, 0) if number < len(weights) - 1 else values)
    probabilities = 1 / (1 + np.exp(-0.25 - activations[-1][:, 0]))
    errors = (probabilities - labels) * counts
    towards, gradients = errors[:, None], []
    for number in range(len(weights) - 1, -1, -1):
        gradients.insert(0, activations[number].T @ towards)
        towards = towards @ weights[number].T
        towards = towards * (activations[number] > 0) if number else towards
    return probabilities, errors, gradients, towards
