"""Valid times of rows: 1990 to 2100. Numbers outside that range are mostly in another unit."""

from __future__ import annotations

EARLIEST, LATEST = 631_152_000_000_000, 4_133_980_800_000_000
"""The beginning of 1990 and of 2101, in microseconds since 1970."""

MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 0.001}
"""Microseconds per unit."""

UNIT_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


def fitting_unit(number: int) -> str:
    """Return the unit in which a number is a time from 1990 to 2100; "" if there is none."""
    return next((unit for unit, size in MICROSECONDS.items() if EARLIEST <= number * size <= LATEST), "")
