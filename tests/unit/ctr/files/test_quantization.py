"""Tables in 16 and 8 bits: how far a weight can move, compared with one scale for all weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn

from headrace.base.tensors import Array
from headrace.ctr.click_model import Table
from headrace.ctr.files.quantization import (
    LOOSEST_SCALE,
    Bits,
    dequantize_table,
    group_shift,
    quantize,
    quantize_table,
)
from tests.click_weights import settings_for, weights_for

FLOAT32_ROUNDING = 2.0**-23  # of the weight: one rounding of the scale's product, one of the quotient


def worst_excess(weights: Array, bits: Bits) -> float:
    """How far the worst weight lies beyond the bound that is stated; 0 or less is within."""
    table = quantize_table(Table.of(weights), bits)
    scales = table.scales[np.arange(len(weights)) >> table.shift].astype(np.float64)
    error = np.abs(dequantize_table(table).astype(np.float64) - weights.astype(np.float64))
    largest = np.abs(weights).astype(np.float64).max(initial=0.0)
    return float((error - scales[:, None] / 2 - FLOAT32_ROUNDING * largest).max(initial=0.0))


@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize("width", [1, 3, 16, 64, 200])
@pytest.mark.parametrize("rows", [1, 63, 64, 1001, 70_001])
def test_a_weight_moves_by_at_most_half_its_groups_scale(rows: int, width: int, bits: Bits) -> None:
    if rows * width > 2_000_000:
        rows = 40_000
    weights = np.random.default_rng(rows).standard_t(3, (rows, width)).astype(np.float32)
    assert worst_excess(weights, bits) <= 0


@given(
    hn.arrays(
        np.float32,
        st.tuples(st.integers(1, 70), st.integers(0, 5)),
        elements=st.floats(-(2.0**100), 2.0**100, width=32),
    ),
    st.sampled_from([16, 8]),
)
def test_the_bound_holds_for_any_finite_weights(weights: Array, bits: Bits) -> None:
    assert worst_excess(weights, bits) <= 0


@pytest.mark.parametrize("bits", [16, 8])
def test_stored_like_an_earlier_table_only_what_changed_gets_other_numbers(bits: Bits) -> None:
    random = np.random.default_rng(0)
    before = random.normal(0.0, 1.0, (4000, 16)).astype(np.float32)
    earlier = quantize_table(Table.of(before), bits)
    after = before.copy()
    shrunk, grown = np.arange(0, 1000), np.arange(2000, 2400, 4)
    after[shrunk] *= np.float32(0.1)
    after[grown] *= np.float32(3.0)
    after[3000:3900:3] *= np.float32(0.97)
    table = quantize_table(Table.of(after), bits, earlier)
    needed = quantize_table(Table.of(after), bits)
    assert np.all(table.scales >= needed.scales)
    assert np.all(table.scales <= needed.scales * np.float32(LOOSEST_SCALE))
    error = np.abs(dequantize_table(table) - after)
    assert np.all(error <= table.scales[np.arange(4000) >> 2][:, None] * 0.505)
    np.testing.assert_array_equal(table.values[1000:2000], earlier.values[1000:2000])
    kept = np.setdiff1d(np.arange(3000, 3900), np.arange(3000, 3900, 3))
    np.testing.assert_array_equal(table.values[kept], earlier.values[kept])


def test_zeros_stay_zero_and_groups_of_zeros_are_fine() -> None:
    weights = np.zeros((200, 1), np.float32)
    weights[100:, 0] = np.linspace(-1, 1, 100)
    weights[150] = 0.0
    table = quantize_table(Table.of(weights), 8)
    again = dequantize_table(table)
    assert not again[:64].any()
    assert again[150] == 0.0
    assert table.scales[0] == 0.0


@pytest.mark.parametrize(
    ("width", "shift"), [(0, 6), (1, 6), (2, 5), (3, 4), (16, 2), (40, 0), (64, 0), (208, 0)]
)
def test_about_64_weights_share_a_scale(width: int, shift: int) -> None:
    assert group_shift(width) == shift


def test_a_large_weight_coarsens_only_its_neighbours() -> None:
    weights = np.full((640, 1), 0.001, np.float32)
    weights[5] = 100.0
    error = np.abs(dequantize_table(quantize_table(Table.of(weights), 8)) - weights)[:, 0]
    assert error[64:].max() < 1e-8
    assert error[:64].max() > 1e-4


def test_only_tables_are_quantized() -> None:
    weights = weights_for(settings_for("deepfm"))
    stored = quantize(weights, 16)
    assert {table.values.dtype.name for table in stored.tables.values()} == {"int16"}
    assert stored.dense is weights.dense
    assert stored.keys is weights.keys


def fwumious_wabbit(weights: Array) -> Array:
    """Its 16-bit weights: the number of a bucket between the smallest and largest weight, as a float16."""
    lowest, highest = float(weights.min()), float(weights.max())
    step = (highest - lowest) / 65025
    return lowest + np.rint((weights - lowest) / step).astype(np.float16).astype(np.float64) * step


def test_both_widths_are_tighter_than_the_same_width_with_one_scale() -> None:
    """Embeddings as they are after learning: most rows hardly moved, some far."""
    random = np.random.default_rng(0)
    spread = random.lognormal(-3.0, 1.0, (20_000, 1))
    weights = (random.normal(0.0, 1.0, (20_000, 16)) * spread).astype(np.float32)

    def error(found: Array) -> float:
        return float(np.sqrt(np.mean((found - weights.astype(np.float64)) ** 2)))

    ours = {bits: error(dequantize_table(quantize_table(Table.of(weights), bits))) for bits in (16, 8)}
    peak = float(np.abs(weights).max())
    linear = {
        bits: error(np.rint(weights / (peak / top)) * (peak / top)) for bits, top in ((16, 32767), (8, 127))
    }
    assert ours[16] * 4 < linear[16]
    assert ours[8] * 4 < linear[8]
    assert ours[16] * 100 < error(fwumious_wabbit(weights))
