"""LazyAdam: against a reference in NumPy, against Keras' own, and what it leaves alone."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import tensorflow

from headrace.base.tensors import Array
from headrace.training.keras import LazyAdam
from headrace.training.keras.model import keras

_ROWS, _WIDTH = 40, 3


def _slices(random: np.random.Generator, count: int = 10) -> tuple[Array, Array]:
    indices = random.integers(0, _ROWS // 2, count).astype(np.int64)
    return indices, random.normal(size=(count, _WIDTH)).astype(np.float32)


def _apply(optimizer: Any, table: Any, indices: Array, values: Array) -> None:
    optimizer.apply([tensorflow.IndexedSlices(values, indices, dense_shape=table.shape)], [table])


def _reference(steps: list[tuple[Array, Array]], start: Array, rate: float) -> tuple[Array, Array, Array]:
    weights, first, second = start.astype(np.float64), np.zeros(start.shape), np.zeros(start.shape)
    for step, (indices, values) in enumerate(steps, 1):
        for row in set(indices.tolist()):
            total = values[indices == row].sum(0, dtype=np.float64)
            first[row] = 0.9 * first[row] + 0.1 * total
            second[row] = 0.999 * second[row] + 0.001 * total**2
            factor = rate * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
            weights[row] -= factor * first[row] / (np.sqrt(second[row]) + 1e-7)
    return weights, first, second


def test_it_moves_rows_as_a_reference_does() -> None:
    random = np.random.default_rng(0)
    start = random.normal(size=(_ROWS, _WIDTH)).astype(np.float32)
    table = keras.Variable(start)
    optimizer = LazyAdam(0.01)
    optimizer.build([table])
    steps = [_slices(random) for _ in range(20)]
    for indices, values in steps:
        _apply(optimizer, table, indices, values)
    found = [table.numpy(), optimizer._momentums[0].numpy(), optimizer._velocities[0].numpy()]
    for one, expected in zip(found, _reference(steps, start, 0.01), strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-4, atol=1e-6)


def test_rows_without_a_gradient_keep_weights_and_moments_to_the_bit() -> None:
    random = np.random.default_rng(1)
    table = keras.Variable(random.normal(size=(_ROWS, _WIDTH)).astype(np.float32))
    optimizer = LazyAdam(0.01)
    optimizer.build([table])
    _apply(optimizer, table, np.arange(_ROWS), random.normal(size=(_ROWS, _WIDTH)).astype(np.float32))
    arrays = [table, optimizer._momentums[0], optimizer._velocities[0]]
    before = [array.numpy().copy() for array in arrays]
    for _ in range(5):
        _apply(optimizer, table, *_slices(random))
    for array, was in zip(arrays, before, strict=True):
        assert array.numpy()[_ROWS // 2 :].tobytes() == was[_ROWS // 2 :].tobytes()
        assert array.numpy()[: _ROWS // 2].tobytes() != was[: _ROWS // 2].tobytes()


def test_where_every_row_has_a_gradient_it_is_keras_own_adam() -> None:
    random = np.random.default_rng(2)
    start = random.normal(size=(_ROWS, _WIDTH)).astype(np.float32)
    lazy, dense = keras.Variable(start), keras.Variable(start)
    optimizers = LazyAdam(0.01), keras.optimizers.Adam(0.01)
    for _ in range(5):
        values = random.normal(size=(_ROWS, _WIDTH)).astype(np.float32)
        optimizers[0].apply([tensorflow.IndexedSlices(values, np.arange(_ROWS))], [lazy])
        optimizers[1].apply([tensorflow.constant(values)], [dense])
    np.testing.assert_allclose(lazy.numpy(), dense.numpy(), rtol=1e-6)


def _step(optimizer: Any, rows: int, width: int, touched: int = 256) -> Any:
    """Return a compiled step that moves some rows of a table."""
    random = np.random.default_rng(3)
    indices = random.integers(0, rows, touched)
    values = random.normal(size=(touched, width)).astype(np.float32)
    table = keras.Variable(np.zeros((rows, width), np.float32))
    optimizer.build([table])

    @tensorflow.function
    def step() -> None:
        _apply(optimizer, table, indices, values)

    return step


def _computed(step: Any) -> list[tuple[str, int | None]]:
    """Return the operations of a step, each with its result's rows; None where the number is not fixed."""
    operations = step.get_concrete_function().graph.get_operations()
    shapes = [(operation.type, output.shape) for operation in operations for output in operation.outputs]
    return [(kind, shape[0]) for kind, shape in shapes if shape.rank]


@pytest.mark.exact
def test_a_step_computes_nothing_as_large_as_the_table() -> None:
    rows, touched = 4000, 256
    lazy, dense = (
        _computed(_step(one(0.01), rows, _WIDTH, touched)) for one in (LazyAdam, keras.optimizers.Adam)
    )
    assert rows in [size for _, size in dense]
    assert max(size for _, size in lazy if size is not None) == touched
    # These have one row for each of the touched rows that differ.
    assert {kind for kind, size in lazy if size is None} <= {"Unique", "ResourceGather"}


@pytest.mark.timing
def test_it_takes_a_fraction_of_the_time_of_keras_own_adam_on_a_large_table() -> None:
    def seconds(optimizer: Any) -> float:
        step = _step(optimizer, 400_000, 16)
        times = []
        for _ in range(6):
            started = time.perf_counter()
            step()
            times.append(time.perf_counter() - started)
        return min(times)

    lazy, dense = seconds(LazyAdam(0.01)), seconds(keras.optimizers.Adam(0.01))
    assert lazy * 4 < dense, (lazy, dense)


def test_amsgrad_is_refused() -> None:
    with pytest.raises(ValueError, match="amsgrad"):
        LazyAdam(amsgrad=True)
