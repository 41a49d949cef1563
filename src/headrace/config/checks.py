"""Checks that settings make of themselves: each raises an error that names the key and what was expected.

Every number has a largest value, far beyond what anybody can mean: a wait of 1e300 seconds is a mistake that
would be found only when nothing is answered.
"""

from __future__ import annotations

from headrace.errors import ConfigError

MINUTE, DAY, YEAR = 60.0, 86_400.0, 366 * 86_400.0
"""The longest times that settings may be, in seconds."""

MOST_THREADS = 1024
"""The most threads of any kind that can be asked for."""

LARGEST_RATE = 1e9
"""The most of anything that can be meant a second."""

MOST_ROWS = 2**31 - 1
"""The most rows that can be meant."""

_LARGEST_TOLD = 10**40


def wrong(key: str, expected: str, got: object) -> ConfigError:
    """The error for a setting that cannot be."""
    return ConfigError(f"{key}: expected {expected}, got {told(got)}")


def told(got: object) -> str:
    """A value as an error repeats it, whatever its size."""
    if isinstance(got, int) and abs(got) >= _LARGEST_TOLD:
        return f"a number of {got.bit_length()} bits"  # its digits may be more than Python writes
    return repr(got)


def whole(key: str, value: object, *, least: int = 0, most: int) -> None:
    """Refuse what is no whole number from ``least`` to ``most``."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        is_more = isinstance(value, int) and value > most
        raise wrong(key, f"a whole number, {least} {f'to {most}' if is_more else 'or more'}", value)


def seconds(key: str, value: object, *, most: float, above_zero: bool = False) -> None:
    """Refuse what is no time, or one that is longer than anybody can mean."""
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
    """Refuse what is no number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise wrong(key, "a number from 0 to 1", value)


def one_of(key: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse what is not among the words that are known."""
    if value not in allowed:
        raise wrong(key, f"one of {', '.join(map(repr, allowed))}", value)
