"""Argparse types for numbers with bounds; a wrong value is refused in one line that names the option.

They raise ConfigError, so that the same check serves options, environment variables and files.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from headrace.config import checks

MOST_OF_A_STREAM = 2**63 - 1
"""Maximum number of rows in a stream."""

_LONGEST_TOLD = 40


def whole(option: str, *, least: int | None = None, most: int | None = None) -> Callable[[str], int]:
    """Return an argparse type for whole numbers.

    Args:
        option: The option's name without leading dashes.
        least: The smallest value; None, as is ``most``, if the caller checks the bounds later.
        most: The largest value.

    Returns:
        A function that parses a word.
    """

    def read(word: str) -> int:
        try:
            number = int(word)
        except ValueError:  # not digits, or thousands of them
            raise checks.wrong(option, "a whole number", cut(word)) from None
        if least is not None and most is not None:
            checks.whole(option, number, least=least, most=most)
        return number

    return read


def whole_or_auto(option: str) -> Callable[[str], int | str]:
    """Return an argparse type for whole numbers, or the word ``auto``.

    Args:
        option: The option's name without leading dashes.

    Returns:
        A function that parses a word.
    """

    def read(word: str) -> int | str:
        try:
            return word if word == "auto" else int(word)
        except ValueError:
            raise checks.wrong(option, "a whole number, or auto", cut(word)) from None

    return read


def seconds(option: str, *, most: float) -> Callable[[str], float]:
    """Return an argparse type for times in seconds, 0 or more.

    Args:
        option: The option's name without leading dashes.
        most: The largest value.

    Returns:
        A function that parses a word.
    """

    def read(word: str) -> float:
        number = _float(option, word, "seconds, 0 or more")
        checks.seconds(option, number, most=most)
        return number

    return read


def fraction(option: str) -> Callable[[str], float]:
    """Return an argparse type for numbers from 0 to 1.

    Args:
        option: The option's name without leading dashes.

    Returns:
        A function that parses a word.
    """

    def read(word: str) -> float:
        number = _float(option, word, "a number from 0 to 1")
        checks.fraction(option, number)
        return number

    return read


def above_zero(option: str, *, most: float) -> Callable[[str], float]:
    """Return an argparse type for numbers above zero.

    Args:
        option: The option's name without leading dashes.
        most: The largest value.

    Returns:
        A function that parses a word.
    """
    expected = f"a number, more than 0 and at most {most:g}"

    def read(word: str) -> float:
        number = _float(option, word, expected)
        if not 0 < number <= most:
            raise checks.wrong(option, expected, number)
        return number

    return read


def _float(option: str, word: str, expected: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if math.isfinite(number):
        return number
    raise checks.wrong(option, expected, cut(word))


def cut(word: str) -> str:
    """Cut a word to the length that error messages repeat."""
    return word if len(word) <= _LONGEST_TOLD else f"{word[:_LONGEST_TOLD]}…"
