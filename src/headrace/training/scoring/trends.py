"""Whether recent windows say that the world has jumped, or that the model has tired.

Judged by the normalized entropy, which a change of the click rate alone hardly moves. A world that turns
steadily, and a model that keeps up with it, are neither.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

Trend = Literal["jumped", "tired"]

REMEMBERED = 64
"""How many windows are looked back upon."""

_TOGETHER = 5
_LEAST_SPREAD = 0.002
_JUMP_SPREADS = 4.0
_JUMP_SHARE = 0.01
_TIRED_SHARE = 0.02
_TIRED_DEVIATIONS = 3.0
_NORMAL_MEDIAN = 0.6745  # of what is normal, half lies within so many deviations


def trend_of(entropies: Sequence[float]) -> Trend | None:
    """What the newest windows say.

    ``jumped``: the newest is worse than the five before it by a hundredth, and by four times as much as they
    are spread. ``tired``: each of the newest five is worse than five windows together were once, by a
    fiftieth on average. Both by more than windows differ by chance, which those of few rows do by much.

    Args:
        entropies: The windows' normalized entropies, the newest last.
    """
    *before, newest = entropies[-_TOGETHER - 1 :] or (0.0,)
    chance = _chance(entropies[:-1])
    if len(before) == _TOGETHER:
        middle = statistics.fmean(before)
        spread = max(statistics.stdev(before), chance, _LEAST_SPREAD * middle)
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
    """The standard deviation of windows by chance: of what lies between neighbours, so that drift is none."""
    if len(entropies) < 2:
        return 0.0
    steps = [later - earlier for earlier, later in pairwise(entropies)]
    usual = statistics.median(steps)
    return statistics.median(abs(step - usual) for step in steps) / (_NORMAL_MEDIAN * math.sqrt(2))
