"""Vectors as values in kernels."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from headrace.base.tensors import Array
from headrace.ctr.kernels import vectors


@numba.njit
def _combine(given: Array, weights: Array, size: tuple[None, ...], out: Array) -> tuple[float, bool, bool]:
    one, other = vectors.load(given, 1, size), vectors.load(weights, 2, size)
    sums = vectors.times_plus(one, other, vectors.zeros(size))
    vectors.store(out, 0, vectors.plus(sums, vectors.times(one, np.float32(0.5))))
    least = vectors.minus(vectors.times(one, other), vectors.zeros(size))
    return vectors.total(least), vectors.is_float(given), vectors.is_float(weights)


@pytest.mark.parametrize("size", [1, 4, 10, 16, 33])
@pytest.mark.parametrize("dtype", [np.float32, np.int16, np.int8])
def test_vector_operations_agree_with_numpy(size: int, dtype: type[np.generic]) -> None:
    random = np.random.default_rng(size)
    given = random.integers(-100, 100, size + 1).astype(np.float32)
    weights = random.integers(-100, 100, size + 2).astype(dtype)
    out = np.full(size + 1, 7, np.float32)
    found = _combine(given, weights, (None,) * size, out)
    product = given[1:] * weights[2:].astype(np.float32)
    assert out.tolist() == [*(product + given[1:] / 2), 7]
    assert found == (product.sum(), True, dtype is np.float32)
