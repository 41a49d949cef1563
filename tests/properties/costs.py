"""How what decoding costs grows with the bytes: the two tables of hostile shapes ask the same."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

TRIES = 3


def check_time_is_linear(
    seconds: Callable[[int], float], middle: int, largest: int, *, most_growth: float, most_seconds: float
) -> None:
    """Fail if a byte of the largest costs more than one may, or much more than one of the middle one.

    Args:
        seconds: What an input of so many bytes takes of the processor's time.
        middle: The bytes of the middle one.
        largest: The bytes of the largest.
        most_growth: How many times as much a byte of the largest may cost.
        most_seconds: What a byte may cost.
    """
    for _ in range(TRIES):
        a_byte = seconds(largest) / largest
        growth = a_byte / (seconds(middle) / middle)
        if growth < most_growth and a_byte < most_seconds:
            return
    pytest.fail(f"a byte of {largest} costs {a_byte * 1e9:.0f} ns, {growth:.1f} times a byte of {middle}")


def peak_bytes(decode: Callable[[], object]) -> int:
    """The most memory that Python held for it, without what is made once only.

    Args:
        decode: Decodes; it runs twice.
    """
    decode()
    tracemalloc.start()
    try:
        decode()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
