"""Detect trends in recent windows: a sudden jump in the loss, or a model that falls behind.

The measure is the normalized entropy, which a change of the click rate alone hardly affects. Steady drift
that the model follows is reported as neither.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

Trend = Literal["jumped", "tired"]

REMEMBERED = 64
"""Number of windows considered, the newest included."""

_TOGETHER = 5
_JUMP_SPREADS = 4.0
_JUMP_SHARE = 0.01
_TIRED_SHARE = 0.02
_TIRED_DEVIATIONS = 3.0
_NORMAL_MEDIAN = 0.6745  # standard deviations within which half of a normal distribution lies


def trend_of(entropies: Sequence[float]) -> Trend | None:
    """Return the trend of the newest windows, or None.

    ``jumped``: the newest window is worse than the mean of the five before it by more than 1 % and by more
    than four times their spread. ``tired``: each of the newest five is worse than the best mean of five
    earlier consecutive windows, and their mean is worse by more than 2 %. The difference must also exceed
    four times (``jumped``) or three times (``tired``) the random standard deviation of windows, which is
    large for windows of few rows.

    Args:
        entropies: Normalized entropies of the windows, the newest last.
    """
    *before, newest = entropies[-_TOGETHER - 1 :] or (0.0,)
    chance = _chance(entropies[:-1])
    if len(before) == _TOGETHER:
        middle = statistics.fmean(before)
        spread = max(statistics.stdev(before), chance)
        if newest > middle + max(_JUMP_SPREADS * spread, _JUMP_SHARE * middle):
            return "jumped"
    recent, earlier = entropies[-_TOGETHER:], entropies[:-_TOGETHER]
    if len(earlier) < _TOGETHER:
        return None
    groups = range(len(earlier) - _TOGETHER + 1)
    best = min(statistics.fmean(earlier[start : start + _TOGETHER]) for start in groups)
    least = best + max(_TIRED_SHARE * best, _TIRED_DEVIATIONS * chance)
    return "tired" if min(recent) > best and statistics.fmean(recent) > least else None


def _chance(entropies: Sequence[float]) -> float:
    """Estimate the random standard deviation of windows, from differences of neighbours to ignore drift."""
    if len(entropies) < 2:
        return 0.0
    steps = [later - earlier for earlier, later in pairwise(entropies)]
    usual = statistics.median(steps)
    return statistics.median(abs(step - usual) for step in steps) / (_NORMAL_MEDIAN * math.sqrt(2))
