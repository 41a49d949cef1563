"""When recent windows are something to tell, as a truth table, and through windows and their state."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from headrace.base.tensors import Array
from headrace.evaluation.tallies import Scored
from headrace.evaluation.trends import REMEMBERED, Trend, trend_of
from headrace.evaluation.windows import Window, Windows

STEADY = [0.9, 0.901, 0.899, 0.9, 0.9]


@pytest.mark.parametrize(
    ("entropies", "expected"),
    [
        ([], None),
        ([0.9], None),
        (STEADY, None),
        ([*STEADY, 0.9], None),
        ([*STEADY, 0.905], None),  # by less than a hundredth
        ([*STEADY, 0.92], "jumped"),
        ([*STEADY, 0.7], None),  # for the better
        ([0.9, 0.95, 0.9, 0.95, 0.9, 0.97], None),  # they are spread anyway
        ([*STEADY, 0.906, 0.912, 0.918, 0.924, 0.94], "tired"),
        ([*STEADY, 0.906, 0.912, 0.88, 0.924, 0.93], None),  # not all of them are worse
        ([*STEADY, *STEADY], None),
        ([*STEADY, 0.96, *([0.92] * 4)], "tired"),  # a jump that is not made good
    ],
)
def test_what_windows_say(entropies: list[float], expected: Trend | None) -> None:
    assert trend_of(entropies) == expected


@pytest.mark.parametrize("deviation", [0.003, 0.03])
def test_what_is_chance_is_hardly_ever_told(deviation: float) -> None:
    """Windows of 1,000 rows differ by three hundredths: of two thousand, 580 were told to be tired."""
    random = np.random.default_rng(5)
    entropies = (0.9 + random.normal(scale=0.9 * deviation, size=1000)).tolist()
    told = [trend_of(entropies[max(0, at - REMEMBERED) : at]) for at in range(1, 1001)]
    assert sum(one is not None for one in told) <= 5
    worse = [one + 0.2 for one in entropies[500:505]]
    assert trend_of([*entropies[460:500], worse[0]]) == "jumped"
    assert trend_of([*entropies[460:500], *worse]) == "tired"


def test_windows_tell_it_also_after_a_checkpoint() -> None:
    windows = Windows(100)
    closed = [window for _ in range(6) for window in windows.add(_rows(0.3))]
    arrays, meta = windows.state()
    resumed = Windows(100)
    resumed.restore(arrays, msgspec.json.decode(msgspec.json.encode(meta)))
    assert _trends(closed) == [None] * 6
    assert _trends(resumed.add(_rows(0.9))) == _trends(windows.add(_rows(0.9))) == ["jumped"]


def test_a_checkpoint_from_before_it_was_told_is_gone_on_from() -> None:
    windows = Windows(100)
    windows.add(_rows(0.3))
    arrays, meta = windows.state()
    old = {name: value for name, value in meta.items() if name != "entropies"}
    resumed = Windows(100)
    resumed.restore(arrays, old)
    assert _trends(resumed.add(_rows(0.9))) == [None]


def test_the_rows_that_are_left_at_the_end_are_no_window_to_judge_by() -> None:
    windows = Windows(100)
    for _ in range(6):
        windows.add(_rows(0.3))
    windows.add(_rows(0.9).part(0, 7))
    assert _trends(windows.finish()) == [None]
    assert _trends(windows.add(_rows(0.9))) == ["jumped"]


def test_a_window_without_clicks_does_not_repeat_the_trend_of_the_one_before() -> None:
    windows = Windows(100)
    for _ in range(6):
        windows.add(_rows(0.3))
    assert _trends(windows.add(_rows(0.9))) == ["jumped"]
    assert _trends(windows.add(_rows(0.9)._replace(labels=np.zeros(100, np.float32)))) == [None]


def _trends(windows: list[Window]) -> list[Trend | None]:
    return [window.trend for window in windows]


def _rows(prediction: float) -> Scored:
    labels: Array = (np.arange(100) % 3 == 0).astype(np.float32)
    predictions: Array = np.full(100, prediction, np.float32)
    return Scored(predictions, labels, None, None, np.zeros((0, 100), np.int32))
