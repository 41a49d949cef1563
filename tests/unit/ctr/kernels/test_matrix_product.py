"""Small matrix products, against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.ctr.kernels.matrix_product import PANEL, Operand, multiply, pack


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 5, 6, 7, 23])
def test_products_of_packed_weights(rows: int) -> None:
    random = np.random.default_rng(rows)
    x, weights = random.normal(size=(rows, 37)), random.normal(size=(37, 3 * PANEL - 5))
    bias = random.normal(size=(rows, 3 * PANEL)).astype(np.float32)
    bias[:, 3 * PANEL - 5 :] = 0
    packed, inputs = pack(weights), x.astype(np.float32).reshape(-1)
    for relu in (False, True):
        results = bias.reshape(-1).copy()
        multiply(Operand(inputs, 0, 37), Operand(packed, 0, 37), Operand(results, 0, 3 * PANEL),
                 3 * PANEL, rows, relu)  # fmt: skip
        wanted = np.pad(x @ weights, ((0, 0), (0, 5))) + bias
        wanted = np.maximum(wanted, 0) if relu else wanted
        np.testing.assert_allclose(results.reshape(rows, 3 * PANEL), wanted, atol=1e-4)


def test_nan_inputs_give_nan_outputs() -> None:
    results = np.zeros(PANEL, np.float32)
    inputs = np.full(1, np.nan, np.float32)
    multiply(Operand(inputs, 0, 1), Operand(pack(np.ones((1, PANEL))), 0, 1), Operand(results, 0, PANEL),
             PANEL, 1, True)  # fmt: skip
    assert np.isnan(results).all()
