"""The cost of a batch, learnt from what batches took."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching.cost import BatchCost

CALL, ROW = 300e-6, 8e-6


def fed(sizes: list[int], call: float = CALL, row: float = ROW) -> BatchCost:
    cost = BatchCost()
    for rows in sizes:
        cost.observe(rows, call + row * rows)
    return cost


def test_nothing_is_known_before_the_first_batch() -> None:
    cost = BatchCost()
    assert not cost.known
    assert cost.seconds(256) == 0.0
    assert cost.rows_within(0.05, 256) == 256
    assert cost.wait_seconds(10_000, 256, 2) == 0.0


def test_one_batch_is_believed_as_it_is() -> None:
    cost = fed([10])
    assert cost.known
    assert cost.seconds(10) == pytest.approx(CALL + 10 * ROW)


def test_exact_data_give_the_exact_line() -> None:
    cost = fed([1, 4, 64, 256, 32, 2])
    assert (cost.a, cost.b) == (pytest.approx(CALL), pytest.approx(ROW))


def test_noisy_data_give_about_the_line() -> None:
    chance, cost = random.Random(7), BatchCost()
    for _ in range(400):
        rows = chance.randint(1, 256)
        cost.observe(rows, (CALL + ROW * rows) * chance.lognormvariate(0.0, 0.1))
    assert cost.a == pytest.approx(CALL, rel=0.3)
    assert cost.b == pytest.approx(ROW, rel=0.1)


def test_batches_of_one_size_put_all_of_the_cost_into_the_call() -> None:
    cost = fed([32] * 50)
    assert cost.b == 0.0
    assert cost.seconds(32) == pytest.approx(CALL + 32 * ROW)


def test_batches_of_one_size_leave_what_was_known_of_a_row() -> None:
    chance, cost = random.Random(7), fed([1, 64, 256] * 20)
    for _ in range(1000):
        cost.observe(32, (CALL + ROW * 32) * chance.uniform(0.8, 1.2))
    assert cost.b == pytest.approx(ROW, rel=0.01)
    assert cost.seconds(32) == pytest.approx(CALL + 32 * ROW, rel=0.1)


def test_batches_of_nearly_one_size_tell_little_of_a_row() -> None:
    """Where they differ by chance, what they took differs more, and by no fault of theirs."""
    chance, cost = random.Random(7), fed([1, 64, 256] * 20)
    for _ in range(1000):
        rows = chance.choice((126, 127, 128, 128, 128))
        cost.observe(rows, (CALL + ROW * rows) * chance.uniform(0.8, 1.2))
    assert cost.b == pytest.approx(ROW, rel=0.15)


def test_a_row_that_costs_otherwise_is_believed_as_soon_as_sizes_differ() -> None:
    cost = fed([1, 64, 256] * 20)
    for rows in [32] * 100 + [1, 64, 256] * 40:
        cost.observe(rows, CALL + 3 * ROW * rows)
    assert cost.b == pytest.approx(3 * ROW, rel=0.05)


def test_a_turn_loses_at_most_a_fifth_to_the_call() -> None:
    cost = fed([1, 64, 256] * 20)
    rows = cost.rows_within(cost.turn_seconds, 256)
    assert cost.seconds(rows) == pytest.approx(5 * CALL, rel=0.02)
    cheap = fed([1, 64, 256] * 20, call=10e-6)
    assert cheap.turn_seconds == 0.001


def test_what_was_long_ago_is_forgotten() -> None:
    """A machine that slows down to a third is believed after a few hundred batches."""
    cost = fed([1, 64, 256] * 20)
    for _ in range(80):
        for rows in (1, 64, 256):
            cost.observe(rows, 3 * (CALL + ROW * rows))
    assert cost.seconds(128) == pytest.approx(3 * (CALL + ROW * 128), rel=0.01)


def test_a_batch_that_lost_its_core_for_a_second_hardly_counts() -> None:
    cost = fed([1, 64, 256] * 20)
    before = cost.seconds(64)
    cost.observe(64, 1.0)
    assert cost.seconds(64) < 1.5 * before
    for rows in [1, 64, 256] * 20:
        cost.observe(rows, CALL + ROW * rows)
    assert cost.seconds(64) == pytest.approx(before, rel=0.1)


def test_a_machine_that_became_much_slower_is_believed_in_the_end() -> None:
    """Outliers are bounded, not ignored: a hundredfold slowdown that stays is no outlier."""
    cost = fed([1, 64, 256] * 20)
    for rows in [1, 64, 256] * 100:
        cost.observe(rows, 100 * (CALL + ROW * rows))
    assert cost.seconds(64) == pytest.approx(100 * (CALL + ROW * 64), rel=0.05)


@given(st.lists(st.tuples(st.integers(1, 4096), st.floats(0.0, 10.0)), min_size=1, max_size=60))
def test_no_part_is_ever_negative_and_limits_hold(batches: list[tuple[int, float]]) -> None:
    cost = BatchCost()
    for rows, seconds in batches:
        cost.observe(rows, seconds)
        assert cost.a >= 0.0
        assert cost.b >= 0.0
        assert cost.seconds(1) <= cost.seconds(4096)
        assert 1 <= cost.rows_within(0.05, 256) <= 256
        assert cost.wait_seconds(100, 256, 1) >= cost.wait_seconds(100, 256, 2)


def test_rows_ahead_cost_as_many_calls_as_they_fill() -> None:
    cost = fed([1, 256])
    assert cost.wait_seconds(0, 256, 1) == 0.0
    assert cost.wait_seconds(1, 256, 1) == pytest.approx(CALL + ROW)
    assert cost.wait_seconds(257, 256, 1) == pytest.approx(2 * CALL + 257 * ROW)
    assert cost.wait_seconds(512, 256, 2) == pytest.approx(CALL + 256 * ROW)
    assert cost.wait_seconds(10, 1, 1) == pytest.approx(10 * (CALL + ROW))


@pytest.mark.parametrize(
    ("call", "row", "seconds", "most", "intent"),
    [
        (0.001, 0.0001, 0.05, 256, "all of them, when all of them take less"),
        (0.001, 0.001, 0.05, 49, "as many as fit"),
        (0.001, 0.060, 0.05, 1, "one, when a single row takes longer"),
        (0.100, 0.001, 0.05, 100, "not fewer than pay for the call, when the call alone takes longer"),
        (0.040, 0.002, 0.05, 20, "not fewer than pay for the call, when little time is left beside it"),
        (0.100, 0.0, 0.05, 256, "all of them, when rows cost nothing"),
        (0.100, 5e-324, 0.05, 256, "all of them, when rows cost next to nothing"),
    ],
)
def test_the_rows_within_a_time(call: float, row: float, seconds: float, most: int, intent: str) -> None:
    cost = BatchCost()
    cost.a, cost.b = call, row
    assert cost.rows_within(seconds, 256) == most, intent
