"""Optimizers over rows and flat arrays, against NumPy in float64, and the rows that batches touch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.ctr.learning.optimizers import (
    Coalescer,
    all_mover,
    code_of,
    flat_mover,
    fresh_state,
    step_of,
    touched_mover,
)
from headrace.ctr.model_settings import OPTIMIZERS, Optimizer, OptimizerKind
from headrace.ctr.models.model_arrays import fixed

ROWS, WIDTH, BATCH = 30, 8, 100
WEIGHT = 3.0
"""What a new square counts where sums forget."""


class Reference:
    """Every optimizer, as its paper or its framework writes it."""

    def __init__(self, optimizer: Optimizer, weights: Array) -> None:
        """Start from weights ``[rows, width]``."""
        self.optimizer, self.weights, self.step = optimizer, weights.astype(np.float64), 0
        self.states = [np.full(weights.shape, value) for value in fresh_state(optimizer)]

    def move(self, gradients: dict[int, Array]) -> None:
        """One step from the sums of gradients of the rows that were touched."""
        self.step += 1
        optimizer = self.optimizer
        every = range(1, len(self.weights)) if optimizer.kind == "adam" else gradients
        for row in every:
            gradient = gradients.get(row, np.zeros(self.weights.shape[1])).astype(np.float64)
            if optimizer.kind not in ("adagrad", "forgetting", "ftrl"):
                gradient = gradient / BATCH
            if row in gradients and optimizer.kind != "ftrl":
                gradient = gradient + optimizer.l2 * self.weights[row]
            getattr(self, f"_{optimizer.kind}")(row, gradient)

    def _sgd(self, row: int, gradient: Array) -> None:
        self.weights[row] -= self.optimizer.learning_rate * gradient

    def _adagrad(self, row: int, gradient: Array) -> None:
        self.states[0][row] += gradient**2
        self.weights[row] -= (
            self.optimizer.learning_rate * gradient / self.states[0][row] ** self.optimizer.power
        )

    def _forgetting(self, row: int, gradient: Array) -> None:
        own, squares = self.optimizer, self.states[0]
        squares[row] += WEIGHT * gradient**2
        self.weights[row] -= own.learning_rate * gradient / (squares[row] / WEIGHT + own.initial) ** own.power

    def _adam(self, row: int, gradient: Array) -> None:
        own, (first, second) = self.optimizer, self.states
        first[row] = own.beta1 * first[row] + (1 - own.beta1) * gradient
        second[row] = own.beta2 * second[row] + (1 - own.beta2) * gradient**2
        rate = own.learning_rate * np.sqrt(1 - own.beta2**self.step) / (1 - own.beta1**self.step)
        self.weights[row] -= rate * first[row] / (np.sqrt(second[row]) + own.epsilon)

    _lazy_adam = _adam

    def _ftrl(self, row: int, gradient: Array) -> None:
        own, (pull, squares) = self.optimizer, self.states
        after = squares[row] + gradient**2
        sigma = (np.sqrt(after) - np.sqrt(squares[row])) / own.learning_rate
        pull[row] += gradient - sigma * self.weights[row]
        squares[row] = after
        stiffness = np.sqrt(after) / own.learning_rate + own.l2
        moved = -(pull[row] - np.sign(pull[row]) * own.l1) / stiffness
        self.weights[row] = np.where(np.abs(pull[row]) <= own.l1, 0, moved)


def optimizer_of(kind: OptimizerKind, **changes: float) -> Optimizer:
    """An optimizer whose every setting matters."""
    return Optimizer(kind=kind, learning_rate=0.05, initial=0.3, l1=0.01, l2=0.02, **changes)


def fresh_table(optimizer: Optimizer, rows: int, width: int) -> Array:
    """A learning table of random weights; row 0 is zero."""
    state = np.repeat(fresh_state(optimizer), width).astype(np.float32)
    weights = np.random.default_rng(0).normal(size=(rows, width)).astype(np.float32)
    weights[0] = 0
    return np.ascontiguousarray(np.concatenate([weights, np.tile(state, (rows, 1))], axis=1))


def batches(count: int, width: int) -> list[dict[int, Array]]:
    """Sums of gradients of some rows."""
    random = np.random.default_rng(1)
    rows = [1 + random.permutation(ROWS - 1)[: random.integers(1, 20)] for _ in range(count)]
    return [
        {int(row): (random.normal(size=width) * 10).astype(np.float32) for row in chosen} for chosen in rows
    ]


@pytest.mark.parametrize("width", [1, WIDTH])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_rows_move_as_the_reference_says(kind: OptimizerKind, width: int) -> None:
    optimizer = optimizer_of(kind)
    table = fresh_table(optimizer, ROWS, width)
    reference = Reference(optimizer, table[:, :width])
    for number, gradients in enumerate(batches(12, width), 1):
        before = table.copy()
        _step(optimizer, table, number, gradients)
        reference.move(gradients)
        untouched = [row for row in range(ROWS) if row not in gradients]
        if kind != "adam":
            np.testing.assert_array_equal(table[untouched], before[untouched])
    np.testing.assert_allclose(table[:, :width], reference.weights, rtol=2e-4, atol=2e-6)


def _step(optimizer: Optimizer, table: Array, number: int, gradients: dict[int, Array]) -> None:
    width = len(next(iter(gradients.values())))
    touched = np.array([0, *gradients], np.uint32)
    sums = np.array([np.full(width, 9.0), *gradients.values()], np.float32)  # 0's is nobody's
    given = step_of(optimizer, number, BATCH, weight=WEIGHT), table, touched, sums
    if optimizer.kind == "adam":
        positions = (
            np.random.default_rng(number).integers(0, 50, ROWS).astype(np.uint32)
        )  # of earlier batches
        positions[touched] = np.arange(len(touched))
        for edges in ((1, 11), (11, ROWS)):
            all_mover(width)(*given, positions, edges)
    else:
        middle = (1 + len(touched)) // 2
        for edges in ((1, middle), (middle, len(touched))):
            touched_mover(code_of(optimizer), width)(*given, edges)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_flat_array_moves_as_a_row_of_its_length(kind: OptimizerKind) -> None:
    optimizer = optimizer_of(kind)
    table = fresh_table(optimizer, 2, 37)
    flat, reference = table[1:].copy(), Reference(optimizer, table[:, :37])
    random = np.random.default_rng(2)
    for number in range(1, 10):
        gradient = (random.normal(size=37) * 10).astype(np.float32)
        flat_mover(code_of(optimizer))(step_of(optimizer, number, BATCH, weight=WEIGHT), flat, gradient)
        reference.move({1: gradient})
    np.testing.assert_allclose(flat[0, :37], reference.weights[1], rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("kind", ["adagrad", "forgetting"])
def test_another_power_than_a_root(kind: OptimizerKind) -> None:
    optimizer = optimizer_of(kind, power=0.3)
    table = fresh_table(optimizer, ROWS, WIDTH)
    reference = Reference(optimizer, table[:, :WIDTH])
    for number, gradients in enumerate(batches(5, WIDTH), 1):
        _step(optimizer, table, number, gradients)
        reference.move(gradients)
    np.testing.assert_allclose(table[:, :WIDTH], reference.weights, rtol=2e-4, atol=2e-6)


def test_nothing_pulls_a_bias_to_zero() -> None:
    rule = step_of(optimizer_of("sgd"), 1, BATCH, pulled=False).rule
    assert rule.l1 == rule.l2 == 0


@pytest.mark.parametrize("name", ["beta1", "beta2"])
def test_moments_that_never_forget_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"optimizer.{name}: expected .* less than 1, got 1.0"):
        Optimizer(**{name: 1.0})  # type: ignore[arg-type]


TABLE_ROWS = 40


@given(
    some.lists(some.tuples(some.integers(0, 30), some.integers(1, 4), some.integers(0, 2**32)), min_size=1)
)
@settings(deadline=None, max_examples=60)
def test_every_value_has_the_number_of_its_row_whatever_batches_came_before(
    batches: list[tuple[int, int, int]],
) -> None:
    coalescer = Coalescer(TABLE_ROWS)
    for rows, slots, seed in batches:
        random = np.random.default_rng(seed)
        indices = fixed(random.integers(0, 30, (rows, slots)).astype(np.uint32))
        crossed = fixed(
            np.where(random.random((rows, 2)) < 0.3, 0, random.integers(30, TABLE_ROWS, (rows, 2)))
        )
        crossed = fixed(crossed.astype(np.uint32))
        touched = coalescer.touched_by(indices, crossed)
        np.testing.assert_array_equal(touched.rows[touched.places], indices)
        np.testing.assert_array_equal(touched.rows[touched.crossed], crossed)
        assert touched.rows[0] == 0
        np.testing.assert_array_equal(
            np.sort(touched.rows[1 : touched.embedded]), np.unique(indices[indices > 0])
        )
        np.testing.assert_array_equal(
            np.sort(touched.rows[touched.embedded :]), np.unique(crossed[crossed > 0])
        )
