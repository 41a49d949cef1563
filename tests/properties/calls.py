"""Count the function calls of decoding, and how they grow with the input.

Work inside one C call, such as copying bytes, is not counted.
"""

from __future__ import annotations

import cProfile
from collections.abc import Callable

import pytest

MOST_GROWTH = 1.3  # 2 × 1.3 calls for twice the bytes; quadratic growth would give 2 × 2


def check_calls_are_linear(decode: Callable[[int], object], size: int) -> None:
    """Fail if doubling the bytes multiplies the calls by 2.6 or more (``MOST_GROWTH``).

    Linear growth gives 2, quadratic growth 4.

    Args:
        decode: Decodes an input of so many bytes.
        size: The bytes of the smaller input.
    """
    once, twice = calls(lambda: decode(size)), calls(lambda: decode(2 * size))
    growth = twice / once / 2
    if growth >= MOST_GROWTH:
        pytest.fail(
            f"{size} bytes take {once} calls and twice as many {twice}: {growth:.1f} times for a byte"
        )


def calls(work: Callable[[], object]) -> int:
    """Count the calls of functions, those written in C included."""
    profile = cProfile.Profile()
    profile.enable()
    try:
        work()
    finally:
        profile.disable()
    return sum(one.callcount for one in profile.getstats())
