"""Checks of settings: each raises an error that names the key and the expected value.

Every number has an upper bound, far above any sensible value: a wait of 1e300 seconds is a mistake that would
otherwise show only when nothing is answered.
"""

from __future__ import annotations

from headrace.base.errors import ConfigError

MINUTE, DAY, YEAR = 60.0, 86_400.0, 366 * 86_400.0
"""Bounds for settings that are times, in seconds."""

MOST_THREADS = 1024
"""Upper bound for numbers of threads."""

LARGEST_RATE = 1e9
"""Upper bound for rates per second."""

MOST_ROWS = 2**31 - 1
"""Upper bound for numbers of rows."""

_LARGEST_TOLD = 10**40


def wrong(key: str, expected: str, got: object) -> ConfigError:
    """Return the error for a setting with an invalid value."""
    return ConfigError(f"{key}: expected {expected}, got {told(got)}")


def told(got: object) -> str:
    """Format a value for an error message, whatever its size."""
    if isinstance(got, int) and abs(got) >= _LARGEST_TOLD:
        return f"a number of {got.bit_length()} bits"  # Python refuses to format very long integers
    return repr(got)


def whole(key: str, value: object, *, least: int = 0, most: int) -> None:
    """Refuse a value that is not a whole number from ``least`` to ``most``."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        is_more = isinstance(value, int) and value > most
        raise wrong(key, f"a whole number, {least} {f'to {most}' if is_more else 'or more'}", value)


def seconds(key: str, value: object, *, most: float, above_zero: bool = False) -> None:
    """Refuse a value that is not a time in seconds, or exceeds ``most``."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 <= value <= most
        or (above_zero and value == 0)
    ):
        least = "more than 0" if above_zero else "0 or more"
        is_more = isinstance(value, int | float) and value > most
        raise wrong(key, f"seconds, {least}{f', at most {most:.0f}' if is_more else ''}", value)


def fraction(key: str, value: object) -> None:
    """Refuse a value that is not a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise wrong(key, "a number from 0 to 1", value)


def one_of(key: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse a value that is not one of the allowed words."""
    if value not in allowed:
        raise wrong(key, f"one of {', '.join(map(repr, allowed))}", value)
