"""Whether recent windows say that the world has jumped, or that the model has tired.

Judged by the normalized entropy, which a change of the click rate alone hardly moves. A world that turns
steadily, and a model that keeps up with it, are neither.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

Trend = Literal["jumped", "tired"]

REMEMBERED = 64
"""How many windows are looked back upon."""

_TOGETHER = 5
_LEAST_SPREAD = 0.002
_JUMP_SPREADS = 4.0
_JUMP_SHARE = 0.01
_TIRED_SHARE = 0.02


def trend_of(entropies: Sequence[float]) -> Trend | None:
    """What the newest windows say.

    ``jumped``: the newest is worse than the five before it by a hundredth, and by four times as much as they
    are spread. ``tired``: each of the newest five is worse than five windows together were once, by a
    fiftieth on average.

    Args:
        entropies: The windows' normalized entropies, the newest last.
    """
    *before, newest = entropies[-_TOGETHER - 1 :] or (0.0,)
    if len(before) == _TOGETHER:
        middle = statistics.fmean(before)
        spread = max(statistics.stdev(before), _LEAST_SPREAD * middle)
        if newest > middle + max(_JUMP_SPREADS * spread, _JUMP_SHARE * middle):
            return "jumped"
    recent, earlier = entropies[-_TOGETHER:], entropies[:-_TOGETHER]
    if len(earlier) < _TOGETHER:
        return None
    groups = range(len(earlier) - _TOGETHER + 1)
    best = min(statistics.fmean(earlier[start : start + _TOGETHER]) for start in groups)
    is_tired = min(recent) > best and statistics.fmean(recent) > best * (1 + _TIRED_SHARE)
    return "tired" if is_tired else None
