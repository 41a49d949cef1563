"""How many function calls decoding takes, and how that grows with the bytes: no clock is asked."""

from __future__ import annotations

import cProfile
from collections.abc import Callable

import pytest

MOST_GROWTH = 1.3  # of the calls for a byte, over twice the bytes: 2 would be quadratic


def check_calls_are_linear(decode: Callable[[int], object], size: int) -> None:
    """Fail if an input of twice the bytes takes more than twice the calls.

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
